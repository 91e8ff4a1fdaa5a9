"""How results are printed: tables, numbers, pictures made of characters."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["LiveLine", "number", "picture", "stopped", "table"]

LINE_S = 10.0
"""Where there is no terminal: the least time between two lines of progress."""


def number(value: float | None, form: str = "{:z.3f}") -> str:
    """
    >>> number(0.25), number(None)
    ('0.250', '-')
    """
    return "-" if value is None else form.format(value)


NUMBER = re.compile(r"[-–]?|[-+]?[\d,.]+(e[-+]?\d+)?( ?%| s| to [-+]?[\d.]+)?")
"""A number, perhaps with a unit or as a range, or what is not there."""


def table(title: str, columns: list[str], rows: Sequence[list[str]]) -> None:
    """Columns as wide as they need to be: numbers are never cut, whatever the terminal.

    A column of numbers alone, with or without units, stands on the right.
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    numbers = [all(map(NUMBER.fullmatch, column)) for column in zip(*rows, strict=True)]
    lines = [columns, ["-" * width for width in widths], *rows]
    print(title)
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numbers, strict=True)
        ]
        print("  " + "  ".join(cells).rstrip())


def picture(curve: Mapping[int, float], *, longest: int | None = None, width: int = 64) -> None:
    """Accuracy against length, in blocks where the terminal has them."""
    from statetrack.experiments.picture import bars

    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    for line in bars(curve, longest=longest, unicode=unicode, width=width):
        print(f"  |{line}|")


def stopped(folder: Path, steps: int) -> str:
    """What became of a run that was interrupted: what is there is looked at, not assumed."""
    from statetrack.runs import checkpoints

    saved = checkpoints.saved(folder)
    if not saved:
        return "stopped before the first checkpoint; the same command starts anew"
    return f"stopped; saved at step {saved[0]} of {steps}, where the same command goes on"


class LiveLine:
    """Tells standard error: one line that changes on a terminal, now and then a line elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.told = time.monotonic()

    def __call__(self, text: str, *, last: bool = False) -> None:
        """Says `text`; the `last` one stays where it is."""
        if self.terminal:
            end = "\n" if last else ""
            print(f"\r\x1b[K{text}", end=end, file=sys.stderr, flush=True)
        elif last or time.monotonic() - self.told > LINE_S:
            self.told = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Makes room for a line of the result."""
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
