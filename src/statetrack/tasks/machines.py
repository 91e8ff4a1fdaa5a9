"""Any machine as a task: it generates the words, labels them, and is the oracle.

Uniform random words make poor data: those of `(ab)*` are rejected almost surely, and most have
fallen into the sink within a few letters, after which every answer is the same. So words are drawn
towards a goal. Call a state dead if the machine's output can no longer change from there on. A word
of n letters is drawn like this:

1.  its last answer c, uniform among the answers that words of length n can have;
2.  whether it ends in a dead state: where words of both kinds exist for (n, c), it does with
    probability `sink_probability`;
3.  if it does, the letter D that kills it, uniform among those of 1..n that can;
4.  the word, uniform among all words of n letters with last answer c that never enter a dead
    state, or that enter one exactly at letter D (the letters after D are uniform).

Step 4 counts words: W_r[q], the number of words of r letters from q that reach the goal through
live states, is the sum of W_{r-1}[q·a] over the letters a, and letter a is chosen with probability
W_{r-1}[q·a] / W_r[q]. Counts are kept as logarithms, the probabilities as a float32 table.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack._suggest import did_you_mean
from statetrack._typing import Bool, Float, Int
from statetrack.automata import Machine, letters_of, machine_of_table
from statetrack.tasks._sampling import DeviceTable, lengths_of, longest, supervise, unit_uniform
from statetrack.tasks._task import Batch, LengthRange, Source, Task, found_by

TRAIN = LengthRange(3, 40)
EVALUATE = LengthRange(40, 256)
MAX_TABLE = 2**25
"""Entries of the table of letter probabilities (float32)."""
CHANCE_SAMPLE = 1024


def from_regex(regex: str, alphabet: str | None = None) -> Task:
    """The task of a regular expression: after every letter, is the word so far in the language?

    The alphabet is by default the letters of the expression. Needs automata-lib.

    >>> from_regex("(a|b)*ab").token_names
    ('a', 'b', 'PAD')
    """
    letters = letters_of(regex) if alphabet is None else alphabet
    machine = Machine.from_regex(regex, letters)
    name = f"regex:{regex}"
    if alphabet is not None:
        # Another alphabet is another language of other words: it must not share seeds or names.
        name = f"{name} over {alphabet}"
    return found_by(from_machine(machine, name=name), name)


def from_machine(
    machine: Machine,
    *,
    name: str | None = None,
    dense: bool = True,
    balance: bool = True,
    sink_probability: float = 0.5,
    train_lengths: LengthRange = TRAIN,
    eval_lengths: LengthRange = EVALUATE,
) -> Task:
    """The task of saying a machine's output: after every letter, or only after the last.

    Tokens are the letters of the alphabet in order, then padding. Classes are the machine's outputs
    in order: reject and accept, or its integers. Length counts letters. The law of the words is in
    this module's docstring; `balance=False` leaves out its first step, so that all last answers are
    drawn as the words have them (for machines with too many outputs to balance).

    `chance` is the share of the most common answer among those asked for, estimated once from
    1024 words of the evaluation lengths with a fixed seed.

    Args:
        machine: says the answers.
        name: what the task is called; made from the machine where left out.
        dense: whether the answer is asked after every letter.
        balance: whether all last answers are equally likely, as far as the machine allows.
        sink_probability: how likely a word is to enter a sink, where it may and need not.
        train_lengths, eval_lengths: the lengths that runs train on and are judged by.
    """
    if not 0 <= sink_probability <= 1:
        raise ValueError(f"sink_probability {sink_probability} is out of range 0..1")
    for which, lengths in (("train_lengths", train_lengths), ("eval_lengths", eval_lengths)):
        if not _is_range(lengths):
            raise ValueError(
                f"{which} {tuple(lengths)} must be two whole numbers, the least, from 1, and the "
                "greatest"
            )
    values, output = np.unique(machine.outputs, return_inverse=True)
    output = output.reshape(-1).astype(np.int64)
    if len(values) == 1:
        raise ValueError(
            f"the machine says {values[0]} after every word, there is nothing to learn; "
            "give one with two different outputs"
        )
    booleans = machine.outputs.dtype == np.bool_
    law = _Law(machine.delta, output, balance=balance, sink_probability=sink_probability)
    longest_length = max(train_lengths.max, eval_lengths.max)
    law.tables(longest_length)
    sampler = partial(_sample, law=law, dense=dense)
    options = {
        "name": name,
        "dense": dense,
        "balance": balance,
        "sink_probability": sink_probability,
        "train_lengths": train_lengths,
        "eval_lengths": eval_lengths,
    }
    if name is None:
        name = f"machine:{hashlib.sha256(bytes(machine)).hexdigest()[:12]}"
    task = Task(
        name=name if dense else f"{name}:last",
        summary=f"the output of a machine with {machine.num_states} states",
        token_names=(*(str(letter) for letter in machine.alphabet), "PAD"),
        class_names=("reject", "accept") if booleans else tuple(str(value) for value in values),
        pad_id=machine.num_letters,
        dense=dense,
        chance=_most_common(sampler, eval_lengths, len(values)),
        length_means="letters",
        train_lengths=train_lengths,
        eval_lengths=eval_lengths,
        shortest=1,
        num_tokens=_num_tokens,
        sampler=sampler,
        machine=machine,
    )
    return found_by(task, _given(options))


def from_spec(spec: Mapping[str, Any]) -> Task:
    """The task of a machine's table and options, as `Task.spec` gives them.

    >>> table = {"delta": [[0, 1], [1, 0]], "outputs": [0, 1]}
    >>> from_spec({"machine": table, "dense": False}).dense
    False
    """
    options = dict(spec)
    if "machine" not in options:
        raise ValueError(f"the task {options!r} has no machine; give its table as 'machine'")
    machine = machine_of_table(options.pop("machine"), "the machine of a task")
    for key, value in options.items():
        if key not in OPTIONS:
            known = ("machine", *OPTIONS)
            hint = did_you_mean(str(key), known)
            raise ValueError(f"a task has no {key!r}; {hint}It has {', '.join(known)}")
        right, wanted = OPTIONS[key]
        if not right(value):
            raise ValueError(f"{key} of a task is {value!r}, but must be {wanted}")
        if right is _is_range:
            options[key] = LengthRange(*value)
        elif key == "sink_probability":
            options[key] = float(value)
    return from_machine(machine, **options)


def _is_range(value: object) -> bool:
    pair = list(value) if isinstance(value, list | tuple) else []
    return [type(item) for item in pair] == [int, int] and 1 <= pair[0] <= pair[1]


OPTIONS: dict[str, tuple[Callable[[object], bool], str]] = {
    "name": (lambda value: isinstance(value, str), "a string"),
    "dense": (lambda value: isinstance(value, bool), "true or false"),
    "balance": (lambda value: isinstance(value, bool), "true or false"),
    "sink_probability": (lambda value: type(value) in (int, float), "a number from 0 to 1"),
    "train_lengths": (_is_range, "two whole numbers, the least and the greatest"),
    "eval_lengths": (_is_range, "two whole numbers, the least and the greatest"),
}
"""What a spec may give `from_machine` beside the machine."""


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `from_machine` that are not its defaults, as JSON."""
    parameters = inspect.signature(from_machine).parameters
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value != parameters[key].default
    }


