"""How large things may get before a function stops with one clear line.

Each limit is a plain number, chosen so that the work below it takes seconds and at most a few
hundred megabytes. A function that meets its limit raises `ValueError` naming the size it hit.
"""

from __future__ import annotations

MAX_TABLE = 2**24
"""Entries (states x letters) of a transition table."""

MAX_TOKEN_TABLE = 2**25
"""Entries (tokens of a vocabulary x states) of a machine that reads tokens: 128 MB."""

MAX_REGEX = 10_000
"""Letters of a regular expression once its counted repetitions are written out."""

MAX_REGEX_STATES = 2**12
"""States of the deterministic automaton of a regular expression, before minimisation."""

MAX_IMAGES = 2**16
"""Sets of states reachable from the full set (there can be 2^n - 1 of them)."""

MAX_IMAGE_BITS = 2**22
"""Image sets x states: what the sets themselves take."""

MAX_PAIRS = 2**21
"""Image sets inside the first set of each class, whose largest are its tiles."""

MAX_CONTEXTS = 2**19
"""Letters (T, T', w) of all the levels of a cascade together."""

MAX_SUBSETS = 2**18
"""All sets of states, where points are dropped: machines of 18 states."""

MAX_DROP_CONTEXTS = 2**21
"""Letters of all the levels of a cascade by dropping points, which are made a level at a time."""

MAX_MONOID = 10**5
"""Elements of a transition monoid that is enumerated on request (there can be n^n of them)."""

MAX_CHAIN = 2**25
"""Numbers in the orbits of a stabiliser chain (points of the orbits x degree): 128 MB each way."""

MAX_GROUP_TABLE = 2**22
"""Entries (elements x letters) of the word problem of a group."""

MAX_DYCK = 2**20
"""Entries of the table of a machine of brackets, which is made state by state."""

MAX_STEPS = 2**20
"""Entries that a repeated pass over a machine's table may look at in all: about a second."""

MAX_SPLIT = 2**14
"""Order of a component's group that is split into layers of prime order."""

MAX_MINIMAL_DEGREE = 1000
"""Order of a group all of whose subgroups are listed to find its minimal degree."""


def too_large(what: str, hit: int, limit: int, way_out: str) -> ValueError:
    """The error of every limit: what grew, how far, where it had to stop, and what to do.

    >>> str(too_large("image sets", 17, 16, "minimise first"))
    'too large: image sets reached 17, the limit is 16; minimise first'
    """
    return ValueError(f"too large: {what} reached {hit}, the limit is {limit}; {way_out}")
