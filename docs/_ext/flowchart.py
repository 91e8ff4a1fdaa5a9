"""A small part of Mermaid, drawn as SVG: boxes with one word, and arrows that lead upwards."""

import html
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

BOX, GAP, ROW = (104, 34), 18, 84
"""Width and height of a box, the gap beside it, and the distance between rows."""


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
        return [nodes.raw("", drawn([(a, b) for a, b in arrows]), format="html")]


def rows_of(arrows: list[tuple[str, str]]) -> list[list[str]]:
    """Each box above all that lead to it; in a row, near what leads to it."""
    height = {name: 0 for arrow in arrows for name in arrow}
    for _ in height:
        for low, high in arrows:
            height[high] = max(height[high], height[low] + 1)
    rows: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for name in height:
        rows[height[name]].append(name)
    for _ in range(8):
        at = {name: place(row, index) for row in rows for index, name in enumerate(row)}
        for row in rows:
            near = {name: list(neighbours(name, arrows)) for name in row}
            row.sort(key=lambda name: sum(at[other] for other in near[name]) / len(near[name]))
    return rows


def place(row: list[str], index: int) -> float:
    """The middle of a box, in steps from the middle of the picture."""
    return index - (len(row) - 1) / 2


def neighbours(name: str, arrows: list[tuple[str, str]]) -> Iterator[str]:
    for low, high in arrows:
        if name in (low, high):
            yield low if name == high else high


def drawn(arrows: list[tuple[str, str]]) -> str:
    rows = rows_of(arrows)
    step = BOX[0] + GAP
    width = max(map(len, rows)) * step
    height = len(rows) * ROW
    at = {
        name: (width / 2 + place(row, i) * step, height - ROW / 2 - level * ROW)
        for level, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    parts = []
    for low, high in arrows:
        (x, y), (u, v) = at[low], at[high]
        start, end = y - BOX[1] / 2, v + BOX[1] / 2 + 5
        bend = (start + end) / 2
        parts.append(f'<path d="M{x} {start}C{x} {bend} {u} {bend} {u} {end}" class="arrow"/>')
    for name, (x, y) in at.items():
        left, top = x - BOX[0] / 2, y - BOX[1] / 2
        parts.append(f'<rect x="{left}" y="{top}" width="{BOX[0]}" height="{BOX[1]}" rx="6"/>')
        parts.append(f'<text x="{x}" y="{y + 5}">{html.escape(name)}</text>')
    told = "; ".join(f"{high} may import {low}" for low, high in arrows)
    return (
        f'<div class="flowchart" tabindex="0" role="region" aria-label="Who may import whom">'
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'aria-label="{html.escape(told)}"><defs><marker id="head" viewBox="0 0 8 8" refX="7" '
        'refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
        f"</defs>{''.join(parts)}</svg></div>"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Flowchart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
