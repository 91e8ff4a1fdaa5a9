"""Groups as machines: the state is the running product of the letters read.

Elements are numbered with the identity 0. A letter is an element; reading x_1, x_2, ... gives
x_1·x_2·..., the new element on the right. Permutations are numbered in lexicographic order and
multiply as functions, `(a·b)(i) = a(b(i))`. With all elements as letters (the default) state number
= element number, because the identity's row of the table is `0, 1, 2, ...` and breadth-first
numbering follows it. With fewer letters states are renumbered, and `outputs` holds the elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import permutations as _permutations

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.limits import MAX_GROUP_TABLE, too_large
from statetrack.automata.machine import Machine
from statetrack.automata.permutation_group import PermutationGroup as PermutationGroup
from statetrack.automata.permutation_group import cycles as cycles
from statetrack.automata.permutation_group import num_householders as num_householders

IntArray = NDArray[np.int64]


def permutations(n: int) -> IntArray:
    """All permutations of `0 .. n-1` in lexicographic order, `[n!, n]`; row 0 is the identity.

    >>> permutations(3).tolist()[1]
    [0, 2, 1]
    """
    _positive(n, "permutations", least=1)
    if n > 9:
        raise too_large("the points of a symmetric group", n, 9, "let it act on points: acting()")
    return np.array(list(_permutations(range(n))), dtype=np.int64)


def displacing_at_most(n: int, points: int) -> tuple[int, ...]:
    """The numbers of the permutations of n points that move at most so many of them.

    Two points: the identity and the swaps. Three: the 3-cycles as well.

    >>> len(displacing_at_most(5, 2)), len(displacing_at_most(5, 3))
    (11, 31)
    """
    moved = (permutations(n) != np.arange(n)).sum(axis=1)
    return tuple(np.flatnonzero(moved <= points).tolist())


def symmetric(n: int, generators: Iterable[int] | None = None) -> Machine:
    """The word problem of S_n: n! states; letters are element numbers, all by default.

    >>> s3 = symmetric(3)
    >>> s3.run([1, 2]).tolist()  # (0 2 1) after (1 0 2), as functions
    [1, 4]
    >>> symmetric(5, generators=displacing_at_most(5, 2)).num_letters
    11
    """
    return _of_permutations(permutations(n), generators)


def alternating(n: int, generators: Iterable[int] | None = None) -> Machine:
    """The word problem of A_n: the even permutations, in the order they have in S_n.

    >>> alternating(5).num_states
    60
    """
    every = permutations(n)
    even = [num_householders(p) % 2 == 0 for p in every.tolist()]
    return _of_permutations(every[even], generators)


def cyclic(m: int, generators: Iterable[int] | None = None) -> Machine:
    """Addition modulo m; element e is the residue e.

    >>> cyclic(60).run([59, 2, 0]).tolist()
    [59, 1, 1]
    """
    _positive(m, "cyclic", least=1)
    letters = _checked_generators(m, generators)
    _bounded(m * len(letters))
    return Machine.from_table((np.arange(m)[:, None] + np.array(letters)) % m, alphabet=letters)


def dihedral(m: int, generators: Iterable[int] | None = None) -> Machine:
    """The 2m symmetries of the m-gon: e < m is the rotation r^e, m + e the reflection r^e·s.

    Here s·r = r^{-1}·s. `dihedral(m)` has order 2m (other books write D_{2m}).

    >>> dihedral(4).num_states
    8
    """
    _positive(m, "dihedral", least=1)
    letters = _checked_generators(2 * m, generators)
    _bounded(2 * m * len(letters))
    flip, turn = np.divmod(np.arange(2 * m), m)
    flips, turns = np.divmod(np.array(letters), m)
    turned = (turn[:, None] + np.where(flip[:, None] == 1, -turns, turns)) % m
    return Machine.from_table(turned + m * (flip[:, None] ^ flips), alphabet=letters)


def quaternion(generators: Iterable[int] | None = None) -> Machine:
    """The quaternion group Q8, in the order 1, i, j, k, -1, -i, -j, -k.

    >>> quaternion().run([1, 1, 2]).tolist()  # i, i·i = -1, -1·j = -j
    [1, 4, 6]
    """
    units = np.array([[0, 1, 2, 3], [1, 4, 3, 6], [2, 7, 4, 1], [3, 2, 5, 4]])
    e = np.arange(8)
    product = units[e[:, None] % 4, e % 4]
    sign = (e[:, None] // 4 + e // 4 + product // 4) % 2
    return _of_table(product % 4 + 4 * sign, generators)


def direct_product(a: Machine, b: Machine, generators: Iterable[int] | None = None) -> Machine:
    """The direct product of two group machines; the pair (x, y) is element `x·|b| + y`.

    Both must be word problems with all elements as letters, as the functions here make them.

    >>> direct_product(alternating(4), cyclic(5)).num_states
    60
    """
    for machine in (a, b):
        if not _is_word_problem(machine):
            raise ValueError(
                f"{machine!r} is not a group's word problem with all elements as letters; "
                "build it with groups.symmetric, cyclic, ... without generators="
            )
    size = b.num_states
    order = a.num_states * size
    letters = _checked_generators(order, generators)
    _bounded(order * len(letters))
    x, y = np.divmod(np.arange(order), size)
    u, v = np.divmod(np.array(letters), size)
    table = a.delta[x[:, None], u] * size + b.delta[y[:, None], v]
    return Machine.from_table(table, alphabet=letters)


def check_product(factors: Sequence[Machine]) -> None:
    """Refuses a direct product with all elements as letters that would be too large, unbuilt."""
    _bounded(math.prod(factor.num_states for factor in factors) ** 2)


def acting(
    letters: Sequence[Sequence[int]], alphabet: Iterable[str | int] | None = None
) -> Machine:
    """The machine whose states are points and whose letters move them: `delta[q, a] = p_a(q)`.

    Any maps of `0 .. n-1` to itself will do, not only permutations; the start is point 0.

    >>> acting([(1, 0, 2), (1, 2, 0)], alphabet="sc").run("sc").tolist()
    [1, 2]
    """
    for letter in letters:
        if len(letter) != len(letters[0]):
            raise ValueError(f"maps of {len(letters[0])} and of {len(letter)} points do not mix")
    return Machine.from_table(np.array(letters).T, alphabet=alphabet)


def _of_permutations(elements: IntArray, generators: Iterable[int] | None) -> Machine:
    """Table `[order, letters]` of the products of permutations (as functions), then the machine."""
    order, n = elements.shape
    letters = _checked_generators(order, generators)
    _bounded(order * len(letters))
    weights = n ** np.arange(n, dtype=np.int64)[::-1]
    keys = elements @ weights
    table = np.empty((order, len(letters)), dtype=np.int64)
    for column, letter in enumerate(letters):
        table[:, column] = np.searchsorted(keys, elements[:, elements[letter]] @ weights)
    return Machine.from_table(table, alphabet=letters)


def _of_table(table: IntArray, generators: Iterable[int] | None) -> Machine:
    letters = _checked_generators(len(table), generators)
    return Machine.from_table(table[:, letters], alphabet=letters)


def _checked_generators(order: int, generators: Iterable[int] | None) -> list[int]:
    if generators is None:
        return list(range(order))
    letters = list(generators)
    if not letters:
        raise ValueError("generators is empty; name at least one element, or leave it out for all")
    for letter in letters:
        if not isinstance(letter, int | np.integer) or not 0 <= letter < order:
            raise ValueError(f"generator {letter!r} is not an element number in 0..{order - 1}")
    return sorted({int(letter) for letter in letters})


def _is_word_problem(machine: Machine) -> bool:
    everyone = np.arange(machine.num_states)
    return (
        machine.num_states == machine.num_letters
        and bool((machine.delta[0] == everyone).all())
        and bool((np.sort(machine.delta, axis=0) == everyone[:, None]).all())
    )


def _positive(value: int, what: str, least: int) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{what} needs an integer of at least {least}, got {value!r}")


def _bounded(entries: int) -> None:
    if entries > MAX_GROUP_TABLE:
        raise too_large(
            "the group's table",
            entries,
            MAX_GROUP_TABLE,
            "use fewer letters with generators= of the functions in statetrack.automata.groups",
        )
