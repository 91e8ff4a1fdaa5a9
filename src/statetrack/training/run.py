"""`run` and `run_together`: training in run folders, skipped, resumed or started."""

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
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack import ops
from statetrack.runs import checkpoints
from statetrack.runs.checkpoints import Checkpoint, save_tensors
from statetrack.runs.files import exclusive, write_atomically, write_json
from statetrack.runs.folder import CONFIG, DONE, ERROR, INFO, MODEL, RECORDS, Run
from statetrack.runs.records import JsonLines, Record, Sink
from statetrack.training.config import RunConfig
from statetrack.training.engine import Engine, NonFiniteLoss

__all__ = ["run", "run_together"]

Watcher = Callable[[RunConfig, list[Record]], None]
"""Called with the new rows each time a run reports."""


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
    traceback in error.txt and is raised. `mirrors` get every record that this call makes. On a GPU
    it trains stacked, if alone: compiled, a step at a time as one CUDA graph.
    """
    folder = Path(root) / config.fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / "lock"):
        _claim(folder, config)
        if Run(folder).finished:
            return Run(folder)
        (folder / ERROR).unlink(missing_ok=True)
        try:
            start = _usable_checkpoint(folder)
            begun = [(folder, config, start)]
            (error,) = _train_together(begun, torch.device(device), mirrors, watcher)
            if error is not None:
                raise error
        except Exception:
            _keep_traceback(folder)
            raise
    return Run(folder)


def _claim(folder: Path, config: RunConfig) -> None:
    """Writes the config, or checks that the one already there is the same."""
    path = folder / CONFIG
    if not path.exists():
        write_json(path, config.to_dict())
    elif json.loads(path.read_bytes()) != config.to_dict():
        raise ValueError(f"{folder} belongs to another config; nothing in it was touched")


def run_together(
    configs: Sequence[RunConfig],
    root: Path | str = "runs",
    *,
    device: torch.device | str = "cpu",
    watcher: Watcher | None = None,
) -> list[Run]:
    """Trains configs that can be stacked at once, each in a folder of its own, as `run` would.

    Finished ones are skipped; interrupted ones go on together from the newest checkpoint they have
    in common, and end with the same numbers up to the order of additions. A run that diverges keeps
    its error and stops no other; any other failure is kept in every folder and raised.
    """
    folders = [Path(root) / config.fingerprint for config in configs]
    with contextlib.ExitStack() as locks:
        pending = []
        for folder, config in zip(folders, configs, strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            locks.enter_context(exclusive(folder / "lock"))
            _claim(folder, config)
            if not Run(folder).finished:
                (folder / ERROR).unlink(missing_ok=True)
                pending.append((folder, config))
        try:
            for group in _common_starts(pending):
                errors = _train_together(group, torch.device(device), (), watcher)
                for (folder, _, _), error in zip(group, errors, strict=True):
                    if error is not None:
                        text = f"{type(error).__name__}: {error}\n"
                        write_atomically(folder / ERROR, text.encode())
        except Exception:
            for folder, _ in pending:
                if not Run(folder).finished and Run(folder).error is None:
                    _keep_traceback(folder)
            raise
    return [Run(folder) for folder in folders]


class _Output:
    """Where the numbers of one run go while it trains."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        environment: dict[str, Any],
        start: Checkpoint | None,
        mirrors: Sequence[Sink],
        watcher: Watcher | None,
    ) -> None:
        position = {"wall_s": 0.0, "records_bytes": 0, "step": 0}
        position |= {} if start is None else start.position
        self._folder, self._config = folder, config
        self._mirrors, self._watcher = mirrors, watcher
        self._started = time.monotonic() - position["wall_s"]
        self._info = environment | {"resumed_at": position["step"]}
        write_json(folder / INFO, self._info)
        self._lines = JsonLines(folder / RECORDS, keep=int(position["records_bytes"]))

    def write(self, rows: list[Record]) -> None:
        self._lines.write(rows)
        for mirror in self._mirrors:
            mirror.write(rows)
        if self._watcher is not None:
            self._watcher(self._config, rows)

    def keep(self, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        """A checkpoint."""
        position |= {"records_bytes": self._lines.size, "wall_s": self._wall_s}
        checkpoints.save(self._folder / "checkpoints", Checkpoint(tensors, position))

    def finish(self, weights: dict[str, Tensor], *, step: int, solved: bool) -> None:
        wall = self._wall_s
        write_atomically(self._folder / MODEL, save_tensors(weights))
        write_json(self._folder / INFO, self._info | {"wall_s": wall})
        write_json(self._folder / DONE, {"step": step, "solved": solved, "wall_s": wall})
        shutil.rmtree(self._folder / "checkpoints", ignore_errors=True)

    def close(self) -> None:
        self._lines.close()
        for mirror in self._mirrors:
            mirror.close()

    @property
    def _wall_s(self) -> float:
        return time.monotonic() - self._started


def _is_due(config: RunConfig, step: int) -> bool:
    """Whether a run that has not ended keeps a checkpoint at `step`."""
    return config.checkpoint_every is not None and step % config.checkpoint_every == 0


Begun = tuple[Path, RunConfig, Checkpoint | None]
"""A run's folder, its config, and where it goes on from."""


def _common_starts(pending: Sequence[tuple[Path, RunConfig]]) -> list[list[Begun]]:
    """Groups of runs that go on from the same step, as few as their checkpoints allow.

    A kill between two runs' checkpoints leaves some one checkpoint ahead; those go back to the one
    before, which they still have, or to the beginning.
    """
    newest = [(folder, config, _usable_checkpoint(folder)) for folder, config in pending]
    least = min((_step_of(start) for _, _, start in newest), default=0)
    groups: dict[int, list[Begun]] = {}
    for folder, config, start in newest:
        if least == 0 and _step_of(start) == config.checkpoint_every:
            start = None
        elif _step_of(start) > least:
            start = checkpoints.load_at(folder / "checkpoints", least) or start
        groups.setdefault(_step_of(start), []).append((folder, config, start))
    return list(groups.values())


def _step_of(start: Checkpoint | None) -> int:
    return 0 if start is None else start.position["step"]


def _train_together(
    begun: Sequence[Begun],
    device: torch.device,
    mirrors: Sequence[Sink],
    watcher: Watcher | None,
) -> list[NonFiniteLoss | None]:
    """Trains them to their ends; what went wrong with each."""
    configs = [config for _, config, _ in begun]
    if watcher is not None:  # on a GPU the first report comes only after half a minute of compiling
        for config in configs:
            watcher(config, [])
    engine = Engine(configs, device=device)
    for index, (_, _, start) in enumerate(begun):
        if start is not None:
            engine.restore(index, start.tensors, start.position)
    environment = _environment(engine.executor.model, device) | {"runs_together": len(begun)}
    with contextlib.ExitStack() as files:
        outputs = [
            files.enter_context(
                contextlib.closing(_Output(folder, config, environment, start, mirrors, watcher))
            )
            for folder, config, start in begun
        ]
        for new in engine:
            for index, rows in new.items():
                outputs[index].write(rows)
                if index not in engine.active:
                    weights = engine.executor.weights_of(index)
                    outputs[index].finish(weights, step=engine.step, solved=engine.solved[index])
                elif _is_due(configs[index], engine.step):
                    outputs[index].keep(*engine.state(index))
    return engine.failed


def _keep_traceback(folder: Path) -> None:
    with contextlib.suppress(OSError):  # on a full disk the first error is the one to see
        write_atomically(folder / ERROR, traceback.format_exc().encode())


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


def _environment(model: torch.nn.Module, device: torch.device) -> dict[str, Any]:
    """What the numbers may depend on besides the config."""
    versions = {"python": platform.python_version()}
    for name in ("statetrack", "torch", "numpy", "numba", "triton", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
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
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_size": sum(block.mixer.state_size for block in model.backbone.blocks),  # type: ignore[union-attr]
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
