"""What a worker does: train, wait for whoever holds the run, keep failures in their folders."""

import threading
import time
from pathlib import Path

import pytest

from statetrack.runs import Run
from statetrack.runs.files import exclusive
from statetrack.sweep import launcher
from statetrack.sweep.launcher import attempt, train_group
from statetrack.training import Engine
from tests.sweep.cases import SHORT


def test_a_job_waits_for_whoever_holds_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "POLL_S", 0.01)
    folder = tmp_path / SHORT.fingerprint
    folder.mkdir()
    job = threading.Thread(target=train_group, args=([SHORT], str(tmp_path), "cpu"))
    with exclusive(folder / "lock"):
        job.start()
        time.sleep(0.1)
        assert [path.name for path in folder.iterdir()] == ["lock"]
    job.join()
    assert Run(folder).finished and Run(folder).error is None


def test_a_job_gives_up_on_a_folder_that_stays_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "POLL_S", 0.01)
    monkeypatch.setattr(launcher, "PATIENCE_S", 0.1)
    folder = tmp_path / SHORT.fingerprint
    folder.mkdir()
    with exclusive(folder / "lock"):
        attempt([SHORT], tmp_path, "cpu")
        assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_failure_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_evaluate", lambda self, rows: 1 / 0)
    attempt([SHORT], tmp_path, "cpu")
    assert "ZeroDivisionError" in (Run(tmp_path / SHORT.fingerprint).error or "")
