"""Pass: a one-layer form of a machine (`automata.one_layer`) -> `Program`."""

from __future__ import annotations

from itertools import product

import numpy as np

from statetrack.automata import FiniteMemory, Machine, RookLayer, Swap, factors
from statetrack.automata.limits import too_large
from statetrack.compiler.codes import ONE, digits, nearest, with_one
from statetrack.compiler.program import (
    DeltaLayer,
    IntArray,
    Program,
    Stage,
    Step,
    Symbol,
    Write,
)

MAX_MEMORY = 5
"""Places of a shift register: bfloat16 tells apart sums of so many powers of two."""

MAX_REGISTERS = 2**16
"""Contents of a shift register: each is a label."""

MAX_MOVES = 2**18
"""Rows that the letters of a one-layer form move, all letters together: each is about one swap."""

WAY_OUT = "use method='auto', which tries cascades"


def program_of_rook_layer(machine: Machine, form: RookLayer, method: str = "one-layer") -> Program:
    """One layer with a row for each state (but the one coded by zero): theorem 3, and PIR.

    A letter's matrix is written as rank(I - A) swaps and projections; a constant letter empties the
    state (gate 0) and writes the code of its target.

    >>> from statetrack.automata import rook_layer
    >>> machine = Machine.from_regex("(ab)*", "ab")
    >>> program_of_rook_layer(machine, rook_layer(machine)).run("abab").tolist()
    [1, 0, 1, 0]
    """
    _check_size(form)
    codes = digits(form.dim)
    queries = with_one(codes)
    one = form.dim
    symbols = []
    for letter, images, reset in zip(machine.alphabet, form.maps, form.resets, strict=True):
        steps: tuple[Step, ...] = factors(images)
        if reset is not None:
            steps = _write_state(form, reset)
        if reset is None:
            symbols.append(Symbol(str(letter), 1.0, steps, queries))
        else:
            symbols.append(Symbol(str(letter), 0.0, steps, queries, reset))
    names = [f"state {q}" for q in range(machine.num_states)]
    rows = sorted(q for q in range(machine.num_states) if form.coordinate[q] >= 0)
    state_codes = np.zeros((machine.num_states, codes.shape[1], 1))
    for q in rows:
        state_codes[q, :, 0] = codes[form.coordinate[q]]
    layer = DeltaLayer(
        rows=(*(names[q] for q in rows), ONE),
        columns=("state", ONE),
        symbols=tuple(symbols),
        start=_write_state(form, 0),
        labels=tuple(names),
        readout=nearest(state_codes),
    )
    assert layer.rows[one] == ONE
    return Program(machine, method, (final_stage(machine, layer, np.arange(machine.num_states)),))


def _check_size(form: RookLayer) -> None:
    """Refuses a form whose swaps are too many to list, before they are."""
    moves = np.array(form.maps).reshape(-1, max(1, form.dim))
    moved = int((moves != np.arange(moves.shape[1])).sum())
    if moved > MAX_MOVES:
        raise too_large(
            "rows that all letters move",
            moved,
            MAX_MOVES,
            "use fewer letters, or another method",
        )


def program_of_memory(memory: FiniteMemory) -> Program:
    """One layer that shifts the last letters through its rows; a column for each letter.

    The shift is a chain of swaps; the letter read overwrites the first place. All places are read
    at once, the i-th with weight 2^i, so that the columns spell the whole register.

    >>> from statetrack.automata import finite_memory
    >>> machine = Machine.from_regex("(a|b)*aba", "ab")
    >>> program_of_memory(finite_memory(machine)).run("ababa").tolist()
    [1, 2, 3, 2, 3]
    """
    machine, length = memory.machine, memory.length
    k = machine.num_letters
    if length > MAX_MEMORY:
        raise too_large("places of a shift register", length, MAX_MEMORY, WAY_OUT)
    first = 0 if memory.history is None else 1  # with a history the letter 0 can be no content
    width = k - first
    empty = memory.history is None
    if (k + empty) ** length > MAX_REGISTERS:
        raise too_large(
            "contents of a shift register", (k + empty) ** length, MAX_REGISTERS, WAY_OUT
        )
    registers = list(product(range(-1 if empty else 0, k), repeat=length))
    weights = np.array([2.0**i for i in range(length)])
    one = length
    codes = np.zeros((len(registers), 1, width))
    states = np.empty(len(registers), dtype=np.int64)
    for number, places in enumerate(registers):  # places[0] is the newest letter
        for place, letter in enumerate(places):
            if letter >= first:
                codes[number, 0, letter - first] += weights[place]
        states[number] = memory.state([x for x in reversed(places) if x >= 0])
    shift = tuple(Swap(i, i + 1) for i in reversed(range(length - 1)))
    queries = with_one(weights[:, None])
    symbols = []
    for letter in range(k):
        content = _letter(letter - first, width)
        symbols.append(Symbol(str(machine.alphabet[letter]), 1.0, (*shift, content), queries))
    start: list[Step] = [Write(one, (*[0.0] * width, 1.0))]
    for place, letter in enumerate(reversed(memory.history or ())):
        if letter >= first:
            start.append(Write(place, _letter(letter - first, width).value))
    layer = DeltaLayer(
        rows=(*(f"letter {i + 1} ago" if i else "last letter" for i in range(length)), ONE),
        columns=(*(str(a) for a in machine.alphabet[first:]), ONE),
        symbols=tuple(symbols),
        start=tuple(start),
        labels=tuple(_spell(machine, places) for places in registers),
        readout=nearest(codes),
    )
    return Program(machine, "one-layer", (final_stage(machine, layer, states),))


def final_stage(machine: Machine, layer: DeltaLayer, states: IntArray) -> Stage:
    """A stage that reads letters and whose labels are states already."""
    after = np.broadcast_to(states, (machine.num_letters, len(states))).copy()
    return Stage(layer, np.arange(machine.num_letters), after)


def _write_state(form: RookLayer, state: int) -> tuple[Step, ...]:
    constant = Write(form.dim, (0.0, 1.0))
    place = form.coordinate[state]
    return (constant,) if place < 0 else (Write(place, (1.0, 0.0)), constant)


def _letter(place: int, width: int) -> Write:
    """Overwrite the newest place by a letter; place -1 is the letter that is no content."""
    return Write(0, (*(float(i == place) for i in range(width)), 0.0))


def _spell(machine: Machine, places: tuple[int, ...]) -> str:
    return "".join("·" if x < 0 else str(machine.alphabet[x]) for x in reversed(places))
