"""Accuracy against length, drawn with characters."""

import math
from collections.abc import Mapping

__all__ = ["bars"]

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*%#"


def bars(
    curve: Mapping[int, float],
    *,
    width: int = 64,
    height: int = 3,
    longest: int | None = None,
    unicode: bool = True,
) -> list[str]:
    """`height` lines of `width` columns: each column the mean of its lengths, from 0 to 1.

    Column c of w stands for the lengths in (c/w, (c+1)/w] times `longest`. Between two lengths the
    columns show the longer one, so few lengths make broad steps. Before the first and after the
    last one they are blank. Values below 0 are drawn as 0.

    >>> bars({1: 1.0, 2: 0.5, 3: 0.0}, width=3, height=1)
    ['█▄ ']
    >>> bars({2: 1.0, 4: 0.5}, width=8, height=1)
    ['   █▄▄▄▄']
    """
    symbols = BLOCKS if unicode else ASCII
    longest = max(curve, default=1) if longest is None else longest
    columns: list[list[float]] = [[] for _ in range(width)]
    for length, value in curve.items():
        columns[min(width - 1, math.ceil(length * width / longest) - 1)].append(value)
    first = next((at for at, column in enumerate(columns) if column), width)
    for at in reversed(range(first, width - 1)):
        columns[at] = columns[at] or columns[at + 1]
    steps = len(symbols) - 1
    filled = [
        round(min(1.0, max(0.0, sum(column) / len(column))) * height * steps) if column else 0
        for column in columns
    ]
    return [
        "".join(symbols[min(steps, max(0, level - row * steps))] for level in filled)
        for row in reversed(range(height))
    ]
