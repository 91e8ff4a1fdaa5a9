"""The loss on held-out text while a model is pretrained: by domain, and by position at the end."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack._typing import Float, Int
from statetrack.lm.batches import Reader, Rows
from statetrack.lm.config import PretrainConfig
from statetrack.lm.sampler import Window
from statetrack.lm.shards import Manifest
from statetrack.runs.records import Record
from statetrack.training.executor import Judgement

__all__ = ["Judged", "Validation"]


class Validation:
    """The windows that a run is judged on: some of every domain, spread over its text."""

    def __init__(self, manifest: Manifest, config: PretrainConfig) -> None:
        settings = config.evaluation
        self.length = settings.length or config.length
        self.batch = settings.batch
        self.reader = Reader(manifest, "validation", self.length)
        self.domains = tuple(self.reader.domains)
        self.windows = [
            Window(name, place * count // wanted)
            for name, count in self.reader.windows.items()
            for wanted in [min(settings.windows, count)]
            for place in range(wanted)
        ]

    def batches(self, rank: int, world: int) -> Iterator[tuple[Rows, Int[Tensor, "rows"]]]:
        """The share of one process, as many batches for each; and whether each row counts."""
        for first in range(0, len(self.windows), self.batch * world):
            mine = range(first + rank * self.batch, first + (rank + 1) * self.batch)
            last = len(self.windows) - 1
            if world == 1:
                mine = range(first, min(first + self.batch, last + 1))
            rows = self.reader.rows([self.windows[min(place, last)] for place in mine])
            yield rows, torch.tensor([int(place <= last) for place in mine])

    def nothing(self, device: torch.device) -> Float[Tensor, "2 domains bins"]:
        """Sums and counts, by domain and by position in ranges 1, 2, 3..4, 5..8, ..."""
        bins = (self.length - 1).bit_length() + 1
        return torch.zeros(2, len(self.domains), bins, dtype=torch.float64, device=device)

    def add(
        self,
        sums: Float[Tensor, "2 domains bins"],
        losses: Float[Tensor, "rows time"],
        domains: Int[Tensor, "rows"],
        counts: Int[Tensor, "rows"],
    ) -> None:
        bins = torch.tensor([t.bit_length() for t in range(losses.shape[1])], device=losses.device)
        width = sums.shape[2]
        places = (domains[:, None] * width + bins).flatten()
        weights = counts[:, None].expand_as(losses).double().flatten()
        sums[0].view(-1).index_add_(0, places, losses.double().flatten() * weights)
        sums[1].view(-1).index_add_(0, places, weights)


@dataclass(frozen=True)
class Judged(Judgement):
    """Losses by domain and position: their sums and how many there are."""

    domains: tuple[str, ...]
    sums: Float[Tensor, "domains bins"]
    counts: Float[Tensor, "domains bins"]

    @property
    def loss(self) -> float:
        """The mean over domains, each counting alike."""
        known = self.counts.sum(1) > 0
        return float((self.sums.sum(1)[known] / self.counts.sum(1)[known]).mean())

    def reaches(self, goal: float) -> bool:
        return self.loss <= goal

    def records(self, step: int, *, every_length: bool) -> list[Record]:
        rows = [Record(step, "validation", "loss", self.loss, count=int(self.counts.sum()))]
        for name, sums, counts in zip(self.domains, self.sums, self.counts, strict=True):
            total = int(counts.sum())
            if not total:
                continue
            value = float(sums.sum()) / total
            rows.append(Record(step, "validation", "loss", value, count=total, domain=name))
            for i, (one, count) in enumerate(zip(sums.tolist(), counts.tolist(), strict=True)):
                if every_length and count:
                    rows.append(
                        Record(
                            step,
                            "validation",
                            "loss",
                            one / count,
                            length=2**i,
                            length_min=2 ** (i - 1) + 1 if i else 1,
                            count=int(count),
                            domain=name,
                        )
                    )
        return [row for row in rows if abs(row.value) < float("inf")]
