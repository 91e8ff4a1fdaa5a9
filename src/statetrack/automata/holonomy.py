"""Algorithm H: the holonomy decomposition (Eilenberg; Egri-Nagy and Nehaniv, arXiv:1508.06345).

Its groups divide the transition monoid, so it is the decomposition to classify with and the one for
diagonal models. The number of levels is the height of the machine: often below n - 1, sometimes
well above it; a level can have more labels than the machine has states.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from statetrack.automata.cascade import Action, Cascade, build_cascade
from statetrack.automata.images import ImageGraph, image_classes, image_graph, smaller
from statetrack.automata.limits import MAX_IMAGES, MAX_PAIRS, too_large
from statetrack.automata.machine import Machine


def holonomy(
    machine: Machine,
    labels: Literal["reuse", "disjoint"] = "reuse",
    *,
    limit: int = MAX_IMAGES,
) -> Cascade:
    """The holonomy decomposition of a machine.

    A set P lies below R when P is inside R·s for some word s; sets below each other form a class;
    the height of a class is the longest chain below it that ends in single states. Level i refines
    the sets of height h(X) - i to their tiles, the largest image sets inside them.

    Args:
        labels: classes of one height share labels (`"reuse"`, the smallest levels), or have their
            own (`"disjoint"`): then the permutations of a level generate no group larger than those
            of the monoid, which aperiodic, 2-group and solvable constructions rely on.
        limit: image sets beyond which it stops with a `ValueError`.

    >>> from statetrack.automata.machine import Machine
    >>> holonomy(Machine.from_regex("(ab)*", "ab")).sizes
    (2, 2)
    """
    if labels not in ("reuse", "disjoint"):
        raise ValueError(f"labels is 'reuse' or 'disjoint', got {labels!r}")
    graph = image_graph(machine, singletons=True, limit=limit)
    number = {states: i for i, states in enumerate(graph.sets)}
    height = [0] * len(graph.sets)
    tiles: list[tuple[int, ...]] = [()] * len(graph.sets)
    classes = image_classes(machine, graph)
    pairs = 0
    for group in sorted(classes, key=lambda c: len(graph.sets[c.members[0]])):
        root = group.members[0]
        inside = set(group.members)
        below_root = graph.contained_in(root).tolist()
        pairs += len(below_root)
        if pairs > MAX_PAIRS:
            raise too_large(
                f"nested pairs of image sets of a machine of {machine.num_states} states",
                pairs,
                MAX_PAIRS,
                smaller(machine),
            )
        tiles[root] = _maximal(graph, below_root)
        position = {q: i for i, q in enumerate(graph.sets[root])}
        for p in group.members[1:]:
            forward = group.forward[p]
            tiles[p] = tuple(
                number[tuple(sorted(forward[position[q]] for q in graph.sets[tile]))]
                for tile in tiles[root]
            )
        below = {t for p in group.members for t in graph.step[p] if t not in inside}
        top = 1 + max(height[t] for t in below.union(tiles[root]))
        for p in group.members:
            height[p] = top

    depth = height[0]
    sizes = [0] * depth
    offset = {}
    for group in sorted(classes, key=lambda c: c.members[0]):
        root = group.members[0]
        i = depth - height[root]
        start = sizes[i] if labels == "disjoint" else 0
        offset.update(dict.fromkeys(group.members, start))
        sizes[i] = max(sizes[i], start + len(tiles[root]))
    children = [
        {offset[p] + j: tile for j, tile in enumerate(found)} if found else {}
        for p, found in enumerate(tiles)
    ]
    label_of = [{tile: label for label, tile in refined.items()} for refined in children]

    def act(before: int, after: int, letter: int) -> Action:
        moved = graph.step[before][letter]
        if moved == after and height[before] == height[after]:
            images = list(range(sizes[depth - height[after]]))
            for label, tile in children[before].items():
                images[label] = label_of[after][graph.step[tile][letter]]
            return tuple(images)
        holds = ((graph.packed[moved] & ~graph.packed[list(tiles[after])]) == 0).all(axis=1)
        return offset[after] + int(np.argmax(holds))

    active = [depth - h for h in height]
    return build_cascade(machine, graph.sets, active, children, sizes, act)


def _maximal(graph: ImageGraph, candidates: list[int]) -> tuple[int, ...]:
    """The candidates that lie in no other candidate, in the order of their states."""
    rest = np.array(sorted(candidates, key=lambda c: (-len(graph.sets[c]), graph.sets[c])))
    found = []
    while rest.size:
        largest = int(rest[0])
        found.append(largest)
        outside = ((graph.packed[rest] & ~graph.packed[largest]) != 0).any(axis=1)
        rest = rest[outside]
    return tuple(sorted(found, key=lambda c: graph.sets[c]))
