"""What the tests of sweeps share: runs, someone who listens, and harm done to workers."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Record, Run
from statetrack.training import RunConfig
from tests.training import tiny

LONG = tiny.config(seed=0, steps=400, log_every=4, checkpoint_every=20)
SHORT = tiny.config(seed=1)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")

Whole = dict[str, tuple[bytes, bytes]]
"""Fingerprint -> what the run ends with when nobody disturbs it."""


class Heard:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.rows: dict[str, list[Record]] = {}
        self.waited: set[str] = set()
        self.over: dict[str, bool] = {}

    def begin(self, configs: Sequence[RunConfig], root: Path, *, finished: int = 0) -> None:
        self.begun.append((len(configs), finished))

    def __call__(self, config: RunConfig, rows: list[Record]) -> None:
        self.rows.setdefault(config.fingerprint, []).extend(rows)

    def held(self, config: RunConfig) -> None:
        self.waited.add(config.fingerprint)

    def ended(self, config: RunConfig, run: Run) -> None:
        assert config.fingerprint not in self.over
        self.over[config.fingerprint] = run.finished


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "records.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()


def expect_the_same(sweep: Any, whole: Whole, configs: Sequence[RunConfig]) -> None:
    assert [one.error for one in sweep.runs] == [None] * len(configs)
    assert not sweep.failed
    for one, config in zip(sweep.runs, configs, strict=True):
        assert outcome(one.folder) == whole[config.fingerprint]


def wait_until(happens: Callable[[], Any], within: float = 120.0) -> Any:
    """What `happens` says when it is true."""
    deadline = time.monotonic() + within
    while not (value := happens()):
        assert time.monotonic() < deadline, f"it did not happen within {within} s"
        time.sleep(0.005)
    return value


def writer_of(path: Path) -> int | None:
    """The process, not this one, that has `path` open."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                files = [os.readlink(link) for link in (entry / "fd").iterdir()]
            except OSError:
                continue
            if str(path) in files:
                return int(entry.name)
    return None


def checkpoints_of(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob("step-*"))


class Once(threading.Thread):
    """Does something to the worker of a run, once that run has written two checkpoints."""

    def __init__(self, folder: Path, act: Callable[[int], Any]) -> None:
        super().__init__(daemon=True)
        self.folder, self.act, self.done = folder, act, False

    def run(self) -> None:
        wait_until(lambda: len(checkpoints_of(self.folder)) >= 2)
        self.act(wait_until(lambda: writer_of(self.folder / "records.jsonl")))
        self.done = True


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
