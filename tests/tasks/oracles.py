"""Slow, independent answers: Python's own arithmetic, tuples of points, chi-square."""

from collections.abc import Iterator
from itertools import permutations, product
from math import sqrt

import torch

from statetrack import tasks
from statetrack.tasks import IGNORE, Batch, Task
from statetrack.tasks._registry import _APPLIED

NAMES = [*tasks.available(), "regex:(ab)*"]
APPLIED = [name for name in NAMES if name in _APPLIED]
"""Their answers and sizes are checked in `applied/`."""


def draw(
    name: str | Task, batch: int, longest: int, *, shortest: int | None = None, seed: int = 0
) -> Batch:
    """A batch from the training stream."""
    task = tasks.get(name) if isinstance(name, str) else name
    stream = tasks.generator(task, "train", seed)
    return task.sample(batch, longest, min_length=shortest, generator=stream)


def same(a: Batch, b: Batch) -> bool:
    pairs = ((a.tokens, b.tokens), (a.targets, b.targets), (a.mask, b.mask))
    return all(torch.equal(x, y) for x, y in pairs)


def rows(task: Task, batch: Batch) -> Iterator[tuple[list[str], dict[int, str]]]:
    """Every sequence as token names without padding, and its supervised answers by position."""
    for tokens, targets, mask in zip(
        batch.tokens.tolist(), batch.targets.tolist(), batch.mask.tolist(), strict=True
    ):
        for target, counts in zip(targets, mask, strict=True):
            assert counts == (target != IGNORE)
        words = [task.token_names[token] for token in tokens]
        end = next((i for i, token in enumerate(tokens) if token == task.pad_id), len(tokens))
        assert all(token == task.pad_id for token in tokens[end:])
        asked = {t: task.class_names[targets[t]] for t in range(len(tokens)) if mask[t]}
        assert max(asked) == end - 1
        yield words[:end], asked


def arithmetic(expression: str) -> str:
    """The value modulo 5 by Python's parser, which knows precedence, brackets and signs."""
    assert set(expression) <= set("01234+-*()")
    return str(eval(expression) % 5)


def group_elements(name: str) -> list[tuple[int, ...]]:
    """The elements of a group in the order of its numbers, as the points they send 0, 1, ... to."""
    if "_x_" in name:
        first, second = (group_elements(part) for part in name.split("_x_"))
        offset = len(first[0])
        return [a + tuple(offset + point for point in b) for a, b in product(first, second)]
    family, size = name[0], int(name[1:])
    if family == "z":
        return [tuple((i + turn) % size for i in range(size)) for turn in range(size)]
    if family == "d":
        turns = [tuple((turn + i) % size for i in range(size)) for turn in range(size)]
        return turns + [tuple((turn - i) % size for i in range(size)) for turn in range(size)]
    every = list(permutations(range(size)))
    return every if family == "s" else [p for p in every if inversions(p) % 2 == 0]


def inversions(p: tuple[int, ...]) -> int:
    return sum(p[i] > p[j] for i in range(len(p)) for j in range(i + 1, len(p)))


def compose(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """(a·b)(i) = a(b(i))."""
    return tuple(a[i] for i in b)


def chi_square(counts: torch.Tensor, shares: torch.Tensor) -> float:
    """How many standard deviations too far the counts are from the shares (Wilson-Hilferty)."""
    counts, shares = counts.double(), shares.double()
    assert (counts[shares == 0] == 0).all(), "something happened that cannot"
    counts, shares = counts[shares > 0], shares[shares > 0]
    expected = counts.sum() * shares / shares.sum()
    assert expected.min() >= 5, "too few draws for chi-square"
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / sqrt(spread)


def looks_uniform(counts: torch.Tensor) -> bool:
    return chi_square(counts, torch.ones(len(counts))) < 4
