"""A state diagram as SVG, drawn here: no program and no package is needed.

States stand in columns by their distance from the start. Arrows between columns are curves; an
arrow back bends below, one from a state to itself is a loop above it.
"""

from __future__ import annotations

from html import escape
from typing import Any

MAX_DRAWN = 40
"""States of the largest machine that is drawn."""

RADIUS, ACROSS, DOWN, MARGIN = 20, 130, 90, 60


def diagram(delta: list[list[int]], letters: list[str], says: list[Any]) -> str:
    """The SVG of a table; `says` are booleans (accepting or not) or what a state says.

    >>> diagram([[0]], ["a"], [True]).startswith("<svg")
    True
    """
    place = _places(delta)
    width = max(x for x, _ in place) + MARGIN + RADIUS
    height = max(y for _, y in place) + MARGIN + RADIUS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z"/></marker></defs>',
    ]
    for state, row in enumerate(delta):
        for target in sorted(set(row)):
            names = [a for a, end in zip(letters, row, strict=True) if end == target]
            label = ",".join(names[:6]) + (",…" if len(names) > 6 else "")
            parts.append(_arrow(place[state], place[target], label))
    x, y = place[0]
    parts.append(_path(f"M{x - RADIUS - 25} {y}L{x - RADIUS - 2} {y}"))
    for state, (x, y) in enumerate(place):
        said = says[state]
        parts.append(f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="white" stroke="black"/>')
        if said is True:
            ring = RADIUS - 4
            parts.append(f'<circle cx="{x}" cy="{y}" r="{ring}" fill="none" stroke="black"/>')
        parts.append(_text(x, y + 4, str(state)))
        if not isinstance(said, bool):
            parts.append(_text(x, y + RADIUS + 13, f"/{said}"))
    return "\n".join([*parts, "</svg>"])


def _places(delta: list[list[int]]) -> list[tuple[int, int]]:
    """Where each state stands: a column for each distance from the start."""
    column = {0: 0}
    queue = [0]
    for state in queue:
        for target in delta[state]:
            if target not in column:
                column[target] = column[state] + 1
                queue.append(target)
    rows = [0] * (max(column.values()) + 1)
    place = [(0, 0)] * len(delta)
    tallest = max(list(column.values()).count(c) for c in column.values())
    for state in queue:
        c = column[state]
        count = list(column.values()).count(c)
        top = (tallest - count) * DOWN // 2
        place[state] = (MARGIN + c * ACROSS, MARGIN + top + rows[c] * DOWN)
        rows[c] += 1
    return place


def _arrow(start: tuple[int, int], end: tuple[int, int], label: str) -> str:
    (x, y), (u, v) = start, end
    if start == end:
        top = y - RADIUS
        loop = _path(
            f"M{x - 8} {top + 2}C{x - 26} {top - 30} {x + 26} {top - 30} {x + 8} {top + 2}"
        )
        return loop + _text(x, top - 26, label)
    length = ((u - x) ** 2 + (v - y) ** 2) ** 0.5
    along, across = (u - x) / length, (v - y) / length
    bend = 16 + 0.12 * length  # to the right of the way, so that there and back part
    mx, my = (x + u) / 2 - across * bend, (y + v) / 2 + along * bend
    a, b = _edge(x, y, mx, my), _edge(u, v, mx, my)
    curve = _path(f"M{a[0]:.0f} {a[1]:.0f}Q{mx:.0f} {my:.0f} {b[0]:.0f} {b[1]:.0f}")
    tx, ty = (x + u) / 2 - across * bend * 0.75, (y + v) / 2 + along * bend * 0.75
    return curve + _text(round(tx), round(ty) + 4, label)


def _edge(x: int, y: int, mx: float, my: float) -> tuple[float, float]:
    """Where the circle around (x, y) is met on the way to (mx, my)."""
    length = ((mx - x) ** 2 + (my - y) ** 2) ** 0.5
    return x + (mx - x) * RADIUS / length, y + (my - y) * RADIUS / length


def _path(d: str) -> str:
    return f'<path d="{d}" fill="none" stroke="black" marker-end="url(#head)"/>'


def _text(x: int, y: int, text: str) -> str:
    halo = 'paint-order="stroke" stroke="white" stroke-width="4"'
    return f'<text x="{x}" y="{y}" text-anchor="middle" {halo}>{escape(text)}</text>'
