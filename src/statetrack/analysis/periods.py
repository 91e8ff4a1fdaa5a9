"""Lemma P (docs/design/theory.md): does a model have the periods that a machine's groups need?"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from statetrack._typing import Float, Int
from statetrack.analysis.observe import observe
from statetrack.analysis.spectra import ComplexArray, product_eigenvalues, products
from statetrack.automata import Machine, facts
from statetrack.automata.permutation_group import cycles

__all__ = ["PeriodCheck", "period_checks"]

MAX_PERIODS = 6
MAX_PERIOD_WORD = 4096


@dataclass(frozen=True)
class PeriodCheck:
    """Lemma P on one word u of a machine's groups: does the model have the period it needs?

    Attributes:
        word: u, in letters.
        order: how many u's bring the machine's state back.
        periods: for each layer, the period its eigenvalues of modulus 1 give to powers of u, or
            None where its inputs were not periodic.
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
            periods = _layer_periods(model, word, len(prefix), len(u), repeats, eta)
            known = math.prod(p or 1 for p in periods)
            enough = None not in periods and known % order == 0
            letters = tuple(str(machine.alphabet[a]) for a in u)
            found.append(PeriodCheck(letters, order, periods, enough))
            if len(found) == MAX_PERIODS:
                return tuple(found)
    return tuple(found)


def _layer_periods(
    model: nn.Module, word: Int[Tensor, "time"], prefix: int, length: int, repeats: int, eta: float
) -> tuple[int | None, ...]:
    """For each layer the period of the product over one period of its inputs; None if none."""
    periods: list[int | None] = []
    for seen in observe(model, word):
        blocks = seen.x[0, prefix:].float().reshape(repeats, -1)
        period = _period(blocks[repeats // 2 :])
        if period is None:
            periods.append(None)
            continue
        product = products(seen.transitions(), [slice(-period * length, None)])
        values = product_eigenvalues(product)
        around = values[values.abs() >= 1 - eta].flatten().cpu().numpy()
        periods.append(_turns(np.asarray(around), 4 * repeats))
    return tuple(periods)


def _period(blocks: Float[Tensor, "repeats numbers"]) -> int | None:
    """The smallest p with blocks[i] = blocks[i + p] throughout."""
    count = len(blocks)
    for p in range(1, count // 2 + 1):
        if torch.allclose(blocks[:-p], blocks[p:], rtol=1e-3, atol=1e-3):
            return p
    return None


def _turns(values: ComplexArray, limit: int) -> int | None:
    """The smallest power that brings all these eigenvalues back to 1."""
    angles = np.angle(values)
    for power in range(1, limit + 1):
        turned = np.abs(np.exp(1j * power * angles) - 1)
        if (turned < 0.02).all():
            return power
    return None


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
