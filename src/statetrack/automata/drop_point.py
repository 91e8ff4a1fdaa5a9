"""Algorithm S: drop one point at a time (after Zeiger). Always n - 1 levels, of sizes n, ..., 2.

Level i codes which of the n - i remaining states the current state is not. It is the decomposition
to compile with when depth matters; it may use groups that the transition monoid does not have.
"""

from __future__ import annotations

from itertools import combinations

from statetrack.automata.cascade import Action, Cascade, build_cascade
from statetrack.automata.limits import MAX_IMAGES, too_large
from statetrack.automata.machine import Machine


def drop_point(machine: Machine) -> Cascade:
    """The drop-a-point decomposition of a machine.

    A set T of n - i states is refined by label x to T without its x-th state. Letter w acts on
    (T, T', w): if T·w = T', label x goes to the position in T' of the x-th state moved by w, a
    permutation; else T·w misses a state of T', and the level resets to the first it misses. Since
    T·w is in T' throughout, the current state is never the one dropped.

    All 2^n - 1 sets occur: about 2.3 times as many contexts for each further state.

    >>> from statetrack.automata.machine import Machine
    >>> drop_point(Machine.from_regex("(ab)*", "ab")).sizes
    (3, 2)
    """
    n = machine.num_states
    if 2**n > MAX_IMAGES:
        raise too_large(
            f"sets of states of a machine of {n} states",
            2**n - 1,
            MAX_IMAGES,
            "use holonomy for machines of more than 16 states, or minimise first",
        )
    sets = [chosen for size in range(n, 0, -1) for chosen in combinations(range(n), size)]
    number = {states: i for i, states in enumerate(sets)}
    children = [
        {x: number[states[:x] + states[x + 1 :]] for x in range(len(states))}
        if len(states) > 1
        else {}
        for states in sets
    ]
    active = [n - len(states) for states in sets]
    delta = machine.delta.tolist()

    def act(before: int, after: int, letter: int) -> Action:
        images = [delta[q][letter] for q in sets[before]]
        reached = set(images)
        goal = sets[after]
        if len(reached) == len(goal):
            return tuple(goal.index(q) for q in images)
        return next(x for x, q in enumerate(goal) if q not in reached)

    return build_cascade(machine, sets, active, children, range(n, 1, -1), act)
