"""A run's folder: its name is the config's fingerprint, and what may be read from it.

ROOT/3f2a.../
    config.json         the RunConfig
    run.json            versions, hardware, wall time
    records.jsonl       every number; see `records.Record`
    checkpoints/        the newest two; gone when the run has finished
    model.safetensors   the final weights
    DONE                written last: how it ended
    error.txt           instead of DONE, if it failed: the traceback
"""

import json
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from statetrack.runs.checkpoints import load_tensors
from statetrack.runs.records import Record, read_records

__all__ = ["Run", "find_runs"]

CONFIG, INFO, RECORDS = "config.json", "run.json", "records.jsonl"
MODEL, DONE, ERROR = "model.safetensors", "DONE", "error.txt"


@dataclass(frozen=True)
class Run:
    """A run's folder, read on demand."""

    folder: Path

    @cached_property
    def config(self) -> Any:
        kind = import_module("statetrack.training.config").RunConfig
        return kind.from_json((self.folder / CONFIG).read_text())

    @cached_property
    def records(self) -> list[Record]:
        path = self.folder / RECORDS
        return read_records(path) if path.exists() else []

    @property
    def info(self) -> dict[str, Any]:
        """Versions, hardware, device, wall time (`wall_s`)."""
        path = self.folder / INFO
        return json.loads(path.read_bytes()) if path.exists() else {}

    @property
    def finished(self) -> bool:
        return (self.folder / DONE).exists()

    @property
    def error(self) -> str | None:
        """The traceback of the last attempt, if it failed."""
        path = self.folder / ERROR
        return path.read_text() if path.exists() else None

    def model(self) -> Any:
        """The trained model."""
        model = self.config.build()
        model.load_state_dict(load_tensors((self.folder / MODEL).read_bytes()))
        return model

    def last(self, metric: str, split: str = "validation") -> float | None:
        """The last value over all lengths; `None` if there is none."""
        rows = [r for r in self.records if (r.metric, r.split, r.length) == (metric, split, None)]
        return rows[-1].value if rows else None

    def curve(self, metric: str = "accuracy", split: str = "test") -> dict[int, float]:
        """Length -> value, from the last evaluation of `split`."""
        rows = [r for r in self.records if (r.metric, r.split) == (metric, split) and r.length]
        last = max((r.step for r in rows), default=0)
        return {r.length: r.value for r in rows if r.step == last and r.length}


def find_runs(root: Path | str) -> list[Run]:
    """All runs in `root` and below, by folder name."""
    return [Run(path.parent) for path in sorted(Path(root).rglob(CONFIG))]
