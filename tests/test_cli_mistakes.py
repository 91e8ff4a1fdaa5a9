"""Mistakes on the command line that come from outside: odd values, broken files, full disks."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from statetrack import cli
from statetrack.cli import main
from tests.training import tiny

SMALL = ["--width", "16", "--layers", "1", "--steps", "4", "--batch", "4", "--eval-size", "16"]
SMALL += ["--eval-every", "4", "--option", "num_heads=2"]


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("statetrack: ") and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--width", "0"], "width=0 must be at least 1"),
        (["train", "--layers", "0"], "layers=0 must be at least 1"),
        (["train", "--device", "meta"], "device='meta' must be cpu or cuda"),
        (["train", "--device", "cpu:x"], "must be cpu or cuda"),
        (["reproduce", "figure-1", "--workers", "-1"], "workers=-1 must be at least 0"),
        (["reproduce", "figure-1", "--launcher", "slurm"], '"processes", "ray", "submitit"'),
        (["reproduce", "figure-1", "--launcher", "ray", "--workers", "0"], "at least 1"),
        (["reproduce", "figure-1", "--launcher", "ray", "--device", "tpu"], "must be cpu or cuda"),
    ],
)
def test_values_out_of_range(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in complaint(words, capsys)


WHOLE = tiny.config().to_dict()
ODD = ["", "{", "\x00", json.dumps(WHOLE | {"task": 3}), json.dumps(WHOLE | {"model": None})]


@pytest.mark.parametrize("text", ODD, ids=["empty", "cut", "binary", "task", "model"])
def test_a_file_that_is_no_config_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert str(path) in complaint(["train", "--config", str(path), "--device", "cpu"], capsys)


def test_a_page_is_not_written_over_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page"
    page.mkdir()
    assert main(["train", *SMALL, "--out", str(runs), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert f"{page} is a folder" in complaint(["report", str(runs), "--out", str(page)], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "runs"]


def test_what_nobody_foresaw_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_layer_options", lambda pairs: 1 / 0)
    assert "ZeroDivisionError: division by zero (not foreseen" in complaint(["train"], capsys)
    with pytest.raises(ZeroDivisionError):
        main(["train", "--debug"])


def refuse_to_write() -> None:
    """From here on no file may grow: a full disk, for this process and its children."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_disk_that_takes_nothing_ends_a_sweep_with_one_line(workers: str, tmp_path: Path) -> None:
    words = ["reproduce", "figure-1", "--workers", workers, "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "statetrack", *words, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=refuse_to_write,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")},
    )
    assert done.returncode == 2, done.stderr
    start, *progress, error = done.stderr.splitlines()
    assert done.stdout == "" and start.startswith("2 runs in "), done.stderr
    assert all(line.endswith(": starting") for line in progress), done.stderr
    assert error.startswith("statetrack: File too large")
