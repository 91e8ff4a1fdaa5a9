"""`Profile`: a machine and what is asked about it, each found once, when it is first asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import (
    Facts,
    FiniteMemory,
    Machine,
    RookLayer,
    facts,
    finite_memory,
    rook_layer,
)
from statetrack.automata.permutation_group import cycles
from statetrack.compiler.from_cyclic import Cyclic, cyclic_form


@dataclass(frozen=True, eq=False)
class Profile:
    """A machine with its facts and forms.

    >>> Profile(Machine.from_table([[1], [2], [0]])).letter_period
    3
    """

    machine: Machine

    @cached_property
    def _facts(self) -> Facts | str:
        try:
            return facts(self.machine)
        except ValueError as error:
            return str(error)

    @property
    def facts(self) -> Facts | None:
        """About the transition monoid; None where it is too large to tell, see `unknown`."""
        return None if isinstance(self._facts, str) else self._facts

    @property
    def unknown(self) -> str:
        """Why there are no facts."""
        return self._facts if isinstance(self._facts, str) else ""

    @property
    def too_many_images(self) -> bool:
        """Whether there are no facts because the image sets are too many, for a cascade as well."""
        return "image sets" in self.unknown

    @cached_property
    def rook(self) -> RookLayer | None:
        """The machine as one layer of partial permutations and resets."""
        return rook_layer(self.machine)

    @cached_property
    def memory(self) -> FiniteMemory | None:
        """The machine as a shift register."""
        return finite_memory(self.machine)

    @cached_property
    def cyclic(self) -> Cyclic | None:
        """The machine as addition modulo its number of states."""
        return cyclic_form(self.machine)

    @cached_property
    def is_group(self) -> bool:
        """Whether every letter permutes the states."""
        n = self.machine.num_states
        return all(len(np.unique(column)) == n for column in self.machine.delta.T)

    @cached_property
    def letter_cycles(self) -> tuple[tuple[int, ...], ...]:
        """For each letter the lengths of the cycles that repeating it runs into."""
        return tuple(_cycle_lengths(column) for column in self.machine.delta.T)

    @property
    def letter_period(self) -> int:
        """The longest cycle of states that repeating one letter runs through."""
        return max(max(lengths) for lengths in self.letter_cycles)

    @cached_property
    def element_order(self) -> int:
        """The largest order known of a word on the states it permutes: of letters, and of the
        generators of the groups inside."""
        orders = [math.lcm(*lengths) for lengths in self.letter_cycles]
        if self.facts is not None:
            for permutator in self.facts.permutators:
                for generator in permutator.group.generators:
                    orders.append(math.lcm(*(len(cycle) for cycle in cycles(generator))))
        return max(orders)

    @cached_property
    def is_dihedral_by_mirrors(self) -> bool:
        """Whether the letters are mirrors r^i·s of one dihedral group, or the identity."""
        if not self.is_group:
            return False
        letters = [tuple(column) for column in self.machine.delta.T.tolist()]
        identity = tuple(range(self.machine.num_states))
        mirrors = list(dict.fromkeys(letter for letter in letters if letter != identity))
        if not mirrors or any(_then(m, m) != identity for m in mirrors):
            return False
        if len(mirrors) <= 2:
            return True
        # turns are products of two mirrors: one of them must generate all of them
        turns = {_then(mirrors[0], m) for m in mirrors[1:]}
        for turn in turns:
            powers, power = {identity}, turn
            while power != identity:
                powers.add(power)
                power = _then(power, turn)
            if turns <= powers:
                return True
        return False

    @cached_property
    def is_signs(self) -> bool:
        """Whether the letters are involutions that commute: signs of a few heads."""
        if not self.is_group or any(max(lengths) > 2 for lengths in self.letter_cycles):
            return False
        letters = self.machine.delta.T
        return all((a[letters] == letters[:, a]).all() for a in letters)


def _cycle_lengths(column: NDArray[np.int64]) -> tuple[int, ...]:
    """The lengths of the cycles of a map of states."""
    power, reach = column, 1
    while reach < len(column):  # after so many letters every state is on its cycle
        power, reach = power[power], 2 * reach
    rest = set(power.tolist())
    images = column.tolist()
    lengths = []
    while rest:
        state = rest.pop()
        length, at = 1, images[state]
        while at != state:
            rest.discard(at)
            length, at = length + 1, images[at]
        lengths.append(length)
    return tuple(sorted(lengths))


def _then(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([second[i] for i in first])
