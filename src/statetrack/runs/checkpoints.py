"""Checkpoints: folders of safetensors and JSON, whole or not there, checked when read.

checkpoints/step-00002000/
    state.safetensors   weights, optimiser and generator states
    position.json       step, size and checksum of the records so far, time spent so far
    COMPLETE            written last: sha256 of the other two

Several processes that train one run write a file each instead of state.safetensors, in the format
of torch's distributed checkpoints. Any number of processes reads either: `read_into`.

Every function takes the run's folder.
"""

import json
import math
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.runs import ranks
from statetrack.runs.files import (
    TEMPORARY,
    checksum,
    checksum_of,
    json_bytes,
    read_json,
    remove,
    write_atomically,
    write_folder_atomically,
)
from statetrack.runs.folder import CHECKPOINTS, RECORDS
from statetrack.runs.tensors import load_tensors, save_tensors
from statetrack.runs.warn import warn

__all__ = [
    "Checkpoint",
    "begin_parts",
    "clear",
    "drop_after",
    "end_parts",
    "newest",
    "place",
    "read_into",
    "save",
    "saved",
]

KEPT = 2
STATE, POSITION, COMPLETE = "state.safetensors", "position.json", "COMPLETE"
NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A run at rest.

    `position` has at least `step`, `records_bytes`, `records_sha256` and `wall_s`. The tensors of a
    large one are left where they are, for `read_into`.
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
    _drop_old(run)


def begin_parts(run: Path, step: int) -> Path:
    """An empty folder, for each process to write its part of a checkpoint to."""
    path = place(run, step)
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    remove(temporary)
    temporary.mkdir(parents=True)
    return temporary


def end_parts(run: Path, temporary: Path, position: dict[str, Any]) -> None:
    """All parts are on the disk: they become a checkpoint, and all but the newest `KEPT` go."""
    write_atomically(temporary / POSITION, json_bytes(position))
    sums = {path.name: checksum_of(path) for path in sorted(temporary.iterdir())}
    write_atomically(temporary / COMPLETE, json_bytes(sums))
    path = place(run, position["step"])
    remove(path)
    os.replace(temporary, path)
    _drop_old(run)


def read_into(run: Path, step: int, tensors: dict[str, Tensor]) -> None:
    """Fills `tensors`, which may be distributed, from the checkpoint at `step`."""
    from torch.distributed import checkpoint as distributed  # slow to import

    path = place(run, step)
    reader = distributed.HuggingFaceStorageReader(str(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process is alone is no surprise
            distributed.load(
                tensors,
                storage_reader=reader,
                process_group=ranks.saving(),
                no_dist=ranks.world() == 1,
            )
    except distributed.CheckpointException as error:  # a BaseException
        reasons = {str(reason[0]) for reason in error.failures.values()}
        raise ValueError(f"{path} does not fit: {'; '.join(sorted(reasons))}") from None


def _drop_old(run: Path) -> None:
    for step in saved(run)[KEPT:]:
        remove(place(run, step))


def newest(
    run: Path, *, steps: int, before: int | None = None, large: bool = False
) -> Checkpoint | None:
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
            checkpoint = _load(place(run, step), step, steps, large)
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


def _load(path: Path, step: int, steps: int, large: bool) -> Checkpoint:
    if not (path / COMPLETE).exists():
        raise ValueError(f"it has no {COMPLETE} marker")
    sums = read_json(path / COMPLETE)
    for name in {*sums, POSITION} if large else (STATE, POSITION):
        if checksum_of(path / name) != sums.get(name):
            raise ValueError(f"{name} does not have the checksum it was written with")
    position = json.loads((path / POSITION).read_bytes())
    if not _is_position(position) or position["step"] != step or not 0 < step < steps:
        raise ValueError(f"{POSITION} is not that of a run at step {step} of {steps}")
    return Checkpoint({} if large else load_tensors((path / STATE).read_bytes()), position)


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
