"""Pass: `Cascade` -> `Program`, one layer for each level (theorem 4, with its gap closed).

In a cascade level i+1 has to know the label of level i before the letter as well as after it; the
state H_t that a layer shows is the one after. A permutation can be undone, so there the label after
is enough. A reset erases what the next level needs. The fix used here (docs/design/theory.md has
others): a reset multiplies the state by a tiny gate instead of zero and then overwrites one row, so
that the largest of the other rows is the label before (or there is none, when the reset changed
nothing).
"""

from __future__ import annotations

import numpy as np

from statetrack.automata import Cascade, Level, factors, rook_layer
from statetrack.automata.permutation_group import cycles
from statetrack.compiler.codes import EPSILON, MAGNIFY, ONE, digits, nearest, with_one
from statetrack.compiler.from_one_layer import program_of_rook_layer
from statetrack.compiler.program import (
    DeltaLayer,
    IntArray,
    Program,
    Stage,
    Step,
    Symbol,
    Write,
)

KEEP = "keep"


def program_of_cascade(cascade: Cascade) -> Program:
    """One layer for each level of a cascade; the contexts are its triples (T, T', w).

    >>> from statetrack.automata import Machine, holonomy
    >>> machine = Machine.from_regex("(a|b)*ab", "ab")
    >>> program_of_cascade(holonomy(machine)).run("abab").tolist()
    [1, 2, 1, 2]
    """
    if not cascade.levels:  # a single state: nothing to take apart
        form = rook_layer(cascade.machine)
        assert form is not None
        return program_of_rook_layer(cascade.machine, form, "cascade")
    stages = []
    triples = first_triples(cascade)
    for i, level in enumerate(cascade.levels):
        last = i + 1 == len(cascade.levels)
        actions = actions_of(cascade, i, triples)
        before, after = labels_around(level, actions)
        layer = _layer(cascade, i, last)
        following, table = refine(cascade, i, triples, before, after)
        if last:
            table = states_of(cascade, following)[table]
            # a reset of the last level shows its own label: nobody asks for the one before
            resets = np.flatnonzero(np.append(level.resets, -1)[actions] >= 0)
            own = np.append(level.resets, -1)[actions[resets]]
            table[resets] = table[resets, np.maximum(own, 0)][:, None]
        stages.append(Stage(layer, actions, table))
        triples = following
    return Program(cascade.machine, "cascade", tuple(stages))


def first_triples(cascade: Cascade) -> IntArray:
    """`[letters, 3]`: X before, X after, and the letter."""
    letters = np.arange(cascade.machine.num_letters)
    return np.stack([np.zeros_like(letters), np.zeros_like(letters), letters], axis=1)


def actions_of(cascade: Cascade, i: int, triples: IntArray) -> IntArray:
    """The row of the level's `actions` for each triple, or one past the last: do nothing."""
    level = cascade.levels[i]
    known = _code(cascade, np.stack([level.before, level.after, level.letter], axis=1))
    wanted = _code(cascade, triples)
    active = cascade.active[triples[:, 1]] == i
    actions = np.full(len(triples), len(level.resets))
    place = np.minimum(np.searchsorted(known, wanted[active]), len(known) - 1)
    assert (known[place] == wanted[active]).all(), "a triple that occurs has no action"
    actions[active] = level.action[place]
    return actions


def labels_around(level: Level, actions: IntArray) -> tuple[IntArray, IntArray]:
    """The labels before and after, `[triples, m + 1]`, for each label that the layer may show.

    Label m is "the same": on a reset, that the label before was the one it resets to.
    """
    m = level.size
    shown = np.arange(m + 1)
    resets = np.append(level.resets, -1)
    undone = np.argsort(np.vstack([level.actions, np.arange(m)]), axis=1)
    before = np.empty((len(resets), m + 1), dtype=np.int64)
    after = np.empty_like(before)
    for action, reset in enumerate(resets.tolist()):
        if reset < 0:
            before[action], after[action] = np.append(undone[action], -1), np.append(shown[:m], -1)
        else:
            before[action], after[action] = np.append(shown[:m], reset), reset
    return before[actions], after[actions]


