"""Checkpoints: folders of safetensors and JSON, whole or not there, checked when read.

checkpoints/step-00002000/
    state.safetensors   weights, optimiser and generator states
    position.json       step, size of the record file, time spent so far
    COMPLETE            written last: sha256 of the other two
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.runs.files import (
    TEMPORARY,
    checksum,
    json_bytes,
    write_folder_atomically,
)

__all__ = ["Checkpoint", "load_at", "load_newest", "load_tensors", "save", "save_tensors"]

KEPT = 2
STATE, POSITION, COMPLETE = "state.safetensors", "position.json", "COMPLETE"


@dataclass(frozen=True)
class Checkpoint:
    """A run at rest."""

    tensors: dict[str, Tensor]
    position: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Adds a checkpoint to `folder` and drops all but the newest `KEPT`."""
    state = save_tensors(checkpoint.tensors)
    position = json_bytes(checkpoint.position)
    sums = json_bytes({STATE: checksum(state), POSITION: checksum(position)})
    path = _place(folder, checkpoint.position["step"])
    write_folder_atomically(path, {STATE: state, POSITION: position, COMPLETE: sums})
    for old in _newest_first(folder)[KEPT:]:
        shutil.rmtree(old)


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a line for every newer one that is not."""
    damaged: list[str] = []
    for leftover in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover)
    for path in _newest_first(folder):
        try:
            return _load(path), damaged
        except (OSError, ValueError) as error:
            damaged.append(f"checkpoint {path} is damaged and was passed over: {error}")
    return None, damaged


def load_at(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of that step, if it is there and whole."""
    try:
        return _load(_place(folder, step))
    except (OSError, ValueError):
        return None


def _place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _load(path: Path) -> Checkpoint:
    if not (path / COMPLETE).exists():
        raise ValueError(f"it has no {COMPLETE} marker")
    sums = json.loads((path / COMPLETE).read_bytes())
    contents = {name: (path / name).read_bytes() for name in (STATE, POSITION)}
    for name, content in contents.items():
        if not isinstance(sums, dict) or checksum(content) != sums.get(name):
            raise ValueError(f"{name} does not have the checksum it was written with")
    return Checkpoint(load_tensors(contents[STATE]), json.loads(contents[POSITION]))


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def save_tensors(tensors: dict[str, Tensor]) -> bytes:
    """safetensors bytes."""
    return _safetensors().save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def load_tensors(content: bytes) -> dict[str, Tensor]:
    """The inverse of `save_tensors`, on the CPU."""
    return _safetensors().load(content)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError("checkpoints need safetensors: pip install 'statetrack[cli]'") from None
    return safetensors.torch
