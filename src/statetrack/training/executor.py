"""What trains: some runs in memory, in step with one another, and nothing else.

An executor takes optimiser steps, counts right answers, and gives and takes the state of a run. The
`Engine` decides when, and what becomes of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack.tasks import Batch
from statetrack.training.config import RunConfig
from statetrack.training.evaluation import Tally

__all__ = ["Executor", "Stretch"]


@dataclass(frozen=True)
class Stretch:
    """What a stretch of steps was like, for each run.

    Attributes:
        losses: of every step.
        accuracy, grad_norm: of the last one; the norm is the gradient's before clipping.
    """

    losses: list[list[float]]
    accuracy: list[float]
    grad_norm: list[float]


class Executor(ABC):
    """Runs in memory that train together; `run` is the place of one of them in `configs`.

    Attributes:
        model: the architecture of every run; its weights may be those of none.
    """

    model: torch.nn.Module

    @abstractmethod
    def __init__(
        self, configs: Sequence[RunConfig], device: torch.device, validation: list[Batch]
    ) -> None:
        """`validation` is the list of batches that `tally` will often be asked about."""

    @abstractmethod
    def step(self, first: int, count: int) -> Stretch:
        """Takes the steps `first`, `first + 1`, ..., `count` of them."""

    @abstractmethod
    def tally(self, batches: list[Batch]) -> Tally:
        """What every run gets right."""

    @abstractmethod
    def keep_only(self, runs: Sequence[int]) -> None:
        """The others have ended, and keep the weights they have."""

    @abstractmethod
    def weights_of(self, run: int) -> dict[str, Tensor]:
        """By name."""

    @abstractmethod
    def state(self, run: int) -> dict[str, Tensor]:
        """Everything the run's next step depends on, by name; the same for every executor."""

    @abstractmethod
    def restore(self, run: int, tensors: dict[str, Tensor], step: int) -> None:
        """The inverse of `state`. All runs must be brought to the same step."""