def _num_tokens(length: int) -> int:
    return length


def _most_common(sampler: partial[Batch], lengths: LengthRange, num_classes: int) -> float:
    device = torch.device("cpu")
    batch = sampler(CHANCE_SAMPLE, lengths, torch.Generator().manual_seed(0), device)
    counts = torch.bincount(batch.targets[batch.mask], minlength=num_classes)
    return float(counts.max() / counts.sum())


class _Law:
    """The law of the words of one machine, as tables for all lengths up to a power of two.

    Goals are numbered 2c (end with answer c, alive) and 2c + 1 (die with answer c); without balance
    all answers are one.
    """

    def __init__(
        self,
        delta: NDArray[np.int64],
        output: NDArray[np.int64],
        *,
        balance: bool,
        sink_probability: float,
    ) -> None:
        self.num_states, self.num_letters = delta.shape
        self.sink_probability = sink_probability
        self.dead = torch.tensor(_dead_states(delta, output))
        self.kind = torch.tensor(output if balance else np.zeros_like(output))
        self.num_kinds = int(self.kind.max()) + 1
        self.target = torch.tensor(delta)
        self.delta = DeviceTable(self.target.flatten())
        self.says = DeviceTable(output)
        self._tables: dict[int, _Tables] = {}

    def tables(self, length: int) -> "_Tables":
        """Tables for words of up to `length` letters, built once."""
        size = 1 << max(6, math.ceil(math.log2(length)))
        if size not in self._tables:
            goals = 2 * self.num_kinds
            entries = goals * (size + 1) * self.num_states * max(1, self.num_letters - 1)
            if entries > MAX_TABLE:
                raise ValueError(
                    f"too large: the table of letter probabilities needs {entries} entries for "
                    f"{self.num_states} states, {self.num_letters} letters, {self.num_kinds} "
                    f"answers and {size} letters a word, the limit is {MAX_TABLE}; minimise the "
                    "machine, use shorter lengths, or balance=False"
                )
            self._tables[size] = _Tables(self, size)
        return self._tables[size]


