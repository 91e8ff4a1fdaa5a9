"""The subset construction on bit masks: from arrows with choices and silent arrows to a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statetrack.automata._graph import components
from statetrack.automata.limits import MAX_REGEX_STATES, too_large


def subset_table(
    arrows: Sequence[Sequence[Iterable[int]]],
    silent: Sequence[Sequence[int]],
    starts: Iterable[int],
    accepting: Iterable[int],
    what: str,
) -> tuple[list[list[int]], list[bool]]:
    """The deterministic table (start 0) of an automaton with choices, and which states accept.

    `arrows[state][letter]` are the states after a letter, `silent[state]` those after no letter.
    Stops at `limits.MAX_REGEX_STATES` sets with a `ValueError` about `what`.

    >>> subset_table([[[0, 1]], [[]]], [[], []], [0], [1], "it")
    ([[1], [1]], [False, True])
    """
    closure = [0] * len(arrows)
    for component in components(silent):  # those that a component leads to come first
        mask = sum(1 << state for state in component)
        for state in component:
            for end in silent[state]:
                mask |= closure[end]
        for state in component:
            closure[state] = mask
    after = [[_union(closure, ends) for ends in row] for row in arrows]
    final = sum(1 << state for state in set(accepting))
    # of a set only the states that read a letter or accept matter
    lasting = sum(1 << i for i, masks in enumerate(after) if any(masks)) | final
    start = _union(closure, starts) & lasting
    number = {start: 0}
    queue = [start]
    rows: list[list[int]] = []
    for subset in queue:
        reached = [0] * len(arrows[0])
        rest = subset
        while rest:
            low = rest & -rest
            rest ^= low
            for letter, mask in enumerate(after[low.bit_length() - 1]):
                reached[letter] |= mask
        row = []
        for mask in reached:
            target = mask & lasting
            if target not in number:
                if len(number) >= MAX_REGEX_STATES:
                    raise too_large(
                        f"the automaton of {what}",
                        len(number) + 1,
                        MAX_REGEX_STATES,
                        "use shorter repetitions, or give the machine as a table",
                    )
                number[target] = len(number)
                queue.append(target)
            row.append(number[target])
        rows.append(row)
    return rows, [bool(subset & final) for subset in queue]


def _union(closure: Sequence[int], states: Iterable[int]) -> int:
    mask = 0
    for state in states:
        mask |= closure[state]
    return mask
