"""Run folders that nothing was trained for: `runs` knows no training."""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack.runs import Record, Run
from statetrack.runs.checkpoints import COMPLETE, POSITION, STATE
from statetrack.runs.files import checksum_of
from statetrack.runs.folder import KINDS
from statetrack.runs.identity import RunDescription
from statetrack.runs.writer import Writer, claim

STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Config(RunDescription):
    """All that `runs` asks of a config."""

    KIND = "test"

    seed: int = 0

    def build(self) -> Any:
        raise NotImplementedError

    @property
    def subject(self) -> str:
        return "test"


KINDS[Config.KIND] = f"{__name__}:Config"


def tensors(step: int) -> dict[str, Tensor]:
    return {"weight": torch.full((3,), float(step))}


def rows(step: int) -> list[Record]:
    return [Record(step, "train", "loss", 1 / step), Record(step, "train", "accuracy", 0.5)]


def interrupted(root: Path, config: Config | None = None, *, at: int = 6) -> Path:
    """A run that reported and saved every two steps and was left at step `at`, after its rows."""
    with claim(root, config or Config()) as run:
        with closing(Writer(run.folder, {})) as writer:
            for step in range(2, at, 2):
                writer.write(rows(step))
                writer.keep(tensors(step), {"step": step})
            writer.write(rows(at))
    return run.folder


def finished(root: Path, config: Config | None = None) -> Run:
    with claim(root, config or Config()) as run:
        with closing(Writer(run.folder, {"device": "cpu"})) as writer:
            writer.write(rows(STEPS))
            writer.finish(tensors(STEPS), step=STEPS, solved=False)
    return run


def flip(path: Path) -> None:
    """Changes one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def forge(checkpoint: Path, **contents: bytes) -> None:
    """Replaces files of a checkpoint and makes its checksums fit."""
    for name, content in contents.items():
        (checkpoint / {"state": STATE, "position": POSITION}[name]).write_bytes(content)
    sums = {name: checksum_of(checkpoint / name) for name in (STATE, POSITION)}
    (checkpoint / COMPLETE).write_text(json.dumps(sums))


def move(checkpoint: Path, **changes: Any) -> None:
    """Forges the position of a checkpoint; a key that becomes None is dropped."""
    position = json.loads((checkpoint / POSITION).read_bytes()) | changes
    kept = {key: value for key, value in position.items() if value is not None}
    forge(checkpoint, position=json.dumps(kept).encode())
