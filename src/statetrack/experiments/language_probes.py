"""State tracking asked of language models, in text: as they are, and after a short fine-tuning.

A trace of an applied task is written as text and goes through the model's own tokenizer. Where the
task asks for an answer, the model's scores of the possible answers are compared; nothing else
counts. Training on such answers alone is the fine-tuning.
"""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack._typing import Float, Int
from statetrack.lm.task_data import examples
from statetrack.lm.text import Text
from statetrack.models import CausalLM
from statetrack.models._tokens import evaluating
from statetrack.tasks import Batch, Task
from statetrack.training.config import ScheduleConfig
from statetrack.training.precision import autocast

__all__ = [
    "GENERATED",
    "PROBES",
    "Probe",
    "ProbeSettings",
    "Trace",
    "ask",
    "ask_generated",
    "probe",
]

NOTHING = "nothing"
ROUND = 128
"""Rows are as wide as the next multiple, so that few shapes occur."""
WORD = re.compile(rb" [a-z]{4,9}")
SCHEDULE = ScheduleConfig(warmup=0.1, final=0.1)
GENERATED = ("state_switch", "state_swaps")
"""Questions in words, asked once at the end: only of the model as it is."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How a model is asked and tuned: the same for every model of a study.

    Attributes:
        steps, batch, lr: of the fine-tuning; 0 steps leave it out.
        sequences: of the test, each `times` longer than the longest that is trained on.
    """

    steps: int = 200
    batch: int = 32
    lr: float = 5e-4
    sequences: int = 48
    times: int = 16
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Probe:
    """A task in the words of a tokenizer.

    Attributes:
        written: the words of a trace -> text, each word as it stands in the middle of one.
        answers: the token of every class.
        begins: words that begin a statement.
        header: how many of these are no statement.
    """

    task: Task
    written: Callable[[Sequence[str]], str]
    answers: tuple[int, ...]
    begins: frozenset[str]
    header: int


@dataclass(frozen=True, eq=False)
class Trace:
    """One sequence: its tokens, and of every answer its place, class, statements and operations."""

    tokens: list[int]
    places: list[int]
    answers: list[int]
    statements: list[int]
    operations: list[int]


# -- tasks as text ------------------------------------------------------------------------------


def probe(name: str, text: Text) -> Probe:
    """The probe of that name; a `ValueError` says why a tokenizer cannot write it."""
    if name not in PROBES:
        raise ValueError(f"there is no probe {name!r}; there are {', '.join(PROBES)}")
    task = tasks.get(name)
    if name.startswith("repl"):
        answers = [_only(text, value) for value in task.class_names]
        return _distinct(Probe(task, _repl, tuple(answers), frozenset({">>>"}), 1))
    objects = _words(text, len(task.class_names) - 1)
    names = dict(zip(task.class_names, [*objects, f" {NOTHING}"], strict=True))
    begins = frozenset({"Swap", "Replace", "Empty"})
    answers = [_only(text, names[one]) for one in task.class_names]
    return _distinct(Probe(task, lambda words: _boxes(words, names), tuple(answers), begins, 0))


PROBES = ("repl_1", "repl_1_silent", "boxes", "boxes_no_swap")
"""Traces with values shown and silent; swaps of boxes, and the control without swaps."""


def _only(text: Text, word: str) -> int:
    """The first token of an answer."""
    return text.encode(word, special=False)[0]


def _distinct(found: Probe) -> Probe:
    if len(set(found.answers)) < len(found.answers):
        raise ValueError(
            f"the tokenizer begins two answers of {found.task.name} with the same token: the probe "
            "cannot tell them apart"
        )
    return found


def _words(text: Text, count: int) -> list[str]:
    """Words that are one token, the first of the vocabulary: names for objects."""
    taken = {b" box", b" swap", b" contents", b" with", b" nothing", b" contains", b" empty"}
    known = [one for one in text.vocabulary() if one and WORD.fullmatch(one) and one not in taken]
    if len(known) < count:
        raise ValueError(
            f"the tokenizer has {len(known)} words of one token, and {count} objects need names"
        )
    return [one.decode() for one in known[:count]]


def _repl(words: Sequence[str]) -> str:
    """`>>> x0, x1 = x1, x0`, as Python shows it."""
    said = " ".join(words).replace("\\n", "\n").replace(" \n", "\n").replace("\n ", "\n")
    for spaced, tight in ((" , ", ", "), (" ( ", "("), (" )", ")"), (" : ", ": ")):
        said = said.replace(spaced, tight)
    return said