def refine(
    cascade: Cascade, i: int, triples: IntArray, before: IntArray, after: IntArray
) -> tuple[IntArray, IntArray]:
    """The triples of the next level, and the table to them from (triple, label shown); -1: none."""
    possible = (before >= 0) & (after >= 0)
    sets = [
        np.where(
            cascade.active[column][:, None] == i,
            cascade.child[column[:, None], np.maximum(labels, 0)],
            column[:, None],
        )
        for column, labels in ((triples[:, 0], before), (triples[:, 1], after))
    ]
    possible &= (sets[0] >= 0) & (sets[1] >= 0)
    letters = np.broadcast_to(triples[:, 2:], before.shape)
    reached = np.stack([*sets, letters], axis=-1)[possible]
    codes, number = np.unique(_code(cascade, reached), return_inverse=True)
    table = np.full(before.shape, -1, dtype=np.int64)
    table[possible] = number.reshape(-1)
    return _triples(cascade, codes), table


def states_of(cascade: Cascade, triples: IntArray) -> IntArray:
    """The machine's state after the letter; the last sets have one state. One more entry, -1."""
    states = [cascade.sets[number] for number in triples[:, 1].tolist()]
    assert all(len(members) == 1 for members in states)
    return np.array([*(members[0] for members in states), -1], dtype=np.int64)


def label_names(cascade: Cascade, i: int) -> tuple[str, ...]:
    """The set a label codes where it always codes the same, else the label's number."""
    names = []
    active = cascade.active == i
    for label in range(cascade.levels[i].size):
        coded = set(cascade.child[active, label].tolist()) - {-1}
        names.append(_set(cascade.sets[coded.pop()]) if len(coded) == 1 else f"label {label}")
    if len(set(names)) < len(names):
        names = [f"label {label}" for label in range(len(names))]
    return tuple(names)


def _set(states: tuple[int, ...]) -> str:
    shown = ",".join(map(str, states[:6]))
    return f"{{{shown}}}" if len(states) <= 6 else f"{{{shown},… {len(states)} states}}"


def _layer(cascade: Cascade, i: int, last: bool) -> DeltaLayer:
    level = cascade.levels[i]
    m = level.size
    codes = digits(m)
    names = label_names(cascade, i)
    symbols = []
    for row, reset in zip(level.actions.tolist(), level.resets.tolist(), strict=True):
        if reset < 0:
            moves = "".join(f"({' '.join(map(str, c))})" for c in cycles(tuple(row)) if len(c) > 1)
            symbols.append(Symbol(f"permute {moves or '()'}", 1.0, factors(row), with_one(codes)))
            continue
        name, steps = f"reset to {names[reset]}", _write(m, reset)
        if last:
            symbols.append(Symbol(name, 0.0, steps, with_one(codes), reset))
        else:
            others = np.where(np.arange(m)[:, None] == reset, 0.0, codes) * MAGNIFY
            queries = with_one(others, EPSILON * MAGNIFY)
            symbols.append(Symbol(name, EPSILON, steps, queries, reset))
    symbols.append(Symbol(KEEP, 1.0, (), with_one(codes)))
    return DeltaLayer(
        rows=(*(f"level{i + 1}/{name}" for name in names), ONE),
        columns=("label", ONE),
        symbols=tuple(symbols),
        start=_write(m, cascade.start[i]),
        labels=(*names, "the same"),
        readout=nearest(np.concatenate([codes, np.zeros((1, codes.shape[1]))])[:, :, None]),
    )


def _write(m: int, label: int) -> tuple[Step, ...]:
    return (Write(label, (1.0, 0.0)), Write(m, (0.0, 1.0)))


def _code(cascade: Cascade, triples: IntArray) -> IntArray:
    size, k = len(cascade.sets), cascade.machine.num_letters
    return (triples[..., 0] * size + triples[..., 1]) * k + triples[..., 2]


def _triples(cascade: Cascade, codes: IntArray) -> IntArray:
    pairs, letter = np.divmod(codes, cascade.machine.num_letters)
    before, after = np.divmod(pairs, len(cascade.sets))
    return np.stack([before, after, letter], axis=1)
