"""Pass: a group machine and a permutation representation of its group -> `Program` (theorem 3).

The paper's theorem counts Householders on the states; what counts is the representation used. On
points that the group moves faithfully, a letter costs (points - cycles) swaps, and the state of the
machine is known from where a few points (a base) have gone: one column of H for each.
"""

from __future__ import annotations

import numpy as np

from statetrack.automata import (
    Machine,
    PermutationGroup,
    factors,
    minimal_representation,
    num_householders,
    rook_layer,
)
from statetrack.automata.limits import MAX_MINIMAL_DEGREE, too_large
from statetrack.automata.permutation_group import Permutation
from statetrack.compiler.codes import ONE, digits, nearest, with_one
from statetrack.compiler.from_one_layer import final_stage, program_of_rook_layer
from statetrack.compiler.program import DeltaLayer, IntArray, Program, Step, Symbol, Write

MAX_ARRANGEMENTS = 2**16
"""Elements of a group that are listed to find which points tell its states apart."""


def program_of_group(machine: Machine) -> Program:
    """One layer for a machine whose letters all permute its states.

    Of two representations, the states themselves and the fewest points on which the group acts
    faithfully (groups of at most `limits.MAX_MINIMAL_DEGREE` elements), the one with fewer
    Householders per token is taken, then the one with fewer rows.

    >>> from statetrack.automata import groups
    >>> program = program_of_group(groups.symmetric(4))  # 24 states, acts on 4 points
    >>> program.cost.width, program.cost.householders
    (5, 3)
    """
    group = PermutationGroup.from_machine(machine)
    form = rook_layer(machine)
    assert form is not None and form.kind == "group"
    on_states = (max(map(num_householders, form.maps)), form.dim)
    if 1 < group.order <= MAX_MINIMAL_DEGREE:
        letters = points_of_letters(machine, group)
        on_points = (max(map(num_householders, letters)), len(letters[0]))
        if on_points < on_states:
            return program_on_points(machine, letters)
    return program_of_rook_layer(machine, form, "group")


def points_of_letters(machine: Machine, group: PermutationGroup) -> tuple[Permutation, ...]:
    """How each letter moves the points of a smallest faithful representation of the group."""
    image = dict(zip(group.generators, minimal_representation(group).generators, strict=True))
    return tuple(image[tuple(column)] for column in machine.delta.T.tolist())


def program_on_points(machine: Machine, letters: tuple[Permutation, ...]) -> Program:
    """One layer in which letter a moves points as `letters[a]` says.

    The moves must determine the machine's: where all points are is where the machine is.
    """
    degree = len(letters[0])
    places, states = _orbit(machine, letters)
    base = _base(places, states)
    seen, first = np.unique(places[:, base], axis=0, return_index=True)
    codes = digits(degree)
    columns = (*(f"point {b}" for b in base), ONE)
    start: list[Step] = [Write(degree, (*[0.0] * len(base), 1.0))]
    for column, point in enumerate(base):
        start.append(Write(point, tuple(float(c == column) for c in range(len(columns)))))
    layer = DeltaLayer(
        rows=(*(f"place {i}" for i in range(degree)), ONE),
        columns=columns,
        symbols=tuple(
            Symbol(str(name), 1.0, factors(moves), with_one(codes))
            for name, moves in zip(machine.alphabet, letters, strict=True)
        ),
        start=tuple(start),
        labels=tuple(f"{base} at {row}" for row in map(tuple, seen.tolist())),
        readout=nearest(codes[seen].transpose(0, 2, 1)),
    )
    return Program(machine, "group", (final_stage(machine, layer, states[first]),))


def _orbit(machine: Machine, letters: tuple[Permutation, ...]) -> tuple[IntArray, IntArray]:
    """Every arrangement of the points that words reach, `[elements, points]`, and its state."""
    start = tuple(range(len(letters[0])))
    found = {start: 0}
    queue = [start]
    for places in queue:
        for letter, moves in enumerate(letters):
            moved = tuple([moves[p] for p in places])
            state = int(machine.delta[found[places], letter])
            if moved not in found:
                found[moved] = state
                queue.append(moved)
                if len(queue) > MAX_ARRANGEMENTS:
                    raise too_large(
                        "arrangements of the points",
                        len(queue),
                        MAX_ARRANGEMENTS,
                        "let the group act on the states",
                    )
            elif found[moved] != state:
                raise ValueError("the points do not determine the machine's state")
    return np.array(queue), np.array([found[places] for places in queue])


def _base(places: IntArray, states: IntArray) -> list[int]:
    """A few points whose places determine the state, each chosen to tell most states apart."""
    base: list[int] = []
    while True:
        kinds = [_kinds(places[:, [*base, p]]) for p in range(places.shape[1])]
        known = _kinds(places[:, base]) if base else 1
        if known == _kinds(np.column_stack([places[:, base], states])):
            return base
        base.append(int(np.argmax(kinds)))


def _kinds(rows: IntArray) -> int:
    return len(np.unique(rows, axis=0))
