r"""Permutations as Python traces: swap variables line by line, and say what a print would print.

    >>> x0 , x1 , x2 , x3 , x4 = 2 , 1 , 0 , 4 , 3
    >>> x1 , x2 = x2 , x1
    >>> print ( x1 )
    0

Levels by their forms: 1 tuple swaps; 2 also swaps through `z` in three lines, `swap(...)` and the
decoy `same(...)`; 3 also swaps under a flag that is set to True or False; 4 also flags that are
negated; 5 swaps that happen with probability p, where nobody says whether they did. The answer is
asked at the newline behind `print ( xi )`. It is shown behind it; in the silent variants a `?`
stands there. A quarter of the statements print, and the last one does.

Length counts statements, prints among them; the assignments at the start are not counted.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.tasks._sampling import lengths_of, uniform
from statetrack.tasks._task import Batch, LengthRange, Source, Task
from statetrack.tasks.applied._text import (
    Templates,
    after_header,
    asked_at,
    composed,
    depths_by,
    dice,
    lay_out,
    swapping,
)

__all__ = ["Level", "repl"]

Level = Literal[1, 2, 3, 4, 5]
VARIABLES = 5
VALUES = tuple(str(value) for value in range(VARIABLES))
NAMES = tuple(f"x{i}" for i in range(VARIABLES))
FLAGS = ("c0", "c1")
COINS = {0.25: "p25", 0.5: "p50", 0.75: "p75"}
TOKENS = (
    *("[PAD]", "\\n", ">>>", ",", "=", "(", ")", ":", "print", "if", "z", "swap", "same"),
    *(*FLAGS, "not", "True", "False", *NAMES, *VALUES, "?", *COINS.values()),
)
ID = {name: i for i, name in enumerate(TOKENS)}
FORMS = {
    "tuple": ">>> i , j = j , i \\n",
    "temp": ">>> z = i \\n >>> i = j \\n >>> j = z \\n",
    "swap": ">>> i , j = swap ( i , j ) \\n",
    "same": ">>> i , j = same ( i , j ) \\n",
    "if": ">>> if c : i , j = j , i \\n",
    "set": ">>> c = b \\n",
    "not": ">>> c = not c \\n",
    "maybe": ">>> if p ( ) : i , j = j , i \\n",
    "print": ">>> print ( i ) \\n v \\n",
}
FORM = {name: i for i, name in enumerate(FORMS)}
TEMPLATES = Templates(list(FORMS.values()), TOKENS, "ijcbpv")
ASKED = 5
"""The word of a print at which its answer is asked; the last print ends with it."""
LEVELS: dict[Level, tuple[str, ...]] = {
    1: ("tuple",),
    2: ("tuple", "temp", "swap", "same"),
    3: ("tuple", "temp", "swap", "same", "if", "set"),
    4: ("tuple", "temp", "swap", "same", "if", "set", "not"),
    5: ("maybe",),
}
REVEALS = 0.25
TRAIN, EVALUATE = LengthRange(8, 32), LengthRange(512, 512)


def repl(level: Level, *, silent: bool = False, p: float = 0.5) -> Task:
    """Traces of a level; `p` is the probability of a swap at level 5.

    >>> repl(1).vocab_size, repl(1).num_classes
    (32, 5)
    """
    forms = LEVELS[level]
    widest = max(len(FORMS[name].split()) for name in forms)
    header = 4 * VARIABLES + 1 + (9 if _has_flags(level) else 0)
    name = f"repl_{level}" + (f"_{COINS[p]}" if level == 5 else "")
    what = {
        1: "tuple swaps",
        2: "swaps of four kinds",
        3: "swaps under flags that are set",
        4: "swaps under flags that are negated",
        5: f"swaps that happen with probability {p:g}",
    }[level]

    def num_tokens(length: int) -> int:
        widest_but_last = max(widest, len(FORMS["print"].split()))
        return header + widest_but_last * (length - 1) + ASKED + 1

    return Task(
        name=f"{name}_silent" if silent else name,
        summary=f"a Python trace: {what}; {'no value is' if silent else 'values are'} shown",
        token_names=TOKENS,
        class_names=VALUES,
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=1 / VARIABLES,
        length_means="statements after the first assignments",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=1,
        num_tokens=num_tokens,
        sampler=functools.partial(
            _sample, level=level, silent=silent, p=p, possible=lambda n: num_tokens(n) - header
        ),
        depths=depths_by(_track, TOKENS),
        most_answers=int,
    )


def _has_flags(level: Level) -> bool:
    return level in (3, 4)


def _sample(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    level: Level,
    silent: bool,
    p: float,
    possible: Callable[[int], int],
) -> Batch:
    steps = lengths.max
    size = lengths_of(batch, lengths, source, device)[:, None]
    start = dice((VARIABLES,), batch, source, device).argsort(dim=1)
    flags = (dice((2,), batch, source, device) < 0.5).long()
    reveals, kind, heads = dice((3, steps), batch, source, device).unbind(1)
    i, others, flag, truth = (
        uniform(0, top, (steps, batch), source, device).T
        for top in (VARIABLES - 1, VARIABLES - 2, 1, 1)
    )
    j = (i + 1 + others) % VARIABLES

    step = torch.arange(steps, device=device)
    names = LEVELS[level]
    form = _chosen(kind, [FORM[name] for name in names])
    prints = (reveals < REVEALS) | (step == size - 1)
    form = form.masked_fill(prints, FORM["print"])

    acts = (form == FORM["tuple"]) | (form == FORM["temp"]) | (form == FORM["swap"])
    if _has_flags(level):
        acts = acts | ((form == FORM["if"]) & _flag_values(form, flag, truth, flags))
    acts = acts | ((form == FORM["maybe"]) & (heads < p))
    where = composed(torch.where(acts[..., None], swapping(i, j, VARIABLES), _identity(device)))
    values = start.gather(1, where.gather(2, i[..., None]).squeeze(2))

    shown = torch.full_like(values, ID["?"]) if silent else values + ID["0"]
    slots = [i + ID["x0"], j + ID["x0"], flag + ID["c0"], ID["False"] - truth]
    slots += [torch.full_like(i, ID[COINS[p]]), shown]
    words, sizes = TEMPLATES.fill(form, torch.stack(slots, dim=2))
    sizes = sizes.masked_fill(step >= size, 0).masked_fill(step == size - 1, ASKED + 1)
    place = torch.where(prints, ASKED, -1)
    answers = asked_at(values, place, TEMPLATES.width)
    body = lay_out(words, sizes, answers, pad_id=0, possible=possible(steps))
    return after_header(_header(start, flags if _has_flags(level) else None), body)


def _chosen(drawn: Tensor, options: list[int]) -> Int[Tensor, "batch steps"]:
    """One of the options, all alike, by numbers in [0, 1)."""
    which = (drawn * len(options)).long().clamp(max=len(options) - 1)
    chosen = torch.full_like(which, options[0])
    for number, option in enumerate(options[1:], 1):
        chosen = chosen.masked_fill(which == number, option)
    return chosen


def _identity(device: torch.device) -> Tensor:
    return torch.arange(VARIABLES, device=device)


def _flag_values(form: Tensor, flag: Tensor, truth: Tensor, start: Tensor) -> Tensor:
    """The value of the flag that each statement names, before it."""
    step = torch.arange(1, form.shape[1] + 1, device=form.device)
    value = torch.zeros_like(form)
    for number in range(len(FLAGS)):
        mine = flag == number
        last_set = torch.where((form == FORM["set"]) & mine, step, 0).cummax(dim=1).values
        negations = ((form == FORM["not"]) & mine).long().cumsum(dim=1)
        base = torch.cat([start[:, number : number + 1], truth], dim=1).gather(1, last_set)
        before = torch.cat([torch.zeros_like(step[:1]).expand(len(form), 1), negations], dim=1)
        now = base ^ ((negations - before.gather(1, last_set)) & 1)
        value = torch.where(mine, now, value)
    return value.bool()


def _header(start: Tensor, flags: Tensor | None) -> Tensor:
    """`>>> x0 , x1 , ... = v0 , v1 , ... \\n`, and the same for the flags if there are any."""
    device, batch = start.device, len(start)

    def line(names: Tensor, values: Tensor) -> Tensor:
        count = values.shape[1]
        commas = torch.full((batch, 2 * count - 1), ID[","], device=device)
        left, right = commas.clone(), commas
        left[:, ::2] = names
        right[:, ::2] = values
        prompt, equals, end = (
            torch.full((batch, 1), ID[name], device=device) for name in (">>>", "=", "\\n")
        )
        return torch.cat([prompt, left, equals, right, end], dim=1)

    first = line(_identity(device) + ID["x0"], start + ID["0"])
    if flags is None:
        return first
    names = torch.arange(len(FLAGS), device=device) + ID["c0"]
    return torch.cat([first, line(names, ID["False"] - flags)], dim=1)


def _track(words: list[str]) -> Iterator[tuple[int, int]]:
    """Swaps of the printed value since it was last shown, and statements since.

    Where a swap happens or not, the lines that name the printed variable are counted instead.
    """
    lines = " ".join(words).split("\\n")
    variables = dict(zip(NAMES, lines[0].split()[11::2], strict=True))
    flags: dict[str, bool] = {}
    moved, seen = dict.fromkeys(VALUES, 0), dict.fromkeys(VALUES, 0)
    touched, shown_at = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    hidden, read, asked = False, 0, ""
    for text in lines[1:]:
        line = text.split()
        if not line or line[0] != ">>>":
            if line and line[0] != "?" and asked:
                value = line[0]
                moved[value], seen[value] = 0, read
                touched[asked], shown_at[asked] = 0, read
            continue
        asked, swaps = "", None
        if line[1] == "print":
            asked = line[3]
            value = variables[asked]
            yield (
                (touched[asked], read - shown_at[asked])
                if hidden
                else (moved[value], read - seen[value])
            )
            continue
        if line[1] == "c0" and line[2] == ",":
            flags = {name: line[place] == "True" for name, place in zip(FLAGS, (5, 7), strict=True)}
            continue
        read += 1
        if line[1] == "if":
            hidden = line[2] not in FLAGS
            pair = (line[-7], line[-5])
            if hidden:
                for name in pair:
                    touched[name] += 1
            elif flags[line[2]]:
                swaps = pair
        elif line[1] in FLAGS:
            flags[line[1]] = not flags[line[1]] if line[3] == "not" else line[3] == "True"
        elif line[1] == "z":
            read -= 1  # three lines are one statement, counted at the last
        elif "same" not in line and "z" not in line:
            if "," in line:
                swaps = (line[1], line[3])
            else:  # xi = xj, between z = xi and xj = z
                read -= 1
                swaps = (line[1], line[3])
        if swaps is not None:
            a, b = swaps
            variables[a], variables[b] = variables[b], variables[a]
            moved[variables[a]] += 1
            moved[variables[b]] += 1
