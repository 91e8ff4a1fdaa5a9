"""A small part of Mermaid, drawn as SVG: boxes with one word, and arrows that lead upwards."""

import html

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

Arrow = tuple[str, str]

BOX, GAP, ROW, WAY = (104, 34), 16, 80, 26
"""Width and height of a box, the gap beside it, the height of a row, the width of a way."""


class Flowchart(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        first, *lines = [line.strip() for line in self.content if line.strip()]
        if first != "flowchart BT":
            raise self.error(f"this site draws 'flowchart BT' alone, not {first!r}")
        arrows = [tuple(line.split(" --> ")) for line in lines]
        wrong = [line for line, arrow in zip(lines, arrows, strict=True) if len(arrow) != 2]
        if wrong:
            raise self.error(f"this site draws lines 'a --> b' alone, not {wrong[0]!r}")
        return [nodes.raw("", drawn([(low, high) for low, high in arrows]), format="html")]


def heights(arrows: list[Arrow]) -> dict[str, int]:
    """The row of each box: above all that lead to it."""
    height = {name: 0 for arrow in arrows for name in arrow}
    for _ in height:
        for low, high in arrows:
            height[high] = max(height[high], height[low] + 1)
    return height


def ways(arrows: list[Arrow], height: dict[str, int]) -> dict[Arrow, list[str]]:
    """For each arrow its places row by row: two boxes, and a way between boxes in other rows."""
    return {
        (low, high): [
            low,
            *(f"{low} {high} {row}" for row in range(height[low] + 1, height[high])),
            high,
        ]
        for low, high in arrows
    }


def middles(rows: list[list[str]], boxes: dict[str, int]) -> dict[str, float]:
    """Where each place of a row has its middle, from the middle of the picture."""
    found = {}
    for row in rows:
        widths = [BOX[0] + GAP if name in boxes else WAY for name in row]
        left = -sum(widths) / 2
        for name, width in zip(row, widths, strict=True):
            found[name] = left + width / 2
            left += width
    return found


def drawn(arrows: list[Arrow]) -> str:
    height = heights(arrows)
    paths = ways(arrows, height)
    rows: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for path in paths.values():
        for name, level in zip(path, range(height[path[0]], len(rows)), strict=False):
            if name not in rows[level]:
                rows[level].append(name)
    near: dict[str, list[str]] = {}
    for path in paths.values():
        for one, other in zip(path, path[1:], strict=False):
            near.setdefault(one, []).append(other)
            near.setdefault(other, []).append(one)
    for _ in range(12):  # each place moves towards the middle of its neighbours
        at = middles(rows, height)
        for row in rows:
            row.sort(key=lambda name: sum(at[other] for other in near[name]) / len(near[name]))
    at = middles(rows, height)
    width = 2 * max(map(abs, at.values())) + BOX[0] + GAP
    place = {
        name: (width / 2 + at[name], (len(rows) - level) * ROW - ROW / 2)
        for level, row in enumerate(rows)
        for name in row
    }
    return svg(paths, {name: place[name] for name in height}, place, width, len(rows) * ROW)


def svg(
    paths: dict[Arrow, list[str]],
    boxes: dict[str, tuple[float, float]],
    place: dict[str, tuple[float, float]],
    width: float,
    height: float,
) -> str:
    parts = []
    half = BOX[1] / 2
    for path in paths.values():
        x, y = place[path[0]]
        line = f"M{x} {y - half}"
        y -= half
        for name in path[1:]:
            u, v = place[name]
            end = v + half + 5
            line += f"C{x} {(y + end) / 2} {u} {(y + end) / 2} {u} {end}"
            x, y = u, end
            if name != path[-1]:
                line += f"L{u} {v - half}"
                y = v - half
        parts.append(f'<path d="{line}" class="arrow"/>')
    for name, (x, y) in boxes.items():
        left, top = x - BOX[0] / 2, y - half
        parts.append(f'<rect x="{left}" y="{top}" width="{BOX[0]}" height="{BOX[1]}" rx="6"/>')
        parts.append(f'<text x="{x}" y="{y + 5}">{html.escape(name)}</text>')
    told = "; ".join(f"{high} may import {low}" for low, high in paths)
    return (
        '<div class="flowchart" tabindex="0" role="region" aria-label="Who may import whom">'
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'aria-label="{html.escape(told)}"><defs><marker id="head" viewBox="0 0 8 8" refX="7" '
        'refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
        f"</defs>{''.join(parts)}</svg></div>"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Flowchart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
