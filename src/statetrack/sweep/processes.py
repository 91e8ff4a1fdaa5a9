"""Many runs: in local processes or on a cluster, none able to stop the others."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from statetrack.runs.files import write_atomically
from statetrack.runs.folder import ERROR, RECORDS, Run
from statetrack.runs.records import Record, parse_records
from statetrack.runs.writer import clean
from statetrack.training.config import RunConfig
from statetrack.training.run import run, run_together
from statetrack.training.stack import MOST_RUNS, stacks

if TYPE_CHECKING:
    from statetrack.sweep.launchers import Engine

__all__ = ["Sweep", "run_many"]

POLL_S = 0.5
WORKERS_ON_GPU = 2


@dataclass(frozen=True)
class Sweep:
    """What became of a list of configs, in its order."""

    runs: list[Run]

    @property
    def failed(self) -> list[Run]:
        """Runs that did not finish; `error` has the traceback."""
        return [one for one in self.runs if not one.finished]


class Watch:
    """Hears of every report and every end of a run; `Progress` is one."""

    def __call__(self, config: RunConfig, rows: list[Record]) -> None: ...

    def finished(self, config: RunConfig) -> None: ...


def run_many(
    configs: Sequence[RunConfig],
    root: Path | str = "runs",
    *,
    workers: int | None = None,
    device: str = "cpu",
    watch: Any = None,
    launcher: "str | Engine" = "processes",
) -> Sweep:
    """Trains every config in `root`, each in a folder named by its fingerprint.

    Finished runs are skipped and interrupted ones resumed. A run that fails, or whose process
    dies, keeps its traceback in error.txt and stops no other. Equal configs are trained once.

    On a GPU, runs that differ only in seeds, rates and clipping train together (see `stack`); on
    the CPU each trains alone. `workers` processes work at a time, each with its share of the cores;
    by default one per core on the CPU and two on a GPU, where one compiles while the other trains.
    0 trains in this process, one after the other. `watch` (a `Progress`, say) is told of new
    records.

    `launcher="ray"` or `"submitit"` (SLURM) trains on a cluster instead, `workers` runs at a time
    or as many as it has room for; `root` must then be a folder that all its machines see. A run
    whose worker is lost goes on elsewhere. See `launchers` and docs/clusters.md.

    On systems that start processes afresh a script must call this under
    `if __name__ == "__main__":`.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    folders = {config.fingerprint: root / config.fingerprint for config in configs}
    todo = list({config.fingerprint: config for config in configs}.values())
    watch = watch or Watch()
    pending = []
    for config in todo:
        if Run(folders[config.fingerprint]).finished:
            clean(Run(folders[config.fingerprint]))
            watch.finished(config)
        else:
            pending.append(config)
    if launcher != "processes":
        from statetrack.sweep.launchers import launch

        launch(pending, root, launcher, workers=workers, device=device, watch=watch)
        return Sweep([Run(folders[config.fingerprint]) for config in configs])
    if workers is None:
        workers = (os.cpu_count() or 1) if device == "cpu" else WORKERS_ON_GPU
    if workers < 0:
        raise ValueError(f"workers={workers} must be at least 0 (0: in this process)")
    groups = stacks(pending, most=1 if device == "cpu" else MOST_RUNS)
    if workers == 0:
        for group in groups:
            attempt(group, root, device, watch)
            for config in group:
                watch.finished(config)
    elif groups:
        _in_processes(groups, root, workers, device, watch)
    return Sweep([Run(folders[config.fingerprint]) for config in configs])


def attempt(group: Sequence[RunConfig], root: Path, device: str, watch: Any = None) -> None:
    """One run, or several together; a failure stays in its folder."""
    try:
        if len(group) == 1:
            run(group[0], root, device=device, watcher=watch)
        else:
            run_together(group, root, device=device, watcher=watch)
    except Exception:
        for config in group:
            keep_error(config, root, traceback.format_exc())


def keep_error(config: RunConfig, root: Path, text: str) -> None:
    """Writes error.txt unless the run has finished or left one itself."""
    path = root / config.fingerprint / ERROR
    if path.parent.exists() and not Run(path.parent).finished and not path.exists():
        write_atomically(path, text.encode())


def _work(link: Connection, root: Path, device: str, threads: int) -> None:
    """A worker: takes groups of configs until there are none."""
    torch.set_num_threads(threads)
    while True:
        try:
            texts = link.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            attempt([RunConfig.from_json(text) for text in texts], root, device)
        except OSError:  # not even the error could be written: the caller will meet the same
            return
        link.send(None)


class Tail:
    """What a run, trained elsewhere, has written since one last looked."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._read = self._path.stat().st_size if self._path.exists() else 0

    def rows(self) -> list[Record]:
        """The whole lines that are new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._read:  # a resumed run has cut its records
                self._read = self._path.stat().st_size
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        try:
            return list(parse_records(whole.splitlines(keepends=True)))
        except ValueError:  # it was cut and written again while we read
            return []


class _Worker:
    """A process, the runs it is busy with, and their records."""

    def __init__(self, root: Path, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, other = context.Pipe()
        arguments = (other, root, device, threads)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.root = root
        self.tails: list[tuple[RunConfig, Tail]] = []

    def give(self, group: Sequence[RunConfig]) -> None:
        self.tails = [(config, Tail(self.root / config.fingerprint)) for config in group]
        self.link.send([config.to_json() for config in group])

    def stop(self) -> None:
        self.link.close()
        self.process.terminate()
        self.process.join()


def _in_processes(
    groups: list[list[RunConfig]], root: Path, workers: int, device: str, watch: Any
) -> None:
    workers = min(workers, len(groups))
    threads = max(1, (os.cpu_count() or 1) // workers)
    queue = list(reversed(groups))
    crew = [_Worker(root, device, threads) for _ in range(workers)]
    try:
        for worker in crew:
            worker.give(queue.pop())
        told = time.monotonic()
        while busy := [worker for worker in crew if worker.tails]:
            ready = wait([worker.link for worker in busy], timeout=POLL_S)
            if time.monotonic() - told > POLL_S:
                told = time.monotonic()
                for worker in busy:
                    for config, tail in worker.tails:
                        watch(config, tail.rows())
            for worker in busy:
                if worker.link not in ready:
                    continue
                group = [config for config, _ in worker.tails]
                if not _heard_from(worker):
                    code = worker.process.exitcode
                    for config in group:
                        keep_error(config, root, f"its process died with exit code {code}\n")
                    worker.stop()
                    crew[crew.index(worker)] = worker = _Worker(root, device, threads)
                for config in group:
                    watch.finished(config)
                worker.tails = []
                if queue:
                    worker.give(queue.pop())
    finally:
        for worker in crew:
            worker.stop()


def _heard_from(worker: _Worker) -> bool:
    """Whether the worker has reported back; False if it is dead."""
    try:
        worker.link.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return False
    return True
