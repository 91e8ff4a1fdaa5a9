"""Algorithm S: drop one point at a time (after Zeiger). Always n - 1 levels, of sizes n, ..., 2.

Level i codes which of the n - i remaining states the current state is not. It is the decomposition
to compile with when depth matters; it may use groups that the transition monoid does not have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.cascade import Cascade, Level
from statetrack.automata.images import smaller
from statetrack.automata.limits import MAX_DROP_CONTEXTS, MAX_SUBSETS, too_large
from statetrack.automata.machine import Machine

IntArray = NDArray[np.int64]


def drop_point(machine: Machine) -> Cascade:
    """The drop-a-point decomposition of a machine.

    A set T of n - i states is refined by label x to T without its x-th state. Letter w acts on
    (T, T', w): if T·w = T', label x goes to the position in T' of the x-th state moved by w, a
    permutation; else T·w misses a state of T', and the level resets to the first it misses. Since
    T·w is in T' throughout, the current state is never the one dropped.

    All 2^n - 1 sets occur: about 2.3 times as many contexts for each further state. Sets are bits
    of whole numbers, and all contexts of a level are looked at together.

    >>> from statetrack.automata.machine import Machine
    >>> drop_point(Machine.from_regex("(ab)*", "ab")).sizes
    (3, 2)
    """
    n, k = machine.delta.shape
    if 2**n > MAX_SUBSETS:
        raise too_large(
            f"sets of states of a machine of {n} states", 2**n - 1, MAX_SUBSETS, smaller(machine)
        )
    masks = np.arange(1, 2**n)
    sizes = np.bitwise_count(masks).astype(np.int64)
    order = np.lexsort((masks, -sizes))  # large sets first, X before all
    masks, sizes = masks[order], sizes[order]
    number = np.full(2**n, -1)
    number[masks] = np.arange(len(masks))
    child = np.full((len(masks), n), -1)
    sets: list[tuple[int, ...]] = []
    for size in range(n, 0, -1):
        these = np.flatnonzero(sizes == size)
        points = _points(masks[these], size, n)
        sets += map(tuple, points.tolist())
        if size > 1:
            child[these, :size] = number[masks[these, None] & ~(1 << points)]
    levels = []
    contexts = 0
    whole = np.full(k, 2**n - 1)
    before, after, letter = whole, whole, np.arange(k)
    for size in range(n, 1, -1):
        contexts += len(before)
        if contexts > MAX_DROP_CONTEXTS:
            raise too_large(
                f"contexts of a cascade for {n} states",
                contexts,
                MAX_DROP_CONTEXTS,
                smaller(machine),
            )
        points = _points(before, size, n)
        moved = 1 << machine.delta[points, letter[:, None]]
        reached = np.bitwise_or.reduce(moved, axis=1)
        permutes = reached == after
        missed = after & ~reached
        missed &= -missed  # the first
        goal = np.where(permutes[:, None], moved, missed[:, None])  # dropped after the letter
        action = np.bitwise_count(after[:, None] & (goal - 1)).astype(np.int8)
        levels.append(_level(number[before], number[after], letter, action, permutes))
        pairs = ((before[:, None] & ~(1 << points)) << n) | (after[:, None] & ~goal)
        codes = np.unique(pairs * k + letter[:, None])
        pairs, letter = np.divmod(codes, k)
        before, after = pairs >> n, pairs & (2**n - 1)
    active = n - sizes
    draft = Cascade(machine, tuple(levels), tuple(sets), active, child, (0,) * (n - 1))
    return Cascade(machine, tuple(levels), tuple(sets), active, child, draft.encode(0))


def _points(masks: IntArray, size: int, n: int) -> IntArray:
    """`[masks, size]`, the states of sets of `size` states, in order."""
    inside = (masks[:, None] >> np.arange(n)) & 1
    return np.nonzero(inside)[1].reshape(len(masks), size)


def _level(
    before: IntArray,
    after: IntArray,
    letter: IntArray,
    action: NDArray[np.int8],
    permutes: NDArray[np.bool_],
) -> Level:
    """`action[context]` is the label after each label; equal actions become one."""
    size = action.shape[1]
    order = np.lexsort((letter, after, before))
    rows = np.ascontiguousarray(action[order]).view(f"V{size}").ravel()
    first, which = np.unique(rows, return_index=True, return_inverse=True)[1:]
    actions = action[order][first].astype(np.int64)
    resets = np.where(permutes[order][first], -1, actions[:, 0])
    return Level(
        size, before[order], after[order], letter[order], which.reshape(-1), actions, resets
    )
