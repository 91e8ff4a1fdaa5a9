"""Many runs: in local processes, each on its own, none able to stop the others."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from statetrack.training.config import RunConfig
from statetrack.training.files import write_atomically
from statetrack.training.records import Record, parse_records
from statetrack.training.runs import ERROR, RECORDS, Run, run

__all__ = ["Sweep", "run_many"]

POLL_S = 0.5


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
) -> Sweep:
    """Trains every config in `root`, each in a folder named by its fingerprint.

    Finished runs are skipped and interrupted ones resumed. A run that fails, or whose process
    dies, keeps its traceback in error.txt and stops no other. Equal configs are trained once.

    `workers` processes work at a time, each with its share of the cores; by default one per core
    on the CPU and one on a GPU. 0 trains in this process, one run after the other. `watch` (a
    `Progress`, say) is told of new records.

    On systems that start processes afresh a script must call this under
    `if __name__ == "__main__":`.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    folders = {config.fingerprint: root / config.fingerprint for config in configs}
    todo = list({config.fingerprint: config for config in configs}.values())
    watch = watch or Watch()
    if workers is None:
        workers = min(len(todo), os.cpu_count() or 1) if device == "cpu" else 1
    pending = []
    for config in todo:
        if Run(folders[config.fingerprint]).finished:
            watch.finished(config)
        else:
            pending.append(config)
    if workers == 0:
        for config in pending:
            _attempt(config, root, device, watch)
            watch.finished(config)
    elif pending:
        _in_processes(pending, root, workers, device, watch)
    return Sweep([Run(folders[config.fingerprint]) for config in configs])


def _attempt(config: RunConfig, root: Path, device: str, watch: Any = None) -> None:
    """One run; its failure stays in its folder."""
    try:
        run(config, root, device=device, watcher=watch)
    except Exception:
        _keep_error(config, root, traceback.format_exc())


def _keep_error(config: RunConfig, root: Path, text: str) -> None:
    """Writes error.txt unless the run has left one itself."""
    path = root / config.fingerprint / ERROR
    if not path.exists() and path.parent.exists():
        write_atomically(path, text.encode())


def _work(link: Connection, root: Path, device: str, threads: int) -> None:
    """A worker: takes configs until there are none."""
    torch.set_num_threads(threads)
    while True:
        try:
            text = link.recv()
        except (EOFError, KeyboardInterrupt):
            return
        _attempt(RunConfig.from_json(text), root, device)
        link.send(None)


class _Worker:
    """A process, the run it is busy with, and how far that run's records have been read."""

    def __init__(self, root: Path, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, other = context.Pipe()
        arguments = (other, root, device, threads)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.root = root
        self.config: RunConfig | None = None
        self.read = 0

    def give(self, config: RunConfig) -> None:
        path = self.root / config.fingerprint / RECORDS
        self.config, self.read = config, path.stat().st_size if path.exists() else 0
        self.link.send(config.to_json())

    def new_rows(self) -> list[Record]:
        """The whole lines that the current run has written since the last call."""
        assert self.config is not None
        path = self.root / self.config.fingerprint / RECORDS
        if not path.exists():
            return []
        with path.open("rb") as file:
            if path.stat().st_size < self.read:  # a resumed run has cut its records
                self.read = path.stat().st_size
            file.seek(self.read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.read += len(whole)
        try:
            return list(parse_records(whole.splitlines(keepends=True)))
        except ValueError:  # it was cut and written again while we read
            return []

    def stop(self) -> None:
        self.link.close()
        self.process.terminate()
        self.process.join()


def _in_processes(
    configs: list[RunConfig], root: Path, workers: int, device: str, watch: Any
) -> None:
    threads = max(1, (os.cpu_count() or 1) // workers)
    queue = list(reversed(configs))
    crew = [_Worker(root, device, threads) for _ in range(min(workers, len(configs)))]
    try:
        for worker in crew:
            worker.give(queue.pop())
        told = time.monotonic()
        while busy := [worker for worker in crew if worker.config is not None]:
            ready = wait([worker.link for worker in busy], timeout=POLL_S)
            if time.monotonic() - told > POLL_S:
                told = time.monotonic()
                for worker in busy:
                    watch(worker.config, worker.new_rows())
            for worker in busy:
                if worker.link not in ready:
                    continue
                config = worker.config
                assert config is not None
                if not _heard_from(worker):
                    code = worker.process.exitcode
                    _keep_error(config, root, f"its process died with exit code {code}\n")
                    worker.stop()
                    crew[crew.index(worker)] = worker = _Worker(root, device, threads)
                watch.finished(config)
                worker.config = None
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
