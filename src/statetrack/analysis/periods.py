"""Lemma P (docs/design/theory.md): does a model have the periods that a machine's groups need?"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from statetrack._typing import Float, Int
from statetrack.analysis.observe import observe
from statetrack.analysis.spectra import ComplexArray, eigenvalues_in_double, products
from statetrack.automata import Machine, facts
from statetrack.automata.permutation_group import cycles

__all__ = ["MAX_PERIODS", "PeriodCheck", "period_checks", "turns"]

MAX_PERIODS = 6
MAX_PERIOD_WORD = 4096
CHANCE = 0.01
"""That a random angle passes for a root of unity."""
MAX_ANGLE = 1e-3
"""In radians: an angle further from a root of unity is none."""


@dataclass(frozen=True)
class PeriodCheck:
    """Lemma P on one word u of a machine's groups: does the model have the period it needs?

    Attributes:
        word: u, in letters.
        order: how many u's bring the machine's state back.
        periods: for each layer, the period its eigenvalues of modulus 1 give to powers of u, or
            None where its inputs were not periodic or an eigenvalue turns by no root of unity.
        enough: whether `order` divides the product of the periods.
    """

    word: tuple[str, ...]
    order: int
    periods: tuple[int | None, ...]
    enough: bool

    def __str__(self) -> str:
        shown = " x ".join("?" if p is None else str(p) for p in self.periods)
        verdict = "enough" if self.enough else "not enough"
        return f"word {''.join(self.word)}: order {self.order}, periods {shown}: {verdict}"


def period_checks(model: nn.Module, machine: Machine, eta: float) -> tuple[PeriodCheck, ...]:
    """Lemma P for generators of the machine's groups, each on powers of its word."""
    found = []
    for permutator in facts(machine).permutators:
        for generator, u in zip(permutator.group.generators, permutator.words, strict=True):
            longest = max(cycles(generator), key=len)
            start = permutator.states[longest[0]]
            order = len(longest)
            repeats = 4 * order + 8
            if order < 2 or repeats * len(u) > MAX_PERIOD_WORD:
                continue
            prefix = _path(machine, start)
            word = torch.tensor([*prefix, *list(u) * repeats])
            periods = _layer_periods(model, word, len(prefix), len(u), order, eta)
            known = math.prod(p or 1 for p in periods)
            enough = None not in periods and known % order == 0
            letters = tuple(str(machine.alphabet[a]) for a in u)
            found.append(PeriodCheck(letters, order, periods, enough))
            if len(found) == MAX_PERIODS:
                return tuple(found)
    return tuple(found)


def _layer_periods(
    model: nn.Module, word: Int[Tensor, "time"], prefix: int, length: int, order: int, eta: float
) -> tuple[int | None, ...]:
    """For each layer the period of the product over one period of its inputs; None if none."""
    repeats = (len(word) - prefix) // length
    periods: list[int | None] = []
    for seen in observe(model, word):
        blocks = seen.x[0, prefix:].float().reshape(repeats, -1)
        period = _period(blocks[repeats // 2 :])
        if period is None:
            periods.append(None)
            continue
        window = period * length
        product = products(seen.transitions(), [len(word) - window], window)
        values = eigenvalues_in_double(product)
        periods.append(turns(values[np.abs(values) >= 1 - eta], order))
    return tuple(periods)


def _period(blocks: Float[Tensor, "repeats numbers"]) -> int | None:
    """The smallest p with blocks[i] = blocks[i + p] throughout."""
    count = len(blocks)
    for p in range(1, count // 2 + 1):
        if torch.allclose(blocks[:-p], blocks[p:], rtol=1e-3, atol=1e-3):
            return p
    return None


def turns(values: ComplexArray, order: int) -> int | None:
    """The smallest power that brings all these eigenvalues of modulus 1 back to 1; None if none.

    Each must be a root of unity of order up to max(12, 2·order). How near it must come is set so
    that a random angle passes for one of them with probability `CHANCE`.

    >>> turns(np.exp(2j * np.pi * np.array([1 / 3, 1 / 2])), 6)
    6
    >>> turns(np.exp([2.0j]), 6) is None
    True
    """
    largest = max(12, 2 * order)
    orders, near = np.arange(1, largest + 1), _near(largest)
    period = 1
    for angle in np.angle(values).flat:
        steps = angle * orders / (2 * math.pi)
        found = np.flatnonzero(np.abs(steps - steps.round()) * 2 * math.pi / orders < near)
        if not len(found):
            return None
        period = math.lcm(period, int(orders[found[0]]))
    return period


@cache
def _near(largest: int) -> float:
    """How near to a root of unity of order up to `largest` an angle must be, in radians."""
    roots = sum(math.gcd(j, order) == 1 for order in range(1, largest + 1) for j in range(order))
    return min(MAX_ANGLE, CHANCE * math.pi / roots)


def _path(machine: Machine, state: int) -> list[int]:
    """A shortest word from the start to a state."""
    found: dict[int, list[int]] = {0: []}
    queue = [0]
    for q in queue:
        for letter, target in enumerate(machine.delta[q].tolist()):
            if target not in found:
                found[target] = [*found[q], letter]
                queue.append(target)
    return found[state]