def _boxes(words: Sequence[str], names: dict[str, str]) -> str:
    """`Box 0 contains the apple, ...`; a word behind a space, as text has it."""
    said = ""
    for word in words:
        if word in (",", "."):
            said += word
        elif word in names:
            said += names[word]
        else:
            said += f" {word}"
    return said


def traces(found: Probe, batch: Batch, text: Text) -> list[Trace]:
    """The sequences of a batch as tokens of the tokenizer.

    A sequence is cut where something is asked, and its pieces are tokenized one by one, so that the
    last token before an answer never holds a part of it.
    """
    depths = found.task.depths
    assert depths is not None, "applied tasks count operations"
    operations = depths(batch).operations
    pieces: list[str] = []
    counts: list[int] = []
    rows: list[tuple[list[int], list[int], list[int]]] = []
    sizes = batch.num_tokens.tolist()
    for number, size in enumerate(sizes):
        names = [found.task.token_names[token] for token in batch.tokens[number, :size].tolist()]
        asked = batch.mask[number, :size].nonzero().flatten().tolist()
        # a question mark is what the answer would be: the word before it asks
        cuts = [place if names[place] == "?" else place + 1 for place in asked]
        begins = [0, *cuts]
        statements = [
            sum(name in found.begins for name in names[:cut]) - found.header for cut in cuts
        ]
        parts = [found.written(names[a:b]) for a, b in zip(begins, cuts, strict=False)]
        pieces += [part if i else part.lstrip(" ") for i, part in enumerate(parts)]
        counts.append(len(parts))
        rows.append(
            (
                batch.targets[number, asked].tolist(),
                statements,
                operations[number, asked].tolist(),
            )
        )
    encoded = iter(text.tokenizer.encode_batch(pieces, add_special_tokens=False))
    made = []
    for count, (answers, statements, depth) in zip(counts, rows, strict=True):
        tokens: list[int] = []
        places: list[int] = []
        for _ in range(count):
            tokens += next(encoded).ids
            places.append(len(tokens) - 1)
        made.append(Trace(tokens, places, answers, statements, depth))
    return made


# -- asking and tuning --------------------------------------------------------------------------


def ask(
    model: CausalLM, text: Text, name: str, settings: ProbeSettings, *, precision: str = "fp32"
) -> dict[str, Any]:
    """Accuracy on a probe by length and by operations, before and after fine-tuning: plain JSON.

    The model itself is left as it is.
    """
    found = probe(name, text)
    longest = found.task.train_lengths.max
    far = settings.times * longest
    held_out = tasks.generator(name, "test", seed=settings.seed)
    batch = found.task.sample(settings.sequences, far, min_length=far, generator=held_out)
    test = traces(found, batch, text)
    answer = {
        "chance": found.task.chance,
        "trained_to": longest,
        "length_means": found.task.length_means,
        "zero_shot": _accuracy(model, found, test, longest, precision),
    }
    if settings.steps:
        tuned = copy.deepcopy(model)
        answer["losses"] = _tune(tuned, found, text, settings, precision)
        answer["tuned"] = _accuracy(tuned, found, test, longest, precision)
    return answer


@torch.no_grad()
def ask_generated(
    model: CausalLM, text: Text, name: str, *, precision: str = "fp32"
) -> dict[str, Any]:
    """How often the likeliest choice is right on a question in words, by events.

    Of the model as it is alone.
    """
    rows = examples(name)
    right: dict[int, list[bool]] = {}
    with evaluating(model):
        for first in range(0, len(rows), 32):
            some = rows[first : first + 32]
            pairs = [
                (text.encode(row["text"], special=False), text.encode(f" {choice}", special=False))
                for row in some
                for choice in row["choices"]
            ]
            tokens, width = _padded([asked + choice for asked, choice in pairs], _device(model))
            with autocast(_device(model), precision):
                losses, _ = model.losses(tokens[:, :-1], tokens[:, 1:])
            place = torch.arange(1, width, device=tokens.device)
            begins, ends = (
                torch.tensor(found, device=tokens.device)[:, None]
                for found in ([len(a) for a, _ in pairs], [len(a) + len(c) for a, c in pairs])
            )
            said = losses.double().masked_fill((place < begins) | (place >= ends), 0.0).sum(1)
            best = said.view(len(some), -1).argmin(1).tolist()
            for row, choice in zip(some, best, strict=True):
                right.setdefault(row["steps"], []).append(choice == row["label"])
    return {
        "chance": 1 / len(rows[0]["choices"]),
        "length_means": "events",
        "zero_shot": {
            "count": len(rows),
            "accuracy": sum(map(sum, right.values())) / len(rows),
            "by_length": [[n, sum(hits) / len(hits), len(hits)] for n, hits in right.items()],
        },
    }


