"""Many runs: none stops another, none is trained twice."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import find_runs
from statetrack.runs.records import Record
from statetrack.sweep import run_many
from statetrack.training import RunConfig, run
from statetrack.training.loop import Session
from tests.training import tiny


class Heard:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Record]] = {}
        self.ended: list[str] = []

    def __call__(self, config: RunConfig, rows: list[Record]) -> None:
        self.rows.setdefault(config.fingerprint, []).extend(rows)

    def finished(self, config: RunConfig) -> None:
        self.ended.append(config.fingerprint)


CONFIGS = [tiny.config(seed=seed) for seed in range(3)]


def test_in_this_process_failures_stay_alone_and_finished_runs_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Session._evaluate

    def fail_once(self: Session) -> list[Record]:
        if self.config.seed == 1:
            raise ZeroDivisionError("on purpose")
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_evaluate", fail_once)
        sweep = run_many([*CONFIGS, CONFIGS[0]], tmp_path, workers=0)
    assert [one.finished for one in sweep.runs] == [True, False, True, True]
    assert [one.config.seed for one in sweep.failed] == [1]
    assert "ZeroDivisionError: on purpose" in (sweep.failed[0].error or "")
    left = sweep.runs[0].folder / "checkpoints"
    left.mkdir()  # as if it had been killed between DONE and the clean-up
    heard = Heard()
    again = run_many(CONFIGS, tmp_path, workers=0, watch=heard)
    assert not again.failed and not left.exists()
    assert set(heard.rows) == {CONFIGS[1].fingerprint}  # only the failed one was trained
    assert sorted(heard.ended) == sorted(config.fingerprint for config in CONFIGS)
    assert len(find_runs(tmp_path)) == 3


def kill_a_worker_while(folder: Path, victim: RunConfig) -> None:
    """Waits until `victim` writes records, and kills the process that writes them."""
    path = folder / victim.fingerprint / "records.jsonl"
    while not (path.exists() and path.stat().st_size):
        time.sleep(0.005)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                open_files = [os.readlink(link) for link in (entry / "fd").iterdir()]
            except OSError:
                continue
            if str(path) in open_files:
                os.kill(int(entry.name), signal.SIGKILL)
                return


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_in_processes_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    victim = tiny.config(seed=0, steps=20_000)
    others = CONFIGS[1:]
    killer = threading.Thread(target=kill_a_worker_while, args=(tmp_path, victim))
    killer.start()
    heard: Any = Heard()
    sweep = run_many([victim, *others], tmp_path, workers=1, watch=heard)
    killer.join()
    assert [one.finished for one in sweep.runs] == [False, True, True]
    assert "died with exit code -9" in (sweep.runs[0].error or "")
    assert sorted(heard.ended) == sorted(c.fingerprint for c in (victim, *others))
    # the same numbers as in this process
    alone = run(others[0], tmp_path / "alone")
    assert sweep.runs[1].records == alone.records


def test_an_unwritable_folder_is_an_error_and_not_silence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        run_many(CONFIGS, tmp_path / "file", workers=0)
