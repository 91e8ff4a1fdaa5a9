"""Pass: a group machine and a permutation representation of its group -> `Program` (theorem 3).

The paper's theorem counts Householders on the states; what counts is the representation used. On
points that the group moves faithfully, a letter costs (points - cycles) swaps, and the state of the
machine is known from where a few points (a base) have gone: one column of H for each.
"""

from __future__ import annotations

import numpy as np

from statetrack.automata import Machine, PermutationGroup, factors, minimal_representation
from statetrack.automata.limits import MAX_MINIMAL_DEGREE, too_large
from statetrack.automata.permutation_group import Permutation
from statetrack.compiler.codes import ONE, digits, nearest, with_one
from statetrack.compiler.from_cyclic import cyclic_form, prime_powers
from statetrack.compiler.from_one_layer import final_stage
from statetrack.compiler.program import DeltaLayer, IntArray, Program, Step, Symbol, Write

MAX_ARRANGEMENTS = 2**16
"""Elements of a group that are listed to find which points tell its states apart."""


def program_on_few_points(machine: Machine, method: str = "group") -> Program:
    """One layer on the fewest points on which the machine's permutations act faithfully.

    Every letter permutes the states or sends all of them to one. Groups have at most
    `limits.MAX_MINIMAL_DEGREE` elements, or are cyclic: then each prime power has its own points.

    >>> from statetrack.automata import groups
    >>> program = program_on_few_points(groups.symmetric(4))  # 24 states, acts on 4 points
    >>> program.note, program.stages[0].layer.num_householders
    ('on 4 points', 3)
    """
    columns = [tuple(column) for column in machine.delta.T.tolist()]
    n = machine.num_states
    moving = [i for i, column in enumerate(columns) if len(set(column)) == n]
    resets = {i: column[0] for i, column in enumerate(columns) if n > 1 == len(set(column))}
    if len(moving) + len(resets) < len(columns):
        raise ValueError(
            f"few points need letters that permute the states or send all to one, and {machine!r} "
            "has others"
        )
    if not moving:
        raise ValueError("no letter permutes the states, so there is no group")
    group = PermutationGroup.generated_by(columns[i] for i in moving)
    if group.order == 1:
        raise ValueError("the letters that permute leave all states alone: there is no group")
    if group.order > MAX_MINIMAL_DEGREE:
        points = _cyclic_points(machine) if not resets else None
        if points is None:
            raise too_large(
                "the order of a group whose subgroups are listed",
                group.order,
                MAX_MINIMAL_DEGREE,
                "let it act on the states",
            )
    else:
        images = minimal_representation(group)
        if images.degree >= n:
            raise ValueError(f"the group acts faithfully on no fewer than its {n} states")
        image = dict(zip(group.generators, images.generators, strict=True))
        points = {i: image[columns[i]] for i in moving}
    if resets and any(reset not in _reached(machine, moving) for reset in resets.values()):
        raise ValueError("a letter resets to a state that the permutations do not reach")
    return program_on_points(machine, points, resets, method)


def _cyclic_points(machine: Machine) -> dict[int, Permutation] | None:
    """Addition modulo m on as many points as the prime powers of m add up to."""
    form = cyclic_form(machine)
    if form is None or len(powers := prime_powers(form.modulus)) < 2:
        return None
    points = {}
    for i, increment in enumerate(form.increment):
        moves: list[int] = []
        for power in powers:
            offset = len(moves)
            moves += [offset + (p + increment) % power for p in range(power)]
        points[i] = tuple(moves)
    return points


def _reached(machine: Machine, letters: list[int]) -> set[int]:
    found, queue = {0}, [0]
    for state in queue:
        for target in machine.delta[state, letters].tolist():
            if target not in found:
                found.add(target)
                queue.append(target)
    return found


