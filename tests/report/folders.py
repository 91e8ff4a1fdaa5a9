"""Run folders with known numbers, written by hand, and small ones that are trained."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statetrack.runs import Record, Run
from statetrack.runs.files import checksum_of
from statetrack.runs.folder import config_file
from statetrack.runs.identity import RunDescription
from statetrack.training import RunConfig
from tests.training import tiny


def write_run(
    root: Path,
    config: RunDescription,
    records: list[Record],
    *,
    finished: bool = True,
    error: str | None = None,
) -> Run:
    folder = root / config.fingerprint
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_file(config)))
    (folder / "records.jsonl").write_text("".join(f"{r.to_json()}\n" for r in records))
    (folder / "run.json").write_text(json.dumps({"device": "cpu", "wall_s": 1.5}))
    if finished:
        names = ("config.json", "records.jsonl")
        sums = {name: checksum_of(folder / name) for name in names}
        done = {"step": 2, "solved": False, "wall_s": 1.5, "sha256": sums}
        (folder / "DONE").write_text(json.dumps(done))
    if error is not None:
        (folder / "error.txt").write_text(error)
    return Run(folder)


def parity(seed: int = 0, lr: float = 1e-3, **changes: Any) -> RunConfig:
    """A tiny config; as in the paper's table where it is judged on lengths 40 to 256."""
    config = tiny.config(seed=seed, data_seed=seed, **changes)
    return replace(config, optimizer=replace(config.optimizer, lr=lr))


def scores(*values: float) -> list[Record]:
    """Validation scores at steps 2, 4, ..., and a test by length: right up to 8, then half."""
    rows = [
        Record(2 * i, "validation", "scaled_accuracy", value) for i, value in enumerate(values, 1)
    ]
    rows += [Record(2 * i, "train", "loss", 1.0 / i) for i in range(1, len(values) + 1)]
    step = 2 * len(values)
    for length in range(2, 12):
        accuracy = 1.0 if length < 8 else 0.5
        rows.append(Record(step, "test", "accuracy", accuracy, length, count=length))
    return rows


def puzzle_config(seed: int = 0) -> RunConfig:
    """Lights out, trained on up to 16 presses, which are 32 tokens."""
    model = replace(tiny.model(), vocab_size=19, num_classes=2)
    settings = replace(parity().evaluation, task=None, lengths=(32, 32), test_lengths=None)
    return parity(seed, task="lights_out", model=model, lengths=(1, 16), evaluation=settings)


@dataclass(frozen=True, kw_only=True)
class OtherKind(RunDescription):
    """The config of a run that trains no tagger."""

    KIND = "lm"
    tokens: int

    def build(self) -> None:
        return None

    @property
    def subject(self) -> str:
        return "text"
