"""Splitting a permutation-reset component into layers that diagonal models can run.

A component with labels `0 .. m-1` and group G is a group layer g in G and a register r: a
permutation letter p sends g to g·p, a reset to j leaves g and sets r to g^{-1}(j); the label is
g(r). A solvable G is in turn a chain of counters modulo primes. Take G = G_0 > G_1 > ... > 1, each
normal in the one before with prime index p_i, and t_i in G_i outside G_{i+1}: every g is

    g = t_{k-1}^{c_{k-1}} ... t_1^{c_1} t_0^{c_0}        (left factor first, 0 <= c_i < p_i)

and g·p shifts c_i by an amount that depends on p and on c_0 .. c_{i-1} before the letter only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.cascade import Level
from statetrack.automata.limits import MAX_SPLIT, MAX_TABLE, too_large
from statetrack.automata.permutation_group import Permutation, PermutationGroup, compose, inverse

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """One step G > H of a prime series: the prime index, an element of G outside H, and H."""

    prime: int
    element: Permutation
    subgroup: PermutationGroup


@dataclass(frozen=True, eq=False)
class SplitRun:
    """After each letter: `coordinates` `[time, primes]`, `register` and `labels` `[time]`."""

    coordinates: IntArray
    register: IntArray
    labels: IntArray


@dataclass(frozen=True, eq=False)
class Split:
    """A component as counters modulo primes followed by a register that is kept or reset.

    Attributes:
        size: m, the number of labels (and of values of the register).
        primes: the modulus of each counter; none when the component only resets.
        shifts: `shifts[i][action, prefix]` is added to counter i, where `prefix` numbers the values
            of counters 0 .. i-1 before the letter (counter 0 most significant). Zero on resets.
        elements: `[order, m]`, the permutation g of each value of all counters, numbered likewise.
        resets: `[actions]`, the label an action resets to, or -1 for a permutation.
    """

    size: int
    primes: tuple[int, ...]
    shifts: tuple[IntArray, ...]
    elements: IntArray
    resets: IntArray

    def run(self, actions: Sequence[int] | IntArray, start: int = 0) -> SplitRun:
        """Run actions (rows of the level's `actions`) from a label; counters start at zero.

        >>> from statetrack.automata.drop_point import drop_point
        >>> from statetrack.automata.machine import Machine
        >>> level = drop_point(Machine.from_table([[1], [2], [0]])).levels[0]
        >>> split(level).run([0, 0, 0]).labels.tolist()
        [1, 2, 0]
        """
        time = len(actions)
        coordinates = np.zeros((time, len(self.primes)), dtype=np.int64)
        register = np.zeros(time, dtype=np.int64)
        labels = np.zeros(time, dtype=np.int64)
        counters = [0] * len(self.primes)
        kept = start
        for t, action in enumerate(actions):
            number = 0
            for i, prime in enumerate(self.primes):
                shift = int(self.shifts[i][action, number])
                number = number * prime + counters[i]
                counters[i] = (counters[i] + shift) % prime
            g = self.elements[_number(counters, self.primes)]
            if self.resets[action] >= 0:
                kept = int(np.flatnonzero(g == self.resets[action])[0])
            coordinates[t], register[t], labels[t] = counters, kept, g[kept]
        return SplitRun(coordinates, register, labels)


def split(level: Level) -> Split:
    """Split a level whose permutations generate a solvable group; `ValueError` for other groups.

    For a machine whose subgroups are 2-groups (solvable), use the levels of `holonomy(machine,
    labels="disjoint")`: shared labels may generate a larger group than the machine has.

    >>> from statetrack.automata.holonomy import holonomy
    >>> from statetrack.automata.machine import Machine
    >>> machine = Machine.from_regex("(a|bb)*", "ab")
    >>> [split(level).primes for level in holonomy(machine, "disjoint").levels]
    [(2,), ()]
    """
    group = PermutationGroup.generated_by(level.permutations, degree=level.size)
    if group.order > MAX_SPLIT:
        raise too_large(
            "the order of the component's group", group.order, MAX_SPLIT, "compile it whole"
        )
    if group.order * level.size > MAX_TABLE:
        raise too_large(
            "entries of the component's group",
            group.order * level.size,
            MAX_TABLE,
            "compile it whole",
        )
    series = prime_series(group)
    primes = tuple(step.prime for step in series)
    letters = [
        tuple(row) if reset < 0 else None
        for row, reset in zip(level.actions.tolist(), level.resets.tolist(), strict=True)
    ]
    shifts = _shifts(series, letters)
    rows = [tuple(range(level.size))]
    for step in reversed(series):
        rows = [compose(h, power) for power in _powers(step) for h in rows]
    return Split(
        level.size, primes, shifts, np.array(rows, dtype=np.int64), level.resets.astype(np.int64)
    )


def prime_series(group: PermutationGroup) -> tuple[Step, ...]:
    """A series of normal steps of prime index down to the trivial group, smallest prime first.

    >>> s4 = PermutationGroup.generated_by([(1, 0, 2, 3), (1, 2, 3, 0)])
    >>> [step.prime for step in prime_series(s4)]
    [2, 3, 2, 2]
    """
    series = []
    while not group.is_trivial:
        index = group.order // group.derived_subgroup.order
        if index == 1:
            raise ValueError(
                f"the group has a perfect subgroup of order {group.order}: it is not solvable "
                "and has no series of prime steps"
            )
        step = _maximal_step(group, _smallest_prime(index))
        series.append(step)
        group = step.subgroup
    return tuple(series)


def _maximal_step(group: PermutationGroup, prime: int) -> Step:
    """A subgroup of index `prime` with all commutators; it exists if prime divides |G/G'|."""
    derived = group.derived_subgroup.generators
    powers = [_power(g, prime) for g in group.generators]
    subgroup = PermutationGroup.generated_by([*derived, *powers], degree=group.degree)
    for g in group.generators:
        larger = PermutationGroup.generated_by([*subgroup.generators, g], degree=group.degree)
        if larger.order < group.order:
            subgroup = larger
    outside = next(g for g in group.generators if g not in subgroup)
    assert subgroup.order * prime == group.order
    return Step(prime, outside, _reduced(subgroup))


def _reduced(group: PermutationGroup) -> PermutationGroup:
    kept: list[Permutation] = []
    order = 1
    for g in group.generators:
        larger = PermutationGroup.generated_by([*kept, g], degree=group.degree)
        if larger.order > order:
            kept.append(g)
            order = larger.order
    return PermutationGroup.generated_by(kept, degree=group.degree)


def _shifts(series: Sequence[Step], letters: Sequence[Permutation | None]) -> tuple[IntArray, ...]:
    """Carry each letter down the series: below counter value c it acts as t^c·u·t^{-c'}."""
    tables = [
        np.zeros((len(letters), prod(step.prime for step in series[:i])), dtype=np.int64)
        for i, step in enumerate(series)
    ]
    for action, letter in enumerate(letters):
        if letter is None:
            continue
        residues = [letter]
        for i, step in enumerate(series):
            powers = _powers(step)
            below = []
            for prefix, u in enumerate(residues):
                shift = next(
                    e for e, t in enumerate(powers) if compose(u, inverse(t)) in step.subgroup
                )
                tables[i][action, prefix] = shift
                for c, t in enumerate(powers):
                    after = powers[(c + shift) % step.prime]
                    below.append(compose(compose(t, u), inverse(after)))
            residues = below
    return tuple(tables)


def _powers(step: Step) -> list[Permutation]:
    """t^0, t^1, ..., t^{p-1}."""
    return [_power(step.element, e) for e in range(step.prime)]


def _power(permutation: Permutation, exponent: int) -> Permutation:
    result = tuple(range(len(permutation)))
    for _ in range(exponent):
        result = compose(result, permutation)
    return result


def _smallest_prime(m: int) -> int:
    return next(d for d in range(2, m + 1) if m % d == 0)


def _number(digits: Sequence[int], bases: Sequence[int]) -> int:
    number = 0
    for digit, base in zip(digits, bases, strict=True):
        number = number * base + digit
    return number
