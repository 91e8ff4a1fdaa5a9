"""Machines that one linear layer can run exactly, tried before any decomposition.

`rook_layer`: give every state a unit vector, or the zero vector for one state z. A letter that
permutes the states, or that fixes z and is injective on the states it does not send to z, is a
matrix with at most one 1 in each row and column (a rook matrix), B = 0; a letter that sends all
states to r is A = 0, B = code of r. `finite_memory`: a machine that forgets all but the last k
letters is a shift register.

`factors` writes a rook matrix as a product of the fewest generalized Householder matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.limits import MAX_STEPS
from statetrack.automata.machine import Machine, Word

IntArray = NDArray[np.int64]
ZERO = -1
"""In a rook map, the image of a coordinate that is sent to zero."""


@dataclass(frozen=True)
class RookLayer:
    """One layer H_t = A(w) H_{t-1} + B(w) with 0/1 entries that tracks the state exactly.

    Attributes:
        kind: `"group"` (all letters permute), `"permutation-reset"` (or are constant), or
            `"partial-injection"` (with a state coded by zero).
        dim: the dimension, n or n - 1.
        coordinate: for each state its coordinate, -1 for the state z coded by zero.
        maps: for each letter the coordinate that each coordinate goes to (-1: to zero).
        resets: for each letter the state it sends everything to, or None; its map is all -1.
    """

    kind: Literal["group", "permutation-reset", "partial-injection"]
    dim: int
    coordinate: tuple[int, ...]
    maps: tuple[tuple[int, ...], ...]
    resets: tuple[int | None, ...]

    def code(self, state: int) -> IntArray:
        """The vector `[dim]` of a state: a unit vector, or zero."""
        return _unit(self.coordinate[state], self.dim)

    def transition(self, letter: int) -> tuple[IntArray, IntArray]:
        """A `[dim, dim]` and B `[dim]` of a letter number; column vectors, A acts on the left.

        >>> layer = rook_layer(Machine.from_regex("(ab)*", "ab"))
        >>> layer.dim, layer.transition(0)[0].tolist()
        (2, [[0, 0], [1, 0]])
        """
        reset = self.resets[letter]
        added = self.code(reset) if reset is not None else np.zeros(self.dim, dtype=np.int64)
        return rook_matrix(self.maps[letter]), added


@dataclass(frozen=True)
class FiniteMemory:
    """A machine whose state depends on the last `length` letters only (k-definite).

    Attributes:
        machine: the machine.
        length: k, the fewest letters that fix the state.
        history: k letter numbers that lead to the start state from every state, or None: then the
            register starts empty, and an empty place stands for a letter not yet read.
    """

    machine: Machine
    length: int
    history: tuple[int, ...] | None

    @property
    def dim(self) -> int:
        """Coordinates of a shift register with a unit vector for each place and letter.

        With a history no place is ever empty, so the letter it starts with can be the zero vector.
        """
        return self.length * (self.machine.num_letters - (self.history is not None))

    def state(self, recent: Word) -> int:
        """The state after the last letters read (all of them, while fewer than `length`).

        >>> memory = finite_memory(Machine.from_regex("(a|b)*a(a|b)", "ab"))
        >>> memory.length, memory.state("ab"), memory.machine.run("bbab").tolist()[-1]
        (2, 3, 3)
        """
        letters = self.machine.encode(recent)
        recent_letters = letters[max(0, len(letters) - self.length) :]
        return int(self.machine.run(recent_letters)[-1]) if len(recent_letters) else 0


@dataclass(frozen=True)
class Swap:
    """Exchange coordinates i and j: I - u uᵀ with u = e_i - e_j (beta 1, u not normalised)."""

    i: int
    j: int

    def key(self, dim: int) -> IntArray:
        """The vector u, `[dim]`."""
        return _unit(self.i, dim) - _unit(self.j, dim)


@dataclass(frozen=True)
class Project:
    """Set coordinate i to zero: I - u uᵀ with u = e_i (beta 1)."""

    i: int

    def key(self, dim: int) -> IntArray:
        """The vector u, `[dim]`."""
        return _unit(self.i, dim)


def one_layer(machine: Machine) -> RookLayer | FiniteMemory | None:
    """The first one-layer form that fits: group, partial injections, permutation-reset, memory.

    None does not mean that one layer is impossible, only that none of these forms fits.

    >>> one_layer(Machine.from_regex("(ab)*", "ab")).kind
    'partial-injection'
    >>> one_layer(Machine.from_regex("a*b*", "ab")) is None
    True
    """
    return rook_layer(machine) or finite_memory(machine)


def rook_layer(machine: Machine) -> RookLayer | None:
    """The machine as one layer of rook matrices and resets, or None if no state can be the zero.

    With a zero state z every letter must be constant, or fix z and be injective on the states it
    does not send to z; that takes n - 1 coordinates and is tried first. Without one, all letters
    must permute or be constant; that takes n.

    >>> rook_layer(Machine.from_table([[1, 0], [2, 0], [0, 0]])).kind
    'permutation-reset'
    """
    n = machine.num_states
    columns = machine.delta.T.tolist()
    is_group = all(_is_rook(c, None) for c in columns)
    zeros = [] if is_group else _zero_states(machine)
    if not zeros and not all(_is_constant(c) or _is_rook(c, None) for c in columns):
        return None
    zero = zeros[0] if zeros else None
    coordinate = [q if zero is None or q < zero else q - 1 for q in range(n)]
    if zero is not None:
        coordinate[zero] = ZERO
    places = [q for q in range(n) if q != zero]
    maps: list[tuple[int, ...]] = []
    resets: list[int | None] = []
    for column in columns:
        constant = _is_constant(column) and not _is_rook(column, zero)
        resets.append(column[0] if constant else None)
        maps.append(tuple(ZERO if constant else coordinate[column[q]] for q in places))
    kind: Literal["group", "permutation-reset", "partial-injection"] = "partial-injection"
    if zero is None:
        kind = "group" if all(r is None for r in resets) else "permutation-reset"
    return RookLayer(kind, len(places), tuple(coordinate), tuple(maps), tuple(resets))


def finite_memory(machine: Machine) -> FiniteMemory | None:
    """The machine as a shift register over its last k letters, or None if it remembers for ever.

    Also None where finding out would take more than `limits.MAX_STEPS`.

    >>> finite_memory(Machine.from_regex("(a|b)*a(a|b){2}", "ab")).dim
    3
    >>> finite_memory(Machine.from_regex("(aa)*", "a")) is None
    True
    """
    # states are alike after i letters if all words of i letters lead them to the same state
    length, kinds, kind = 0, machine.num_states, np.arange(machine.num_states)
    while kinds > 1:
        _, kind = np.unique(kind[machine.delta], axis=0, return_inverse=True)
        kind = kind.reshape(-1)
        length += 1
        if kind.max() + 1 == kinds or length * machine.delta.size > MAX_STEPS:
            return None
        kinds = int(kind.max()) + 1
    return FiniteMemory(machine, length, _history(machine, length))


def rook_matrix(images: Sequence[int]) -> IntArray:
    """The 0/1 matrix with A e_j = e_{images[j]}, or A e_j = 0 where `images[j]` is -1.

    >>> rook_matrix([1, -1]).tolist()
    [[0, 0], [1, 0]]
    """
    matrix = np.zeros((len(images), len(images)), dtype=np.int64)
    for j, image in enumerate(images):
        if image != ZERO:
            matrix[image, j] = 1
    return matrix


def factors(images: Sequence[int]) -> tuple[Swap | Project, ...]:
    """Fewest generalized Householder factors of a rook matrix, in the order they are applied.

    `images` is a rook map: distinct coordinates, or -1 for zero. The number of factors is
    rank(I - A), a lower bound for any product, since each factor fixes a hyperplane. Coordinates
    without an image are set to zero first; each chain then closes into a cycle, and a cycle of r
    coordinates is r - 1 swaps. With 0/1 entries the product equals the matrix exactly, in any
    arithmetic.

    >>> factors([1, 2, 0])
    (Swap(i=1, j=2), Swap(i=0, j=1))
    >>> factors([1, -1])
    (Project(i=1), Swap(i=0, j=1))
    """
    dim = len(images)
    used = [image for image in images if image != ZERO]
    if len(set(used)) != len(used) or not all(0 <= image < dim for image in used):
        raise ValueError(f"{tuple(images)} is not a rook map: images are distinct, in 0..{dim - 1}")
    ends = [j for j, image in enumerate(images) if image == ZERO]
    source = {image: j for j, image in enumerate(images) if image != ZERO}
    closed = list(images)
    for end in ends:
        first = end
        while first in source:
            first = source[first]
        closed[end] = first
    found: list[Swap | Project] = [Project(end) for end in ends]
    seen: set[int] = set()
    for start in range(dim):
        cycle = []
        while start not in seen:
            seen.add(start)
            cycle.append(start)
            start = closed[start]
        found += [Swap(i, j) for i, j in reversed(list(zip(cycle, cycle[1:], strict=False)))]
    return tuple(found)


def _zero_states(machine: Machine) -> list[int]:
    """The states that can be coded by zero: fixed by every letter that is not constant, and the
    only state to which such a letter sends several."""
    possible = np.ones(machine.num_states, dtype=bool)
    states = np.arange(machine.num_states)
    for column in machine.delta.T:
        times = np.bincount(column, minlength=machine.num_states)
        if times.max() < machine.num_states:
            possible &= column == states
            crowded = times > 1
            if crowded.any():
                possible &= crowded & (crowded.sum() == 1)
    return np.flatnonzero(possible).tolist()


def _is_constant(column: list[int]) -> bool:
    return len(set(column)) == 1


def _is_rook(column: list[int], zero: int | None) -> bool:
    if zero is not None and column[zero] != zero:
        return False
    kept = [image for image in column if image != zero]
    return len(set(kept)) == len(kept)


def _history(machine: Machine, length: int) -> tuple[int, ...] | None:
    """A word of `length` letters that ends in the start state, one repeated letter if possible."""
    for letter in range(machine.num_letters):
        word = (letter,) * length
        if not length or machine.run(word)[-1] == 0:
            return word
    back: list[dict[int, int]] = []
    reached = {0}
    for _ in range(length):
        step: dict[int, int] = {}
        for q in sorted(reached):
            for letter, target in enumerate(machine.delta[q].tolist()):
                step.setdefault(target, q * machine.num_letters + letter)
        back.append(step)
        reached = set(step)
    if 0 not in reached:
        return None
    word_back, state = [], 0
    for step in reversed(back):
        state, letter = divmod(step[state], machine.num_letters)
        word_back.append(letter)
    return tuple(reversed(word_back))


def _unit(coordinate: int, dim: int) -> IntArray:
    vector = np.zeros(dim, dtype=np.int64)
    if coordinate != ZERO:
        vector[coordinate] = 1
    return vector
