"""A run's folder: its name is the config's fingerprint, and what may be read from it.

ROOT/3f2a.../
    config.json         the config, its kind and its schema
    run.json            versions, code, hardware, backends, wall time
    records.jsonl       every number; see `records.Record`
    checkpoints/        the newest two; gone when the run has finished
    model.safetensors   the final weights
    DONE                written last: how it ended, and the checksums of what it leaves
    error.txt           instead of DONE, if it failed: the traceback
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.config import frozen_defaults
from statetrack.runs.files import read_json
from statetrack.runs.identity import RunDescription
from statetrack.runs.records import Record, read_records
from statetrack.runs.tensors import load_tensors

__all__ = ["Run", "find_runs"]

CHECKPOINTS = "checkpoints"
CONFIG, INFO, RECORDS = "config.json", "run.json", "records.jsonl"
MODEL, DONE, ERROR = "model.safetensors", "DONE", "error.txt"

KINDS = {"tagger": "statetrack.training.config:RunConfig"}
"""What a run may train, and where its config is described."""


def config_file(config: RunDescription) -> dict[str, Any]:
    """What config.json says."""
    schema = frozen_defaults()["schema"]
    return {"schema": schema, "kind": config.KIND, "config": config.to_dict()}


def read_config(path: Path) -> Any:
    """The config in a file, of whatever kind; a `ValueError` names the file and what is wrong."""
    content = read_json(path)
    schema = frozen_defaults()["schema"]
    try:
        if content.get("schema") != schema or content.get("kind") not in KINDS:
            raise ValueError(f"it needs schema {schema} and a kind of {', '.join(KINDS)}")
        module, _, name = KINDS[content["kind"]].partition(":")
        return getattr(import_module(module), name).from_dict(content.get("config"))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the config of a run: {error}") from None


@dataclass(frozen=True)
class Run:
    """A run's folder, read on demand."""

    folder: Path

    @cached_property
    def config(self) -> Any:
        return read_config(self.folder / CONFIG)

    @cached_property
    def records(self) -> list[Record]:
        path = self.folder / RECORDS
        return read_records(path) if path.exists() else []

    @property
    def info(self) -> dict[str, Any]:
        """Versions, code, hardware, device, wall time (`wall_s`)."""
        path = self.folder / INFO
        return read_json(path) if path.exists() else {}

    @property
    def finished(self) -> bool:
        """Whether it says so; `verify.problems` looks whether that is true."""
        return (self.folder / DONE).exists()

    @property
    def error(self) -> str | None:
        """The traceback of the last attempt, if it failed."""
        path = self.folder / ERROR
        return path.read_text() if path.exists() else None

    def model(self) -> Any:
        """The trained model."""
        model = self.config.build()
        model.load_state_dict(self.weights())
        return model.eval()

    def weights(self) -> dict[str, Tensor]:
        """The final weights, by name."""
        path = self.folder / MODEL
        try:
            return load_tensors(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None

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
