"""The nearest of what there is, for whoever mistyped."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """ "did you mean 'x'? " if something of `known` is near to `name`, else nothing.

    How near is a number from 0 to 1, and `cutoff` the least of it.

    >>> did_you_mean("partiy", ["parity", "s5"])
    "did you mean 'parity'? "
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""
