"""What trains: some runs in memory, in step with one another, and nothing else.

An executor takes optimiser steps, judges what the runs have learnt, and gives and takes the state
of a run. The `Engine` decides when, and what becomes of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from statetrack.runs.records import Record
from statetrack.tasks import Batch, Task
from statetrack.training import evaluation
from statetrack.training.config import RunConfig
from statetrack.training.evaluation import Tally

__all__ = ["Executor", "Judgement", "Stretch", "TaskExecutor"]


@dataclass(frozen=True)
class Stretch:
    """What a stretch of steps was like, for each run.

    Attributes:
        losses: of every step.
        grad_norm: of the last one, before clipping.
        accuracy: of the last one; None where right and wrong is not what is asked.
        rows: what else the executor has to report, by run.
    """

    losses: list[list[float]]
    grad_norm: list[float]
    accuracy: list[float] | None = None
    rows: Mapping[int, list[Record]] = field(default_factory=dict)


class Judgement(ABC):
    """What one run has learnt, on one set of sequences."""

    @abstractmethod
    def reaches(self, goal: float) -> bool:
        """Whether it is as good as `stop_at` asks."""

    @abstractmethod
    def records(self, step: int, *, every_length: bool) -> list[Record]:
        """Rows over all lengths, and by length: in detail if `every_length`."""


class Executor(ABC):
    """Runs in memory that train together; `run` is the place of one of them in `configs`.

    Attributes:
        model: the architecture of every run; its weights may be those of none.
    """

    model: torch.nn.Module

    @abstractmethod
    def __init__(self, configs: Sequence[Any], device: torch.device) -> None:
        """The configs are of one kind, and differ in what `stacks` allows alone."""

    @abstractmethod
    def step(self, first: int, count: int) -> Stretch:
        """Takes the steps `first`, `first + 1`, ..., `count` of them."""

    @abstractmethod
    def judge(self, split: str) -> list[Judgement]:
        """Every run on its `validation` or `test` set; empty where there is no such set."""

    @abstractmethod
    def data_of(self, step: int) -> str:
        """Where to find the data of a step, in words that end a sentence; "" if it was drawn."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """What run.json should say beside the versions and the hardware."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """What lies beside the weights when a run has finished, by name."""

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


class TaskExecutor(Executor):
    """Taggers, which learn a task and are judged by what they get right.

    Attributes:
        runs: how many of them.
        validation: the batches that `tally` is often asked about.
    """

    config: RunConfig
    device: torch.device
    runs: int = 1
    validation: list[Batch]

    @abstractmethod
    def tally(self, batches: list[Batch]) -> Tally:
        """What every run gets right."""

    def judge(self, split: str) -> list[Judgement]:
        held_out = self.validation
        if split == "test":
            held_out = evaluation.held_out(self.config, "test", self.device, runs=self.runs)
        counted = self.tally(held_out).counts()
        return [_Counted(self.config.judge, counts, split) for counts in counted]

    def data_of(self, step: int) -> str:
        return ""

    def info(self) -> dict[str, Any]:
        return {}

    def files(self) -> dict[str, bytes]:
        return {}


@dataclass(frozen=True)
class _Counted(Judgement):
    task: Task
    counts: evaluation.Counts
    split: str

    def reaches(self, goal: float) -> bool:
        return evaluation.score(self.task, self.counts) >= goal

    def records(self, step: int, *, every_length: bool) -> list[Record]:
        return evaluation.records_of(
            self.task, self.counts, step=step, split=self.split, every_length=every_length
        )