def _device(model: CausalLM) -> torch.device:
    return model.embedding.weight.device


def _padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch time"], int]:
    """Rows of one width; what stands behind a row is read by nobody."""
    width = -(-max(map(len, rows)) // ROUND) * ROUND
    wide = torch.zeros(len(rows), width, dtype=torch.long)
    for place, row in enumerate(rows):
        wide[place, : len(row)] = torch.tensor(row)
    return wide.to(device), width


def _scores(
    model: CausalLM, found: Probe, some: Sequence[Trace]
) -> tuple[Float[Tensor, "asked classes"], Int[Tensor, "asked"]]:
    """The scores of every class wherever something is asked, and the right classes."""
    device = _device(model)
    tokens, width = _padded([trace.tokens for trace in some], device)
    flat = [i * width + place for i, trace in enumerate(some) for place in trace.places]
    x, _ = model.features(tokens)
    asked = x.flatten(0, 1)[torch.tensor(flat, device=device)]
    answers = torch.tensor([one for trace in some for one in trace.answers], device=device)
    table = model.embedding.weight if model.head is None else model.head.weight
    classes = table[torch.tensor(found.answers, device=device)]
    return asked.float() @ classes.float().T, answers


@torch.no_grad()
def _accuracy(
    model: CausalLM, found: Probe, test: Sequence[Trace], longest: int, precision: str
) -> dict[str, Any]:
    """Over all answers, by length (answers between half of it and all of it) and by operations."""
    hits: list[bool] = []
    with evaluating(model):
        for first in range(0, len(test), 8):
            with autocast(_device(model), precision):
                scores, answers = _scores(model, found, test[first : first + 8])
            hits += (scores.argmax(-1) == answers).tolist()
    statements = [count for trace in test for count in trace.statements]
    operations = [count for trace in test for count in trace.operations]
    ends = [longest]
    while ends[-1] < max(statements):
        ends.append(2 * ends[-1])
    by_length = []
    for end in ends:
        low = 0 if end == longest else end // 2
        here = [hit for hit, at in zip(hits, statements, strict=True) if low < at <= end]
        if here:
            by_length.append([end, sum(here) / len(here), len(here)])
    by_operations = []
    for low, high in _octaves(max(operations)):
        here = [hit for hit, at in zip(hits, operations, strict=True) if low <= at <= high]
        if here:
            by_operations.append([high, sum(here) / len(here), len(here)])
    return {
        "count": len(hits),
        "accuracy": sum(hits) / len(hits),
        "by_length": by_length,
        "by_operations": by_operations,
    }


def _octaves(most: int) -> list[tuple[int, int]]:
    """0, 1, 2, 3 to 4, 5 to 8, ... up to `most`.

    >>> _octaves(5)
    [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8)]
    """
    found = [(0, 0), (1, 1)]
    while found[-1][1] < most:
        high = found[-1][1]
        found.append((high + 1, 2 * high))
    return found


def _tune(
    model: CausalLM, found: Probe, text: Text, settings: ProbeSettings, precision: str
) -> list[float]:
    """Trains on the answers of fresh traces; the loss of every tenth of the way."""
    generator = tasks.generator(found.task.name, "train", seed=settings.seed)
    lengths = found.task.train_lengths
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0
    )
    model.train()
    losses = []
    for step in range(settings.steps):
        batch = found.task.sample(
            settings.batch, lengths.max, min_length=lengths.min, generator=generator
        )
        with autocast(_device(model), precision):
            scores, answers = _scores(model, found, traces(found, batch, text))
        loss = cross_entropy(scores, answers)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * SCHEDULE.factor(step, settings.steps)
        optimizer.step()
        losses.append(loss.detach())
    values = torch.stack(losses).tolist()
    tenth = max(1, len(values) // 10)
    parts = [values[i : i + tenth] for i in range(0, len(values), tenth)]
    return [round(sum(part) / len(part), 4) for part in parts]
