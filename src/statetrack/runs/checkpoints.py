"""Checkpoints: folders of safetensors and JSON, whole or not there, checked when read.

checkpoints/step-00002000/
    state.safetensors   weights, optimiser and generator states
    position.json       step, size and checksum of the records so far, time spent so far
    COMPLETE            written last: sha256 of the other two

Every function takes the run's folder.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.runs.files import (
    TEMPORARY,
    checksum,
    checksum_of,
    json_bytes,
    read_json,
    remove,
    write_folder_atomically,
)
from statetrack.runs.folder import CHECKPOINTS, RECORDS
from statetrack.runs.tensors import load_tensors, save_tensors
from statetrack.runs.warn import warn

__all__ = ["Checkpoint", "clear", "drop_after", "newest", "place", "save", "saved"]

KEPT = 2
STATE, POSITION, COMPLETE = "state.safetensors", "position.json", "COMPLETE"
NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A run at rest.

    `position` has at least `step`, `records_bytes`, `records_sha256` and `wall_s`.
    """

    tensors: dict[str, Tensor]
    position: dict[str, Any]

    @property
    def step(self) -> int:
        step: int = self.position["step"]
        return step


def save(run: Path, checkpoint: Checkpoint) -> None:
    """Adds a checkpoint and drops all but the newest `KEPT`."""
    state = save_tensors(checkpoint.tensors)
    position = json_bytes(checkpoint.position)
    sums = json_bytes({STATE: checksum(state), POSITION: checksum(position)})
    path = place(run, checkpoint.step)
    write_folder_atomically(path, {STATE: state, POSITION: position, COMPLETE: sums})
    for step in saved(run)[KEPT:]:
        remove(place(run, step))


def newest(run: Path, *, steps: int, before: int | None = None) -> Checkpoint | None:
    """The newest checkpoint to go on from, of those before step `before` if that is given.

    It is whole, lies before the run's last step `steps`, and the records are still those it was
    saved after. One line is printed for every newer checkpoint that is passed over.
    """
    for leftover in (run / CHECKPOINTS).glob(f"{TEMPORARY}*"):
        remove(leftover)
    for step in saved(run):
        if before is not None and step >= before:
            continue
        try:
            checkpoint = _load(place(run, step), step, steps)
            _check_records(run / RECORDS, checkpoint.position)
        except (OSError, ValueError, RecursionError) as error:
            warn(f"checkpoint {place(run, step)} is passed over: {error}")
        else:
            return checkpoint
    return None


def drop_after(run: Path, step: int) -> None:
    """Drops the checkpoints after `step`, which a run that goes on from there will make again."""
    for later in saved(run):
        if later > step:
            remove(place(run, later))


def clear(run: Path) -> None:
    """Drops all of them."""
    remove(run / CHECKPOINTS)


def place(run: Path, step: int) -> Path:
    """The folder of the checkpoint at `step`."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def saved(run: Path) -> list[int]:
    """The steps of the checkpoints that are there, newest first."""
    names = (NAME.fullmatch(path.name) for path in (run / CHECKPOINTS).glob("step-*"))
    return sorted((int(name[1]) for name in names if name), reverse=True)


def _load(path: Path, step: int, steps: int) -> Checkpoint:
    if not (path / COMPLETE).exists():
        raise ValueError(f"it has no {COMPLETE} marker")
    sums = read_json(path / COMPLETE)
    contents = {name: (path / name).read_bytes() for name in (STATE, POSITION)}
    for name, content in contents.items():
        if checksum(content) != sums.get(name):
            raise ValueError(f"{name} does not have the checksum it was written with")
    position = json.loads(contents[POSITION])
    if not _is_position(position) or position["step"] != step or not 0 < step < steps:
        raise ValueError(f"{POSITION} is not that of a run at step {step} of {steps}")
    return Checkpoint(load_tensors(contents[STATE]), position)


def _is_position(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    whole = [value.get("step"), value.get("records_bytes")]
    seconds = value.get("wall_s")
    return (
        all(type(number) is int and number >= 0 for number in whole)
        and type(seconds) is float
        and math.isfinite(seconds)
        and isinstance(value.get("records_sha256"), str)
    )


def _check_records(path: Path, position: dict[str, Any]) -> None:
    written = path.stat().st_size if path.exists() else 0
    if written < position["records_bytes"]:
        raise ValueError(f"{path} is shorter than when it was saved")
    if checksum_of(path, position["records_bytes"]) != position["records_sha256"]:
        raise ValueError(f"{path} has changed since it was saved")
