"""One line for whoever watches, where something was wrong and could be helped."""

import sys

__all__ = ["warn"]


def warn(text: str) -> None:
    """Prints `statetrack: text` to stderr."""
    print(f"statetrack: {text}", file=sys.stderr, flush=True)
