"""Losses that stand out: steps whose data, or whose numbers, were not like the others."""

import math

import torch
from torch import Tensor

__all__ = ["Spikes"]

REMEMBERED = 100
LEAST = 20
"""Steps before the first that can be a spike."""
FLOOR = 1e-3
"""The least standard deviation, as a share of the mean: a loss that hardly moves has no spikes."""


class Spikes:
    """Says which losses are spikes: far above the mean of the last 100 that were none.

    >>> spikes = Spikes(sigmas=6.0)
    >>> [spikes.is_one(2.0 + 0.01 * (i % 3)) for i in range(50)].count(True)
    0
    >>> spikes.is_one(2.5), spikes.is_one(2.0)
    (True, False)
    """

    def __init__(self, sigmas: float) -> None:
        self._sigmas = sigmas
        self._losses: list[float] = []

    def is_one(self, loss: float) -> bool:
        """Whether it is; it is remembered if it is not."""
        if not math.isfinite(loss):
            return True
        if len(self._losses) >= LEAST:
            mean = math.fsum(self._losses) / len(self._losses)
            square = math.fsum((x - mean) ** 2 for x in self._losses) / len(self._losses)
            if loss > mean + self._sigmas * max(math.sqrt(square), FLOOR * abs(mean)):
                return True
        self._losses = [*self._losses, loss][-REMEMBERED:]
        return False

    def state(self) -> Tensor:
        """What it remembers, always as many numbers: how many count, then they."""
        rest = [0.0] * (REMEMBERED - len(self._losses))
        return torch.tensor([float(len(self._losses)), *self._losses, *rest], dtype=torch.float64)

    def restore(self, state: Tensor) -> None:
        count, *losses = state.tolist()
        self._losses = losses[: int(count)]
