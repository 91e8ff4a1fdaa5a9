"""A run on disk: a folder named by its config's fingerprint, and what may be read from it.

ROOT/3f2a.../
    config.json         the RunConfig
    run.json            versions, hardware, wall time
    records.jsonl       every number; see `records.Record`
    checkpoints/        the newest two; gone when the run has finished
    model.safetensors   the final weights
    DONE                written last: how it ended
    error.txt           instead of DONE, if it failed: the traceback
"""

import contextlib
import json
import os
import platform
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from statetrack import ops
from statetrack.models import Tagger
from statetrack.training import checkpoints
from statetrack.training.checkpoints import Checkpoint, load_tensors, save_tensors
from statetrack.training.config import RunConfig
from statetrack.training.files import exclusive, write_atomically, write_json
from statetrack.training.loop import Session
from statetrack.training.records import JsonLines, Record, Sink, read_records

__all__ = ["Run", "find_runs", "run"]

CONFIG, INFO, RECORDS = "config.json", "run.json", "records.jsonl"
MODEL, DONE, ERROR = "model.safetensors", "DONE", "error.txt"

Watcher = Callable[[RunConfig, list[Record]], None]
"""Called with the new rows each time a run reports."""


@dataclass(frozen=True)
class Run:
    """A run's folder, read on demand."""

    folder: Path

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.from_json((self.folder / CONFIG).read_text())

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

    def model(self) -> Tagger:
        """The trained model."""
        model = Tagger(self.config.model)
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


def run(
    config: RunConfig,
    root: Path | str = "runs",
    *,
    device: torch.device | str = "cpu",
    mirrors: Sequence[Sink] = (),
    watcher: Watcher | None = None,
) -> Run:
    """Trains `config` in `root`/fingerprint: skipped if finished there, resumed if interrupted.

    Killed at any moment and called again, it ends with the same records and weights as if it had
    never been killed (bit for bit on the CPU with the same number of threads). A failure leaves its
    traceback in error.txt and is raised. `mirrors` get every record that this call makes.
    """
    folder = Path(root) / config.fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / "lock"):
        _claim(folder, config)
        if Run(folder).finished:
            return Run(folder)
        (folder / ERROR).unlink(missing_ok=True)
        try:
            _train(folder, config, torch.device(device), mirrors, watcher)
        except Exception:
            with contextlib.suppress(OSError):  # on a full disk the first error is the one to see
                write_atomically(folder / ERROR, traceback.format_exc().encode())
            raise
    return Run(folder)


def _claim(folder: Path, config: RunConfig) -> None:
    """Writes the config, or checks that the one already there is the same."""
    path = folder / CONFIG
    if not path.exists():
        write_json(path, config.to_dict())
    elif json.loads(path.read_bytes()) != config.to_dict():
        raise ValueError(f"{folder} belongs to another config; nothing in it was touched")


def _train(
    folder: Path,
    config: RunConfig,
    device: torch.device,
    mirrors: Sequence[Sink],
    watcher: Watcher | None,
) -> None:
    session = Session(config, device=device)
    checkpoint = _usable_checkpoint(folder)
    spent, kept = 0.0, 0
    if checkpoint is not None:
        session.restore(checkpoint.tensors, checkpoint.position)
        spent, kept = checkpoint.position["wall_s"], checkpoint.position["records_bytes"]
    started = time.monotonic() - spent
    info = _environment(session) | {"resumed_at": session.step}
    write_json(folder / INFO, info)
    lines = JsonLines(folder / RECORDS, keep=kept)
    try:
        for rows in session:
            lines.write(rows)
            for mirror in mirrors:
                mirror.write(rows)
            if watcher is not None:
                watcher(config, rows)
            every = config.checkpoint_every
            if every is not None and session.step % every == 0 and not session.finished:
                tensors, position = session.state()
                position |= {"records_bytes": lines.size, "wall_s": time.monotonic() - started}
                checkpoints.save(folder / "checkpoints", Checkpoint(tensors, position))
    finally:
        lines.close()
        for mirror in mirrors:
            mirror.close()
    write_atomically(folder / MODEL, save_tensors(session.model.state_dict()))
    wall = time.monotonic() - started
    write_json(folder / INFO, info | {"wall_s": wall})
    write_json(folder / DONE, {"step": session.step, "solved": session.solved, "wall_s": wall})
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _usable_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole and whose records are all there."""
    checkpoint, damaged = checkpoints.load_newest(folder / "checkpoints")
    for line in damaged:
        warnings.warn(line, stacklevel=2)
    path = folder / RECORDS
    written = path.stat().st_size if path.exists() else 0
    if checkpoint is not None and checkpoint.position["records_bytes"] > written:
        warnings.warn(f"{path} is shorter than when it was written; starting over", stacklevel=2)
        return None
    return checkpoint


def _environment(session: Session) -> dict[str, Any]:
    """What the numbers may depend on besides the config."""
    versions = {"python": platform.python_version()}
    for name in ("statetrack", "torch", "numpy", "numba", "triton", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    device = session.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "versions": versions,
        "device": device.type,
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "gpu": gpu,
        },
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
        "parameters": sum(p.numel() for p in session.model.parameters()),
        "state_size": sum(block.mixer.state_size for block in session.model.backbone.blocks),  # type: ignore[union-attr, misc]
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "backends": {
            op: ops.explain_backend(op, device=device).backend
            for op in ("diagonal_scan", "selective_scan", "linear_attention", "delta_rule")
        },
    }


def _processor() -> str:
    """The CPU's name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
