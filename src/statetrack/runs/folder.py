"""A run's folder: its name is the config's fingerprint, and what may be read from it.

ROOT/3f2a.../
    config.json         the config, its kind and its schema
    run.json            versions, code, hardware, backends, wall time
    records.jsonl       every number; see `records.Record`
    start.safetensors   the weights it starts from, if they are not drawn
    checkpoints/        the newest two; gone when the run has finished
    model.safetensors   the final weights
    DONE                written last: how it ended, and the checksums of what it leaves
    error.txt           instead of DONE, if it failed: the traceback
    audit.json          what `statetrack audit` found, if it looked
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, final

from torch import Tensor

from statetrack.config import frozen_defaults
from statetrack.runs.files import read_json
from statetrack.runs.identity import RunDescription
from statetrack.runs.records import Record, read_records
from statetrack.runs.stored import Place, StoredRun
from statetrack.runs.tensors import load_tensors

__all__ = ["Run", "run_at", "run_folders"]

CHECKPOINTS = "checkpoints"
CONFIG, INFO, RECORDS = "config.json", "run.json", "records.jsonl"
MODEL, DONE, ERROR, AUDIT = "model.safetensors", "DONE", "error.txt", "audit.json"
START = "start.safetensors"

KINDS = {
    "tagger": "statetrack.training.config:RunConfig",
    "lm": "statetrack.lm.config:PretrainConfig",
}
"""What a run may train, and where its config is described."""


def config_file(config: RunDescription) -> dict[str, Any]:
    """What config.json says."""
    schema = frozen_defaults()["schema"]
    own = {"schema": schema, "kind": config.KIND, "config": config.to_dict()}
    return config.beside() | own


def read_config(path: Path) -> Any:
    """The config in a file, of whatever kind; a `ValueError` names the file and what is wrong."""
    return config_of(read_json(path), Place(path))


def config_of(content: Mapping[str, Any], place: Place) -> Any:
    """The config that `content` is, as config.json has it; errors name the `place` it is from."""
    schema = frozen_defaults()["schema"]
    try:
        if content.get("schema") != schema or content.get("kind") not in KINDS:
            raise ValueError(f"it needs schema {schema} and a kind of {', '.join(KINDS)}")
        module, _, name = KINDS[content["kind"]].partition(":")
        return getattr(import_module(module), name).from_dict(content.get("config"))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{place} is not the config of a run: {error}") from None


@final
@dataclass(frozen=True)
class Run(StoredRun):
    """A run's folder, read on demand."""

    folder: Path

    @property
    def place(self) -> Place:
        return Place(self.folder)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return (self.config.fingerprint,)

    @cached_property
    def config(self) -> Any:
        return read_config(self.folder / CONFIG)

    @cached_property
    def records(self) -> list[Record]:
        path = self.folder / RECORDS
        return read_records(path) if path.exists() else []

    @property
    def records_at(self) -> Place:
        return Place(self.folder / RECORDS)

    @property
    def info(self) -> dict[str, Any]:
        path = self.folder / INFO
        return read_json(path) if path.exists() else {}

    @property
    def finished(self) -> bool:
        return (self.folder / DONE).exists()

    @property
    def error(self) -> str | None:
        path = self.folder / ERROR
        return path.read_text() if path.exists() else None

    @property
    def audit(self) -> Any:
        path = self.folder / AUDIT
        return json.loads(path.read_bytes()) if path.exists() else None

    @property
    def audit_at(self) -> Place:
        return Place(self.folder / AUDIT)

    @property
    def has_weights(self) -> bool:
        return (self.folder / MODEL).exists()

    def weights(self) -> dict[str, Tensor]:
        path = self.folder / MODEL
        try:
            return load_tensors(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None


def run_at(folder: Path | str) -> Run:
    """The run in a folder; a `ValueError` if it is none."""
    if not (Path(folder) / CONFIG).is_file():
        raise ValueError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    return Run(Path(folder))


def run_folders(root: Path | str) -> list[Run]:
    """The runs in `root` and below that have a folder, by its name."""
    return [Run(path.parent) for path in sorted(Path(root).rglob(CONFIG))]
