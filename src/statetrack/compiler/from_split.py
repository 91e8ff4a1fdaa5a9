"""Pass: `Cascade` -> `Program` of diagonal layers, for machines whose subgroups are 2-groups.

Each level is split (`automata.split`) into counters modulo 2, one layer with a = ±1 each, and a
register that is kept (a = 1) or rewritten (a = 1/4, b = ±1) bit by bit. Without groups there are no
counters, and no number is negative but the b's: such a program runs with eigenvalues in [0, 1].
What a rewritten bit was before is the sign of h - b, which is how the next layer learns it.
"""

from __future__ import annotations

import numpy as np

from statetrack.automata import Cascade, Split, split
from statetrack.compiler.from_cascade import (
    KEEP,
    actions_of,
    first_triples,
    label_names,
    refine,
    states_of,
)
from statetrack.compiler.program import DiagonalLayer, FloatArray, IntArray, Program, Stage

SHRINK = 0.25
"""What a rewritten bit keeps of its past: below 1/2, so that the last write decides the sign."""


def program_of_split(cascade: Cascade) -> Program:
    """Diagonal layers for a holonomy cascade with disjoint labels.

    Raises `ValueError` where a group of the machine is no 2-group.

    >>> from statetrack.automata import Machine, holonomy
    >>> machine = Machine.from_regex("(a|bb)*", "ab")
    >>> program = program_of_split(holonomy(machine, "disjoint"))
    >>> len(program.stages), program.run("abba").tolist()
    (3, [0, 1, 0, 0])
    """
    stages: list[Stage] = []
    triples = first_triples(cascade)
    if not cascade.levels:  # a single state: nothing to remember, so a counter that never counts
        nothing = np.zeros(len(triples), dtype=np.int64)
        stages.append(Stage(_counter(0, 0), nothing, np.zeros((len(triples), 2), dtype=np.int64)))
    for i in range(len(cascade.levels)):
        found, triples = _level(cascade, i, triples)
        stages += found
    states = states_of(cascade, triples)
    last = stages.pop()
    stages.append(Stage(last.layer, last.symbol, states[last.after]))
    return Program(cascade.machine, "diagonal", tuple(stages))


def _level(cascade: Cascade, i: int, triples: IntArray) -> tuple[list[Stage], IntArray]:
    """The layers of one level, and the triples of the next, which the last table leads to."""
    level = cascade.levels[i]
    parts = split(level)
    if any(prime != 2 for prime in parts.primes):
        raise ValueError(
            f"level {i + 1} of the cascade counts modulo {max(parts.primes)}: real diagonal layers "
            "can only count modulo 2"
        )
    actions = actions_of(cascade, i, triples)
    resets = np.append(level.resets, -1)
    # a context is a triple with the numbers of all counters so far, before and after the letter
    which = np.arange(len(triples))
    before = after = np.zeros(len(triples), dtype=np.int64)
    stages: list[Stage] = []
    for j, shifts in enumerate(parts.shifts):
        shift = np.vstack([shifts, np.zeros_like(shifts[:1])])[actions[which], before]
        shown = np.arange(2)
        rows = [
            np.broadcast_to(which[:, None], (len(which), 2)),
            2 * before[:, None] + (shown - shift[:, None]) % 2,
            2 * after[:, None] + np.broadcast_to(shown, (len(which), 2)),
        ]
        contexts, table = np.unique(
            np.stack(rows, axis=-1).reshape(-1, 3), axis=0, return_inverse=True
        )
        stages.append(Stage(_counter(i, j), shift, table.reshape(-1, 2)))
        which, before, after = contexts.T
    held = resets[actions[which]]
    labels: tuple[IntArray, IntArray]
    if (held >= 0).any():
        layer = _register(cascade, i)
        m = level.size
        target = _place(parts, after, held)
        kept = np.broadcast_to(np.arange(m), (len(which), m))
        now = np.where(held[:, None] >= 0, target[:, None], kept)
        labels = (
            np.take_along_axis(parts.elements[before], kept, axis=1),
            np.take_along_axis(parts.elements[after], now, axis=1),
        )
        symbol = np.where(held >= 0, target, m)
        following, table = refine(cascade, i, triples[which], *labels)
        stages.append(Stage(layer, symbol, table))
        return stages, following
    start = cascade.start[i]
    labels = (parts.elements[before][:, [start]], parts.elements[after][:, [start]])
    following, table = refine(cascade, i, triples[which], *labels)
    last = stages.pop()
    stages.append(Stage(last.layer, last.symbol, table[:, 0][last.after]))
    return stages, following


def _place(parts: Split, number: IntArray, label: IntArray) -> IntArray:
    """Where the permutation of the counters sends to `label`; 0 where there is no label."""
    hit = parts.elements[number] == label[:, None]
    return np.argmax(hit, axis=1)


def _counter(i: int, j: int) -> DiagonalLayer:
    return DiagonalLayer(
        coordinates=(f"level{i + 1}/counter{j + 1}",),
        symbols=(KEEP, "flip"),
        decay=np.array([[1.0], [-1.0]]),
        add=np.zeros((2, 1)),
        start=np.ones(1),
        labels=("even", "odd"),
        codes=np.array([[1.0], [-1.0]]),
        written=(-1, -1),
    )


def _register(cascade: Cascade, i: int) -> DiagonalLayer:
    names = label_names(cascade, i)
    codes = _signs(len(names))
    keep = np.zeros((1, codes.shape[1]))
    return DiagonalLayer(
        coordinates=tuple(f"level{i + 1}/bit{b + 1}" for b in range(codes.shape[1])),
        symbols=(*(f"write {name}" for name in names), KEEP),
        decay=np.concatenate([np.full_like(codes, SHRINK), keep + 1]),
        add=np.concatenate([codes, keep]),
        start=codes[cascade.start[i]],
        labels=names,
        codes=codes,
        written=(*range(len(names)), -1),
    )


def _signs(count: int) -> FloatArray:
    """The numbers 0 .. count-1 in binary, as signs `[count, bits]`."""
    bits = max(1, (count - 1).bit_length())
    digit = np.arange(count)[:, None] >> np.arange(bits) & 1
    return np.where(digit == 1, -1.0, 1.0)
