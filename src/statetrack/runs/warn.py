"""One line for whoever watches, where something was wrong and could be helped."""

import sys

__all__ = ["warn"]


def warn(text: str) -> None:
    """Prints `statetrack: text` to stderr, in one line."""
    line = " ".join(part.strip() for part in text.splitlines())
    print(f"statetrack: {line}", file=sys.stderr, flush=True)
