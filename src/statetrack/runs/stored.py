"""A run that can be read, wherever it lies: in its own folder, or in a line of an archive."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.runs.frames import Library, records_frame
from statetrack.runs.records import Record

__all__ = ["Place", "StoredRun"]


@dataclass(frozen=True)
class Place:
    """A file or a folder, or a line of a file.

    >>> print(Place(Path("results/s5-quick/runs.jsonl"), 3))
    results/s5-quick/runs.jsonl line 3
    """

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return str(self.path) if self.line is None else f"{self.path} line {self.line}"


class StoredRun(ABC):
    """What the tables, pages and the choice of the best run read."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """Its folder, or its line."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What a page calls it."""

    @property
    @abstractmethod
    def fingerprints(self) -> tuple[str, ...]:
        """Its own, then those it had under earlier schemas."""

    @property
    @abstractmethod
    def config(self) -> Any:
        """The description of the run, of whatever kind."""

    @property
    @abstractmethod
    def records(self) -> list[Record]:
        """Its numbers; an archive has those that tables and curves need."""

    @property
    @abstractmethod
    def records_at(self) -> Place:
        """Where a reader finds its numbers, in full if they are kept."""

    @property
    @abstractmethod
    def info(self) -> Mapping[str, Any]:
        """Versions, code, hardware, device, wall time (`wall_s`)."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether it says so; `verify.problems` looks whether that is true."""

    @property
    @abstractmethod
    def error(self) -> str | None:
        """The traceback of the last attempt, if it failed."""

    @property
    @abstractmethod
    def audit(self) -> Any:
        """The JSON of its audit, as it is; `None` if it was never audited."""

    @property
    @abstractmethod
    def audit_at(self) -> Place:
        """Where a reader finds its audit."""

    @property
    @abstractmethod
    def has_weights(self) -> bool:
        """Whether the final weights are kept."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The final weights, by name."""

    def model(self) -> Any:
        """The trained model."""
        model = self.config.build()
        model.load_state_dict(self.weights())
        return model.eval()

    def last(self, metric: str, split: str = "validation") -> float | None:
        """The last value over all lengths; `None` if there is none."""
        rows = [r for r in self.records if (r.metric, r.split, r.overall) == (metric, split, True)]
        return rows[-1].value if rows else None

    def curve(self, metric: str = "accuracy", split: str = "test") -> dict[int, float]:
        """Length -> value, from the last evaluation of `split`."""
        rows = [r for r in self.records if (r.metric, r.split) == (metric, split) and r.length]
        last = max((r.step for r in rows), default=0)
        return {r.length: r.value for r in rows if r.step == last and r.length}

    def to_frame(self, library: Library = "pandas") -> Any:
        """Its records as a data frame, a row each; `runs_frame` has a row for each run."""
        return records_frame(self.records, library)