def program_on_points(
    machine: Machine,
    letters: dict[int, Permutation],
    resets: dict[int, int] | None = None,
    method: str = "group",
) -> Program:
    """One layer in which letter a moves points as `letters[a]` says, or resets to `resets[a]`.

    The moves must determine the machine's: where all points are is where the machine is. A reset
    empties the state (gate 0) and puts the points where they are for the state it resets to.
    """
    degree = len(next(iter(letters.values())))
    places, states = _orbit(machine, letters)
    base = _base(places, states)
    seen, first = np.unique(places[:, base], axis=0, return_index=True)
    codes = digits(degree)
    columns = (*(f"point {b}" for b in base), ONE)

    def put(arrangement: IntArray) -> tuple[Step, ...]:
        """Writes the points of the base where an arrangement has them, and the constant."""
        steps: list[Step] = [Write(degree, (*[0.0] * len(base), 1.0))]
        for column, place in enumerate(arrangement[base].tolist()):
            steps.append(Write(place, tuple(float(c == column) for c in range(len(columns)))))
        return tuple(steps)

    queries = with_one(codes)
    symbols = []
    for i, name in enumerate(map(str, machine.alphabet)):
        if i in letters:
            symbols.append(Symbol(name, 1.0, factors(letters[i]), queries))
        else:
            goal = (resets or {})[i]
            arrangement = places[int(np.argmax(states == goal))]
            label = int(np.flatnonzero((seen == arrangement[base]).all(axis=1))[0])
            symbols.append(Symbol(name, 0.0, put(arrangement), queries, label))
    layer = DeltaLayer(
        rows=(*(f"place {i}" for i in range(degree)), ONE),
        columns=columns,
        symbols=tuple(symbols),
        start=put(np.arange(degree)),
        labels=tuple(f"{base} at {row}" for row in map(tuple, seen.tolist())),
        readout=nearest(codes[seen].transpose(0, 2, 1)),
    )
    stage = final_stage(machine, layer, states[first])
    return Program(machine, method, (stage,), note=f"on {degree} points")


def _orbit(machine: Machine, letters: dict[int, Permutation]) -> tuple[IntArray, IntArray]:
    """Every arrangement of the points that words reach, `[elements, points]`, and its state."""
    few = set(PermutationGroup.generated_by(letters.values()).few_generators)
    moves = {i: np.array(moved, dtype=np.int16) for i, moved in letters.items()}
    generators = {moved: i for i, moved in letters.items() if moved in few}
    start = np.arange(len(next(iter(moves.values()))), dtype=np.int16)
    number = {start.tobytes(): 0}
    queue, states = [start], [0]
    for place, arrangement in enumerate(queue):
        for letter in generators.values():
            image = moves[letter][arrangement]
            if number.setdefault(image.tobytes(), len(queue)) == len(queue):
                queue.append(image)
                states.append(int(machine.delta[states[place], letter]))
                if len(queue) > MAX_ARRANGEMENTS:
                    raise too_large(
                        "arrangements of the points",
                        len(queue),
                        MAX_ARRANGEMENTS,
                        "let the group act on the states",
                    )
    every, state = np.array(queue), np.array(states, dtype=np.int64)
    for letter, moved in moves.items():
        reached = [number[row.tobytes()] for row in moved[every]]
        if (state[reached] != machine.delta[state, letter]).any():
            raise ValueError("the points do not determine the machine's state")
    return every.astype(np.int64), state


def _base(places: IntArray, states: IntArray) -> list[int]:
    """A few points whose places determine the state, each chosen to tell most states apart."""
    base: list[int] = []
    degree = places.shape[1]
    key = np.zeros(len(places), dtype=np.int64)
    while True:
        if _kinds(key) == _kinds(key * (int(states.max()) + 1) + states):
            return base
        kinds = [_kinds(key * degree + places[:, p]) for p in range(degree)]
        base.append(int(np.argmax(kinds)))
        key = np.unique(key * degree + places[:, base[-1]], return_inverse=True)[1]


def _kinds(keys: IntArray) -> int:
    return len(np.unique(keys))
