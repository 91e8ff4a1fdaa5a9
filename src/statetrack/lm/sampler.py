"""Which tokens a step reads: a function of the seed and the step, and of nothing else.

A text of n tokens has (n - 1) // T windows of T tokens with the token after them. Every window is
read once before any is read again. Their order is a permutation that is computed, not stored, so a
sampler has no state, and step 10⁶ costs what step 0 costs.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Sampler", "Window", "permuted"]

Ints = npt.NDArray[np.uint64]
ROUNDS = 6
SLOTS = 1024
"""Shares of a mixture are multiples of 1 / SLOTS."""


@dataclass(frozen=True)
class Window:
    """`index` counts the windows of a domain."""

    domain: str
    index: int


class Sampler:
    """Row r of step s reads the window that `window(s, r)` names.

    Args:
        windows: how many each domain has.
        batch: rows of a step.
        mixture: shares of the domains; left out, every window of every domain is read as often.
        streams: row r goes through one stretch of text, so that its window at a step continues
            that of the step before; otherwise windows are drawn in random order.

    >>> sampler = Sampler({"code": 6, "prose": 2}, batch=4, seed=0)
    >>> first = [sampler.window(0, row) for row in range(4)]
    >>> len({sampler.window(step, row) for step in (0, 1) for row in range(4)})
    8
    >>> first == [Sampler({"code": 6, "prose": 2}, batch=4, seed=0).window(0, r) for r in range(4)]
    True
    """

    def __init__(
        self,
        windows: Mapping[str, int],
        *,
        batch: int,
        seed: int,
        mixture: Mapping[str, float] | None = None,
        streams: bool = False,
    ) -> None:
        self.windows = {name: windows[name] for name in sorted(windows)}
        self.batch, self.seed, self.streams = batch, seed, streams
        self._names = list(self.windows)
        self._ends = np.cumsum(list(self.windows.values()))
        self.total = int(self._ends[-1]) if len(self._ends) else 0
        self._table = None if mixture is None else _slots(self._names, mixture, seed)

    def window(self, step: int, row: int) -> Window:
        if self.streams:
            return self._along(step, row)
        index = step * self.batch + row
        if self._table is None:
            epoch, place = divmod(index, self.total)
            return self._named(permuted(place, self.total, f"{self.seed} {epoch}"))
        round_, slot = divmod(index, SLOTS)
        which = int(self._table.slots[slot])
        seen = round_ * int(self._table.counts[which]) + int(self._table.before[slot])
        name = self._names[which]
        epoch, place = divmod(seen, self.windows[name])
        return Window(name, permuted(place, self.windows[name], f"{self.seed} {name} {epoch}"))

    def _along(self, step: int, row: int) -> Window:
        """The text is cut into `batch` stretches; a later epoch begins each elsewhere."""
        each = self.total // self.batch
        epoch, place = divmod(step, each)
        stretch = permuted(row, self.batch, f"{self.seed} stretches {epoch}")
        return self._named(stretch * each + place)

    def _named(self, index: int) -> Window:
        which = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[which - 1]) if which else 0
        return Window(self._names[which], index - before)

    def begins(self, step: int) -> bool:
        """Whether the rows of a step continue nothing: where streams begin, or begin anew."""
        return not self.streams or step % (self.total // self.batch) == 0


def permuted(place: int, size: int, key: str) -> int:
    """Where a permutation of 0 ... size - 1, drawn by `key`, sends `place`.

    A Feistel network on the least even number of bits that holds `size`; a result beyond `size` is
    sent on until it is one within.

    >>> sorted(permuted(i, 10, "a") for i in range(10)) == list(range(10))
    True
    """
    assert 0 <= place < size
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(ROUNDS):
            text = f"{key} {turn} {right}".encode()
            drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
            left, right = right, left ^ (drawn & mask)
        place = (left << half) | right
        if place < size:
            return place


@dataclass(frozen=True)
class _Table:
    """Which domain each of SLOTS rows reads, and how often it was read before in the round."""

    slots: Sequence[int]
    before: Sequence[int]
    counts: Sequence[int]


def _slots(names: Sequence[str], mixture: Mapping[str, float], seed: int) -> _Table:
    shares = [max(0.0, float(mixture.get(name, 0.0))) for name in names]
    exact = [SLOTS * share / sum(shares) for share in shares]
    counts = [int(x) for x in exact]
    rest = sorted(range(len(names)), key=lambda i: (counts[i] - exact[i], i))
    for i in rest[: SLOTS - sum(counts)]:
        counts[i] += 1
    in_order = [i for i, count in enumerate(counts) for _ in range(count)]
    slots = [in_order[permuted(i, SLOTS, f"{seed} mixture")] for i in range(SLOTS)]
    seen = [0] * len(names)
    before = []
    for i in slots:
        before.append(seen[i])
        seen[i] += 1
    return _Table(slots, before, counts)
