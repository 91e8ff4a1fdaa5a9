"""Strongly connected components, for image sets and for the silent arrows of an automaton."""

from __future__ import annotations

from collections.abc import Sequence


def components(step: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components, successors first (Tarjan's algorithm without recursion).

    >>> components([[1], [0, 2], []])
    [[2], [1, 0]]
    """
    index = [-1] * len(step)
    low = [0] * len(step)
    on_stack = [False] * len(step)
    stack: list[int] = []
    components: list[list[int]] = []
    count = 0
    for root in range(len(step)):
        if index[root] >= 0:
            continue
        path = [(root, iter(step[root]))]
        index[root] = low[root] = count
        count += 1
        stack.append(root)
        on_stack[root] = True
        while path:
            node, arrows = path[-1]
            for target in arrows:
                if index[target] < 0:
                    index[target] = low[target] = count
                    count += 1
                    stack.append(target)
                    on_stack[target] = True
                    path.append((target, iter(step[target])))
                    break
                if on_stack[target]:
                    low[node] = min(low[node], index[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack[component[-1]] = False
                    components.append(component)
    return components
