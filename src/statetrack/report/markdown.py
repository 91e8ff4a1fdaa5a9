"""Tables in Markdown."""

from collections.abc import Iterable

__all__ = ["table_line"]


def table_line(columns: Iterable[str]) -> str:
    """A line of a table; a bar in a column stays one.

    >>> print(table_line(["(a|b)*", "2"]))
    | (a\\|b)* | 2 |
    """
    return "| " + " | ".join(column.replace("|", "\\|") for column in columns) + " |"