class _Tables:
    """For one maximal length R: letter probabilities for every goal, and which goals exist.

    thresholds: `[goals·(R+1)·states, letters - 1]`; in the row of (goal, letters left until it,
        state), letter a is chosen if the dice lie between thresholds a-1 and a.
    kinds: `[R+1, kinds]`, the answers that words of that length can have, first ones valid.
    num_kinds: `[R+1]`, how many.
    can_live: `[kinds, R+1]`, whether a word of that length ends alive with that answer.
    num_deaths: `[kinds, R+1]`, how many of the letters 1..n can be the one that kills.
    deaths: `[kinds, R+1]`, those letters in order.
    """

    def __init__(self, law: _Law, size: int) -> None:
        self.size = size
        kinds = torch.arange(law.num_kinds)
        right_kind = law.kind == kinds[:, None]
        goals = torch.stack([right_kind & ~law.dead, right_kind & law.dead], dim=1).flatten(0, 1)
        thresholds, possible = _count_words(law.target, ~law.dead, goals, size)
        self.thresholds = DeviceTable(thresholds.flatten(0, 2))
        possible = possible.view(size + 1, law.num_kinds, 2)
        lives, dies = possible[..., 0].T.contiguous(), possible[..., 1].T.contiguous()
        num_deaths = dies.cumsum(dim=1)
        exists = (lives | (num_deaths > 0)).T
        self.kinds = DeviceTable(exists.int().argsort(dim=1, descending=True, stable=True))
        self.num_kinds = DeviceTable(exists.sum(dim=1))
        self.can_live = DeviceTable(lives)
        self.num_deaths = DeviceTable(num_deaths)
        self.deaths = DeviceTable(dies.int().argsort(dim=1, descending=True, stable=True))


