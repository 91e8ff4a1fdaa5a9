"""Runs on this machine: in worker processes, or one after the other in this one.

A worker hears from its parent through a pipe, in a thread of its own. It ends when the parent tells
it to stop, and when the parent is gone, however that ended: a worker never trains for nobody. The
terminal's Ctrl-C does not reach it.
"""

import _thread
import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from statetrack.sweep.launcher import Group, attempt, train_group
from statetrack.training.run import Watcher

__all__ = ["Here", "Processes", "default_workers", "refuse_inside_a_worker"]

WORKERS_ON_GPU = 2
NAME = "statetrack-worker"
UNGUARDED = 77
"""Exit code of a worker whose script called `run_many` while the worker was importing it."""
LOOK_S = 0.5
"""How often a worker looks whether its parent is still there."""
ORPHAN_S = 1.0
"""How long a worker without a parent may take to end by itself."""
STOP_S = 10.0
"""How long a worker that is told to stop may take to end by itself."""


def default_workers(device: str) -> int:
    """One per core on the CPU; two on a GPU, where one compiles while the other trains."""
    return (os.cpu_count() or 1) if device == "cpu" else WORKERS_ON_GPU


class Here:
    """Trains in this process, while it is asked to."""

    losses = 1

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        for group in groups:
            attempt(group, root, device, self._watcher)
        return [object() for _ in groups]

    def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
        return list(jobs)

    def reason(self, job: Any) -> str:
        return "the job returned"

    def cancel(self, job: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Processes:
    """Worker processes, each with its share of the cores. One that dies fails the runs it had."""

    losses = 1

    def __init__(self, workers: int) -> None:
        self._threads = max(1, (os.cpu_count() or 1) // workers)
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        self._idle = [worker for worker in self._idle if worker.process.is_alive()]
        for group in groups:
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.append(worker)
            worker.send((list(group), str(root), device, self._threads))
        return self._busy[-len(groups) :]

    def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
        ready = wait([worker.link for worker in jobs], timeout)
        over = [worker for worker in jobs if worker.link in ready and worker.is_over()]
        for worker in over:
            self._busy.remove(worker)
            if worker.exit_code is None:
                self._idle.append(worker)
        return over

    def reason(self, job: Any) -> str:
        if job.exit_code is None:
            return "the job returned"
        return f"its process died with exit code {job.exit_code}"

    def cancel(self, job: Any) -> None:
        job.send(None)

    def close(self) -> None:
        crew = self._busy + self._idle
        self._busy, self._idle = [], []
        for worker in crew:
            worker.send(None)
        deadline = time.monotonic() + STOP_S
        for worker in crew:
            worker.end(deadline)


class _Worker:
    """A process, as its parent sees it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,), daemon=True, name=NAME)
        with _interrupts_kept_back():
            self.process.start()
        other.close()
        self.is_ready = False
        self.exit_code: int | None = None

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is dead: `is_over` will find out
            self.link.send(message)

    def is_over(self) -> bool:
        """Whether its job has ended, or itself, now that its link has something to say."""
        try:
            self.link.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            self.exit_code = self.process.exitcode
        if self.exit_code is not None:
            self._refuse_false_start(self.exit_code)
            return True
        first, self.is_ready = not self.is_ready, True
        return not first

    def _refuse_false_start(self, code: int) -> None:
        """Raises if it ended by itself before it could work: so would all others."""
        if self.is_ready or code < 0:  # below 0: something killed it
            return
        if code == UNGUARDED:
            raise RuntimeError(
                "a worker process imports your script, which called run_many again: put the call "
                'under `if __name__ == "__main__":`, or train in one process with workers=0'
            )
        raise RuntimeError(
            f"a worker process ended with exit code {code} before it could train (its own message "
            "is above); workers=0 trains in one process"
        )

    def end(self, deadline: float) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.process.kill()
        self.process.join()
        self.link.close()


@contextlib.contextmanager
def _interrupts_kept_back() -> Iterator[None]:
    """Processes started meanwhile never get SIGINT; one that is for this process comes after.

    The mask is this thread's, and goes to the processes. Another thread may still take the signal,
    and Python then runs the handler here: so it only takes note.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # else it is started with the first process, and unblocks
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    swaps = threading.current_thread() is threading.main_thread() and handler is not None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if swaps:
        signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if swaps:
            signal.signal(signal.SIGINT, handler)
        if noted:
            signal.raise_signal(signal.SIGINT)


def refuse_inside_a_worker() -> None:
    """Ends a worker that finds itself in `run_many`; its parent tells the user why."""
    if multiprocessing.current_process().name == NAME:
        os._exit(UNGUARDED)


def _work(link: Connection) -> None:
    """A worker: takes jobs until it is told to stop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(link, jobs), daemon=True).start()
    code = 0
    try:
        link.send("ready")
        while (job := jobs.get()) is not None:
            train_group(*job)
            link.send("ended")
    except KeyboardInterrupt:  # from `_listen`
        pass
    except OSError:  # not even the error could be written: the parent will meet the same
        code = 1
    sys.stdout.flush()
    os._exit(code)  # there is nothing to tidy up, which Python would take seconds for


def _listen(link: Connection, jobs: "queue.SimpleQueue[Any]") -> None:
    """Hands the parent's jobs on. Interrupts the work when there will be no more, then ends it."""
    parent = os.getppid()
    patience = ORPHAN_S
    try:
        while os.getppid() == parent:
            if link.poll(LOOK_S):
                job = link.recv()
                if job is None:
                    patience = STOP_S
                    break
                jobs.put(job)
    except (EOFError, OSError):  # the parent is gone
        pass
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # not even a word about the interrupt
    _thread.interrupt_main()
    jobs.put(None)  # after the interrupt: whoever waits for a job finds it pending
    time.sleep(patience)
    os._exit(1)
