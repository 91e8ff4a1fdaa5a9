"""`Cascade`: a machine taken apart into levels of permutations and resets, ready to run.

Level i holds a label in `0 .. m_i-1`. The labels of levels 0 .. i-1 code a set T of states that
contains the current state; level 0 sees T = X, all states. When the machine reads w, level i acts
according to the triple (T, T', w), where T is the set coded **before** the letter and T' the set
coded **after** it by the levels above. T' is a function of the labels before and of w, so this is
a cascade product in the usual sense; naming T' keeps the tables small. Every action is a
permutation of the labels or a reset to one label. Below the last level the set has one state: the
machine's.

A set is refined at one level only, the level where it is `active`; at other levels it passes
through and the label means nothing. Where T' is not active the level does nothing, and no context
is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.images import smaller
from statetrack.automata.limits import MAX_CONTEXTS, too_large
from statetrack.automata.machine import Machine, Word

IntArray = NDArray[np.int64]
Action = int | tuple[int, ...]
"""A reset to a label, or a permutation of the labels."""


@dataclass(frozen=True, eq=False)
class Level:
    """One permutation-reset component with its input letters, the contexts.

    Attributes:
        size: m, the number of labels.
        before, after, letter: `[contexts]`, context c is the triple (T, T', w): the number of the
            set coded before the letter, of the set coded after it, and the letter. Sorted.
        action: `[contexts]`, what each context does, as a row of `actions`.
        actions: `[distinct actions, m]`, the label after each label.
        resets: `[distinct actions]`, the label an action resets to, or -1 for a permutation.
    """

    size: int
    before: IntArray
    after: IntArray
    letter: IntArray
    action: IntArray
    actions: IntArray
    resets: IntArray

    @property
    def num_contexts(self) -> int:
        """The number of triples (T, T', w) that can occur and make the level act."""
        return len(self.action)

    @property
    def permutations(self) -> tuple[tuple[int, ...], ...]:
        """The distinct permutations among the actions."""
        return tuple(map(tuple, self.actions[self.resets < 0].tolist()))


@dataclass(frozen=True, eq=False)
class CascadeRun:
    """A word's run through a cascade.

    Attributes:
        labels: `[time, levels]`, each level's label after each letter.
        sets: `[time, levels + 1]`, after each letter the number of the set coded by the levels
            above each level; column 0 is X, the last column holds single states.
        states: `[time]`, the machine's state after each letter.
    """

    labels: IntArray
    sets: IntArray
    states: IntArray


@dataclass(frozen=True, eq=False)
class Cascade:
    """An immutable, runnable decomposition of a machine.

    Attributes:
        machine: the machine it emulates.
        levels: the components, first level first.
        sets: the sets of states that labels code; set 0 is X.
        active: `[sets]`, the level that refines each set (the number of levels for single states).
        child: `[sets, labels]`, the set that a label of the active level refines a set to, or -1
            where that label is not used for this set.
        start: the labels of the start state.
    """

    machine: Machine
    levels: tuple[Level, ...]
    sets: tuple[tuple[int, ...], ...]
    active: IntArray
    child: IntArray
    start: tuple[int, ...]
    _state: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        single = [s[0] if len(s) == 1 else -1 for s in self.sets]
        object.__setattr__(self, "_state", np.array(single, dtype=np.int64))
        arrays = [self.active, self.child, self._state]
        for level in self.levels:
            arrays += [level.before, level.after, level.letter]
            arrays += [level.action, level.actions, level.resets]
        for array in arrays:
            array.flags.writeable = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of labels of each level."""
        return tuple(level.size for level in self.levels)

    @property
    def num_contexts(self) -> int:
        """The contexts of all levels together."""
        return sum(level.num_contexts for level in self.levels)

    def encode(self, state: int) -> tuple[int, ...]:
        """Labels that code a state: at each active level the first label whose set contains it.

        >>> from statetrack.automata.holonomy import holonomy
        >>> cascade = holonomy(Machine.from_regex("(ab)*", "ab"))
        >>> [cascade.decode(cascade.encode(q)) for q in range(3)]
        [0, 1, 2]
        """
        if not 0 <= state < self.machine.num_states:
            raise ValueError(f"state {state} is not in 0..{self.machine.num_states - 1}")
        labels = []
        current = 0
        for i in range(len(self.levels)):
            label = 0
            if self.active[current] == i:
                children = self.child[current].tolist()
                label = next(x for x, c in enumerate(children) if c >= 0 and state in self.sets[c])
                current = children[label]
            labels.append(label)
        return tuple(labels)

    def decode(self, labels: Sequence[int]) -> int:
        """The state that labels code: follow the sets down to a single state.

        >>> from statetrack.automata.drop_point import drop_point
        >>> drop_point(Machine.from_regex("(ab)*", "ab")).decode([0, 0])
        2
        """
        current = 0
        for i, label in enumerate(labels):
            if self.active[current] == i:
                current = int(self.child[current, label])
                if current < 0:
                    raise ValueError(f"label {label} is not used at level {i} in this context")
        return int(self._state[current])

    def run(self, word: Word) -> CascadeRun:
        """Run level after level: level i reads the contexts that levels above make of the word.

        >>> from statetrack.automata.holonomy import holonomy
        >>> machine = Machine.from_regex("(a|b)*ab", "ab")
        >>> holonomy(machine).run("aabab").states.tolist() == machine.run("aabab").tolist()
        True
        """
        letters = self.machine.encode(word)
        if letters.ndim != 1:
            raise ValueError(f"a cascade runs one word, got shape {letters.shape}")
        time = len(letters)
        labels = np.zeros((time, len(self.levels)), dtype=np.int64)
        sets = np.zeros((time, len(self.levels) + 1), dtype=np.int64)
        before = after = np.zeros(time, dtype=np.int64)
        for i, level in enumerate(self.levels):
            rows = [*level.actions.tolist(), list(range(level.size))]
            acts = self._lookup(level, i, before, after, letters).tolist()
            walk = accumulate(acts, lambda x, act: rows[act][x], initial=self.start[i])  # noqa: B023
            track = np.fromiter(walk, dtype=np.int64, count=time + 1)
            labels[:, i] = track[1:]
            before = self._refine(before, track[:-1], i)
            after = self._refine(after, track[1:], i)
            sets[:, i + 1] = after
        return CascadeRun(labels, sets, self._state[after])

    def verify(self) -> int:
        """Prove from the tables alone that the cascade emulates the machine, for all words.

        Follows every triple (T, T', w) that can occur, from (X, X, w) down, and checks that each
        context acts as a permutation or a reset, that it leads to sets that exist, and that the
        last sets satisfy T' = {q·w} for T = {q}. Returns the number of triples checked at the end;
        raises `AssertionError` at the first that fails.
        """
        if self.decode(self.start) != 0:
            raise AssertionError("the start labels do not code the start state")
        k = self.machine.num_letters
        triples = np.stack([np.zeros(k), np.zeros(k), np.arange(k)], axis=1).astype(np.int64)
        for i, level in enumerate(self.levels):
            _check_actions(level, i)
            touched = (self.active[triples[:, :2]] == i).any(axis=1)
            before, after, letter = triples[touched].T
            acts = self._lookup(level, i, before, after, letter)
            rows = np.concatenate([level.actions, np.arange(level.size)[None, :]])[acts]
            labels = np.broadcast_to(np.arange(level.size), rows.shape)
            next_before = self._refine(before[:, None], labels, i)
            next_after = self._refine(after[:, None], rows, i)
            possible = next_before >= 0
            if (next_after[possible] < 0).any():
                raise AssertionError(f"level {i}: an action leads to a label that codes no set")
            letters = np.broadcast_to(letter[:, None], rows.shape)
            reached = np.stack([next_before, next_after, letters], axis=-1)[possible]
            triples = np.unique(np.concatenate([triples[~touched], reached]), axis=0)
        q, after_q = self._state[triples[:, 0]], self._state[triples[:, 1]]
        if (q < 0).any() or (after_q < 0).any():
            raise AssertionError("the last level leaves a set of several states")
        if not (self.machine.delta[q, triples[:, 2]] == after_q).all():
            raise AssertionError("the cascade disagrees with the machine's table")
        return len(triples)

    def _lookup(
        self, level: Level, i: int, before: IntArray, after: IntArray, letter: IntArray
    ) -> IntArray:
        """The action of each triple as a row of `actions`, or -1 (do nothing)."""
        size, k = len(self.sets), self.machine.num_letters
        known = (level.before * size + level.after) * k + level.letter
        wanted = (before * size + after) * k + letter
        acts = np.full(wanted.shape, -1, dtype=np.int64)
        active = self.active[after] == i
        place = np.minimum(np.searchsorted(known, wanted[active]), len(known) - 1)
        if not (known[place] == wanted[active]).all():
            raise AssertionError(f"level {i}: a context that occurs has no action")
        acts[active] = level.action[place]
        return acts

    def _refine(self, sets: IntArray, labels: IntArray, i: int) -> IntArray:
        return np.where(self.active[sets] == i, self.child[sets, labels], sets)


def build_cascade(
    machine: Machine,
    sets: Sequence[tuple[int, ...]],
    active: Sequence[int],
    children: Sequence[Mapping[int, int]],
    sizes: Sequence[int],
    act: Callable[[int, int, int], Action],
) -> Cascade:
    """Follow all triples (T, T', w) from (X, X, w) down, asking `act` where T' is active.

    `children[T]` maps the labels of T to the sets they refine it to; `act(T, T', w)` is the action
    of the level where T' is active. Shared by the decomposition algorithms.
    """
    depth = len(sizes)
    waiting: list[dict[tuple[int, int, int], None]] = [{} for _ in range(depth + 1)]
    for letter in range(machine.num_letters):
        waiting[active[0]][0, 0, letter] = None
    levels = []
    contexts = 0
    for i in range(depth):
        found: list[tuple[int, int, int, Action]] = []
        for before, after, letter in sorted(waiting[i]):
            pairs: list[tuple[int, int]]
            if active[after] != i:
                pairs = [(c, after) for c in children[before].values()]
            else:
                action = act(before, after, letter)
                found.append((before, after, letter, action))
                below = children[after]
                if active[before] != i:
                    assert isinstance(action, int)
                    pairs = [(before, below[action])]
                elif isinstance(action, int):
                    pairs = [(c, below[action]) for c in children[before].values()]
                else:
                    pairs = [(c, below[action[x]]) for x, c in children[before].items()]
            for pair in pairs:
                waiting[min(active[pair[0]], active[pair[1]])][*pair, letter] = None
        contexts += len(found)
        if contexts + sum(map(len, waiting[i + 1 : depth])) > MAX_CONTEXTS:
            raise too_large(
                f"contexts of a cascade for {machine.num_states} states",
                contexts + sum(map(len, waiting[i + 1 : depth])),
                MAX_CONTEXTS,
                smaller(machine),
            )
        waiting[i].clear()
        levels.append(_level(sizes[i], found))
    child = np.full((len(sets), max(sizes, default=1)), -1, dtype=np.int64)
    for number, refined in enumerate(children):
        for label, target in refined.items():
            child[number, label] = target
    where = np.array(active, dtype=np.int64)
    draft = Cascade(machine, tuple(levels), tuple(sets), where, child, (0,) * depth)
    return Cascade(machine, tuple(levels), tuple(sets), where, child, draft.encode(0))


def _level(size: int, found: list[tuple[int, int, int, Action]]) -> Level:
    number: dict[Action, int] = {}
    action = [number.setdefault(act, len(number)) for _, _, _, act in found]
    rows = [(act,) * size if isinstance(act, int) else act for act in number]
    resets = [act if isinstance(act, int) else -1 for act in number]
    triples = np.array([entry[:3] for entry in found], dtype=np.int64).reshape(len(found), 3)
    before, after, letter = np.ascontiguousarray(triples.T)
    return Level(
        size,
        before,
        after,
        letter,
        np.array(action, dtype=np.int64),
        np.array(rows, dtype=np.int64).reshape(len(rows), size),
        np.array(resets, dtype=np.int64),
    )


def _check_actions(level: Level, i: int) -> None:
    labels = np.arange(level.size)
    permutes = (np.sort(level.actions, axis=1) == labels).all(axis=1)
    constant = (level.actions == level.resets[:, None]).all(axis=1)
    if not np.where(level.resets < 0, permutes, constant).all():
        raise AssertionError(f"level {i}: an action is neither a permutation nor a reset")