def _dead_states(delta: NDArray[np.int64], output: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The states from which only one output can be reached."""
    least, most = output.copy(), output.copy()
    while True:
        lower = np.minimum(least, least[delta].min(axis=1))
        upper = np.maximum(most, most[delta].max(axis=1))
        if (lower == least).all() and (upper == most).all():
            return least == most
        least, most = lower, upper


def _count_words(
    target: Int[Tensor, "states letters"],
    live: Bool[Tensor, "states"],
    goals: Bool[Tensor, "goals states"],
    size: int,
) -> tuple[Float[Tensor, "goals left states letters_but_one"], Bool[Tensor, "left goals"]]:
    """Thresholds for every number of letters left, and whether the start can reach the goal."""
    num_goals, num_states = goals.shape
    num_letters = target.shape[1]
    thresholds = torch.empty(num_goals, size + 1, num_states, num_letters - 1)
    possible = torch.empty(size + 1, num_goals, dtype=torch.bool)
    # Uniform where no letter leads to the goal, in particular after it has been reached.
    even = torch.arange(1, num_letters + 1) / num_letters
    thresholds[:, 0] = even[:-1]
    log_words = torch.where(goals, 0.0, -torch.inf).double()
    possible[0] = goals[:, 0]
    for left in range(1, size + 1):
        onward = log_words[:, target]
        log_words = torch.where(live, onward.logsumexp(dim=2), -torch.inf)
        shares = (onward - onward.amax(dim=2, keepdim=True)).exp()
        summed = shares.cumsum(dim=2)
        # Divided by itself the last sum is exactly 1, so a letter that leads nowhere, whose
        # threshold repeats the one before it, is never chosen by dice in [0, 1).
        reached = (summed / summed[..., -1:]).float()
        thresholds[:, left] = torch.where(log_words.isfinite()[..., None], reached, even)[..., :-1]
        possible[left] = log_words[:, 0].isfinite()
    return thresholds, possible


def _sample(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    law: _Law,
    dense: bool,
) -> Batch:
    tables = law.tables(lengths.max)
    drawn = lengths_of(batch, lengths, source, device)
    width = longest(drawn, lengths.max)
    kind, left, dies = _draw_goals(law, tables, drawn, source)
    goal_row = (2 * kind + dies) * (tables.size + 1)

    dice = unit_uniform((width, batch), source, device)
    letters = torch.empty(width, batch, dtype=torch.long, device=device)
    states = torch.empty(width, batch, dtype=torch.long, device=device)
    thresholds = tables.thresholds.on(device)
    delta = law.delta.on(device)
    state = torch.zeros(batch, dtype=torch.long, device=device)
    for t in range(width):
        row = (goal_row + left) * law.num_states + state
        above = dice[t][:, None] >= thresholds.index_select(0, row)
        torch.sum(above, dim=1, out=letters[t])
        state = delta.index_select(0, state * law.num_letters + letters[t])
        states[t] = state
        left = (left - 1).clamp_(min=0)
    answers = law.says.on(device)[states]
    return supervise(
        letters.T.contiguous(),
        answers.T.contiguous(),
        drawn,
        pad_id=law.num_letters,
        defined=dense,
    )


def _draw_goals(
    law: _Law, tables: _Tables, length: Int[Tensor, "batch"], source: Source
) -> tuple[Int[Tensor, "batch"], Int[Tensor, "batch"], Int[Tensor, "batch"]]:
    """Last answer, letters until the goal, and whether the goal is to die; see the module."""
    device = length.device
    which, whether, when = unit_uniform((3, length.shape[0]), source, device)
    kind = tables.kinds.on(device)[length, _pick(which, tables.num_kinds.on(device)[length])]
    num_deaths = tables.num_deaths.on(device)[kind, length]
    can_live = tables.can_live.on(device)[kind, length]
    dies = (num_deaths > 0) & (~can_live | (whether < law.sink_probability))
    death = tables.deaths.on(device)[kind, _pick(when, num_deaths)]
    return kind, torch.where(dies, death, length), dies.long()


def _pick(dice: Float[Tensor, "batch"], count: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """Uniform on `0 .. count-1` (0 where there is nothing to pick), from dice in [0, 1)."""
    # float32 dice times the count can round up to the count itself.
    return torch.minimum((dice * count).long(), count - 1).clamp(min=0)
