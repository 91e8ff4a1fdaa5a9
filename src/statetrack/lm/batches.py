"""What one process reads at one step: its rows of the batch, as windows or as packed documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from statetrack import ops
from statetrack._typing import Int
from statetrack.lm.sampler import Sampler, Window
from statetrack.lm.shards import Manifest, Part

__all__ = ["Reader", "Rows", "packing_of_documents", "rows_of"]


@dataclass(frozen=True)
class Rows:
    """Some rows of a step: every token, and the one after it. `domains` has that of each row."""

    tokens: Int[Tensor, "rows time"]
    targets: Int[Tensor, "rows time"]
    domains: Int[Tensor, "rows"]

    def segment(self, index: int, of: int) -> "Rows":
        """The same rows, cut into `of` equal parts in time: part `index` of each."""
        tokens, targets = (x.chunk(of, dim=1)[index] for x in (self.tokens, self.targets))
        return Rows(tokens, targets, self.domains)


class Reader:
    """The rows of every step, from the shards of a split."""

    def __init__(self, manifest: Manifest, split: str, length: int) -> None:
        self.length, self.end = length, manifest.end
        self.parts = {name: Part(manifest, split, name) for name in manifest.domains(split)}
        self.domains = list(self.parts)

    @property
    def windows(self) -> dict[str, int]:
        """How many each domain has; those that have none are left out."""
        found = {name: (len(part) - 1) // self.length for name, part in self.parts.items()}
        return {name: count for name, count in found.items() if count > 0}

    def rows(self, windows: Sequence[Window]) -> Rows:
        found = np.stack([self._read(one) for one in windows])
        tokens = torch.from_numpy(found)
        places = torch.tensor([self.domains.index(one.domain) for one in windows])
        return Rows(tokens[:, :-1], tokens[:, 1:], places)

    def _read(self, window: Window) -> npt.NDArray[np.int64]:
        return self.parts[window.domain].read(window.index * self.length, self.length + 1)

    def where(self, window: Window) -> str:
        """The place of a window, in words."""
        return self.parts[window.domain].where(window.index * self.length, self.length)


def rows_of(sampler: Sampler, step: int, first: int, count: int) -> list[Window]:
    """The windows of rows `first` to `first + count - 1`."""
    return [sampler.window(step, row) for row in range(first, first + count)]


def packing_of_documents(
    tokens: Int[Tensor, "rows time"], end: int
) -> tuple[ops.Packing, Int[Tensor, "rows"], Int[Tensor, "rows"]]:
    """All rows as one row of sequences: the token that ends a document begins the next sequence.

    So every sequence of a document is asked for its first token, from the end of the one before.
    Also the first and the last sequence of each row.

    >>> packing, first, last = packing_of_documents(torch.tensor([[5, 0, 6, 7], [0, 8, 9, 0]]), 0)
    >>> packing.offsets.tolist(), packing.longest
    ([[0, 1, 4, 7, 8]], 3)
    >>> first.tolist(), last.tolist()
    ([0, 2], [1, 3])
    """
    begins = tokens == end
    begins[:, 0] = True
    counts = begins.sum(dim=1).cumsum(0)
    last = counts - 1
    first = torch.cat([counts.new_zeros(1), counts[:-1]])
    offsets = torch.cat([begins.flatten().nonzero()[:, 0], torch.tensor([tokens.numel()])])
    longest = int(offsets.diff().max())
    return ops.Packing(offsets[None].int(), longest), first, last
