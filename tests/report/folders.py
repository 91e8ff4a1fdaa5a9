"""Run folders with known numbers, written by hand, and small ones that are trained."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statetrack.lm import PretrainConfig, PretrainOptimizerConfig
from statetrack.runs import Record, Run
from statetrack.runs.files import checksum_of
from statetrack.runs.folder import config_file
from statetrack.runs.identity import RunDescription
from statetrack.training import RunConfig
from tests.lm import corpus
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


def pretraining(
    seed: int = 0, lr: float = 1e-2, data: str = "shards", low: float = -1.0
) -> PretrainConfig:
    """Of a small language model, 8 steps of 4 × 32 tokens."""
    model = corpus.model(eigen_range=(low, 1.0))
    optimizer = PretrainOptimizerConfig(lr=lr)
    return corpus.config(
        Path(data), model=model, data_sha256="ab" * 32, optimizer=optimizer, seed=seed
    )


def reports(last: float, *, steps: int = 8) -> list[Record]:
    """What such a run reports every two steps: a loss that falls to `last`."""
    rows = []
    for step in range(2, steps + 1, 2):
        loss = last + (8 - step) / 4
        rows += [
            Record(step, "train", "loss", loss),
            Record(step, "train", "loss", loss - 0.5, domain="code"),
            Record(step, "train", "grad_norm", 1.0 / step),
            Record(step, "machine", "tokens_per_s", 1000.0 * step),
            Record(step, "machine", "mfu", 0.1),
            Record(step, "machine", "memory_gb", 2.0 + step),
        ]
        if step % 4 == 0:
            rows.append(Record(step, "validation", "loss", loss + 1.0))
            rows.append(Record(step, "validation", "loss", loss + 0.5, domain="code"))
            rows.append(Record(step, "validation", "loss", loss + 1.5, domain="prose"))
    return [*rows, Record(steps, "train", "spike", 9.0)]


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
