"""Sets of states and how letters move them: the graph behind every fact about the monoid.

Nodes are the images of the full set X under words (at most 2^n - 1, often far fewer), optionally
with all singletons; the arrow of letter a goes from P to P·a = {q·a : q in P}. Two sets in one
strongly connected class have the same size, and words between them are bijections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statetrack.automata._graph import components
from statetrack.automata.limits import MAX_IMAGE_BITS, MAX_IMAGES, too_large
from statetrack.automata.machine import Machine


@dataclass(frozen=True)
class ImageGraph:
    """The sets of states reachable from X; set 0 is X itself.

    Attributes:
        sets: the sets, each a sorted tuple of states.
        step: `step[P][a]` is the number of the set P·a.
        packed: `[sets, words]` uint64, the same sets as bits, for fast inclusion tests.
    """

    sets: tuple[tuple[int, ...], ...]
    step: tuple[tuple[int, ...], ...]
    packed: NDArray[np.uint64]

    def contained_in(self, number: int) -> NDArray[np.int64]:
        """The numbers of the sets that lie properly inside a set."""
        inside = ((self.packed & ~self.packed[number]) == 0).all(axis=1)
        inside[number] = False
        return np.flatnonzero(inside)


@dataclass(frozen=True)
class ImageClass:
    """A strongly connected class of sets, seen from its first set P0.

    Attributes:
        members: the numbers of its sets, P0 first, in breadth-first order.
        forward: for each member P the states f_P(p_0), f_P(p_1), ... of P, where p_0 < p_1 < ...
            are the states of P0 and f_P is the bijection of a shortest word from P0 to P.
        back: for each member P, where a shortest word from P to P0 sends each state of P, as a
            position in P0.
        arrived: for each member but P0, the (set, letter) from which that first word reaches it.
        leaves: for each member but P0, the (letter, set) by which that second word leaves it.
    """

    members: tuple[int, ...]
    forward: dict[int, tuple[int, ...]]
    back: dict[int, dict[int, int]]
    arrived: dict[int, tuple[int, int]]
    leaves: dict[int, tuple[int, int]]

    def word_to(self, member: int) -> tuple[int, ...]:
        """The word from P0 to a member whose bijection is `forward`."""
        word = []
        while member in self.arrived:
            member, letter = self.arrived[member]
            word.append(letter)
        return tuple(reversed(word))

    def word_back(self, member: int) -> tuple[int, ...]:
        """The word from a member to P0 whose bijection is `back`."""
        word = []
        while member in self.leaves:
            letter, member = self.leaves[member]
            word.append(letter)
        return tuple(word)


def image_graph(
    machine: Machine, *, singletons: bool = False, limit: int = MAX_IMAGES
) -> ImageGraph:
    """All images X·w (and all singletons if asked), numbered breadth-first; X is number 0.

    >>> from statetrack.automata.machine import Machine
    >>> image_graph(Machine.from_regex("(ab)*", "ab")).sets
    ((0, 1, 2), (1, 2), (0, 2), (2,))
    """
    n, k = machine.delta.shape
    _check_bits(n if singletons else 1, machine)
    start = np.ones((1, n), dtype=bool)
    if singletons and n > 1:
        start = np.concatenate([start, np.eye(n, dtype=bool)])
    number = {key: i for i, key in enumerate(_keys(start))}
    rows = [start]
    steps: list[NDArray[np.int64]] = []
    frontier = start
    while len(frontier):
        targets = np.empty((len(frontier), k), dtype=np.int64)
        fresh: list[NDArray[np.bool_]] = []
        which, state = np.nonzero(frontier)
        for letter in range(k):
            moved = np.zeros_like(frontier)
            moved[which, machine.delta[state, letter]] = True
            for i, key in enumerate(_keys(moved)):
                if key not in number:
                    number[key] = len(number)
                    fresh.append(moved[i])
                targets[i, letter] = number[key]
            if len(number) > limit:
                raise too_large(
                    f"image sets of a machine of {n} states",
                    len(number),
                    limit,
                    smaller(machine),
                )
        _check_bits(len(number), machine)
        steps.append(targets)
        frontier = np.array(fresh, dtype=bool).reshape(len(fresh), n)
        rows.append(frontier)
    everything = np.concatenate(rows)
    sets = tuple(tuple(np.flatnonzero(row).tolist()) for row in everything)
    step = tuple(map(tuple, np.concatenate(steps).tolist()))
    return ImageGraph(sets, step, _packed(everything))


def smaller(machine: Machine) -> str:
    """The way out of a limit that grows with the states, if there is one."""
    least = machine.minimal().num_states
    if least < machine.num_states:
        return f"minimise the machine first: {least} of its states are left"
    return "the machine is minimal, so only one with fewer states or letters would do"


def _check_bits(sets: int, machine: Machine) -> None:
    states = machine.num_states
    if sets * states > MAX_IMAGE_BITS:
        raise too_large(
            f"bits of the image sets of a machine of {states} states",
            sets * states,
            MAX_IMAGE_BITS,
            smaller(machine),
        )


def image_classes(machine: Machine, graph: ImageGraph) -> tuple[ImageClass, ...]:
    """The strongly connected classes of the sets with two or more states, successors first.

    Arrows between classes lead from later to earlier ones (reverse topological order).
    """
    delta = machine.delta.tolist()
    return tuple(
        _image_class(graph, component, delta)
        for component in components(graph.step)
        if len(graph.sets[component[0]]) > 1
    )


def _image_class(graph: ImageGraph, component: Sequence[int], delta: list[list[int]]) -> ImageClass:
    root = min(component)
    inside = set(component)
    forward = {root: graph.sets[root]}
    arrived: dict[int, tuple[int, int]] = {}
    members = [root]
    arrows_in: dict[int, list[tuple[int, int]]] = {p: [] for p in component}
    for p in members:
        for letter, target in enumerate(graph.step[p]):
            if target in inside:
                arrows_in[target].append((p, letter))
                if target not in forward:
                    forward[target] = tuple([delta[q][letter] for q in forward[p]])
                    arrived[target] = (p, letter)
                    members.append(target)
    back = {root: {q: i for i, q in enumerate(graph.sets[root])}}
    leaves: dict[int, tuple[int, int]] = {}
    queue = [root]
    for target in queue:
        for p, letter in arrows_in[target]:
            if p not in back:
                back[p] = {q: back[target][delta[q][letter]] for q in graph.sets[p]}
                leaves[p] = (letter, target)
                queue.append(p)
    return ImageClass(tuple(members), forward, back, arrived, leaves)


def _keys(rows: NDArray[np.bool_]) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(rows, axis=1)]


def _packed(rows: NDArray[np.bool_]) -> NDArray[np.uint64]:
    width = -(-rows.shape[1] // 64) * 64
    padded = np.zeros((len(rows), width), dtype=bool)
    padded[:, : rows.shape[1]] = rows
    return np.packbits(padded, axis=1).view(np.uint64)
