"""The demo, and the paper's figures and tables, from the command line."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from statetrack import experiments
from statetrack.cli import main
from statetrack.cli import reproduce as command
from statetrack.experiments import demo as recipe
from statetrack.report.tables import group_runs, row
from statetrack.runs import find_runs
from tests.helpers import mostly_slow
from tests.training import tiny


def test_reproduce_ends_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "figure-1", "--out", str(tmp_path), "--workers", "0", "--device", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Diagonal [0, 1]" in out and "Diagonal [-1, 1]" in out
    assert len(find_runs(tmp_path / "parity-diagonal-smoke")) == 2
    assert main(["reproduce", "states", "--out", str(tmp_path)]) == 0
    assert "parity, compiled" in capsys.readouterr().out
    rows = json.loads((tmp_path / "states" / "states.json").read_text())
    assert [len(row["states"]) for row in rows] == [64] * 5
    assert main(["reproduce", "chomsky", "--scale", "paper", "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 252
    assert main(["reproduce", "chomsky", "--dry-run", "--only", "parity DeltaNet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_goes_on_comes_with_its_first_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "puzzles", "--only", "cube DeltaProduct n=6 [-1, 1], then windows"]
    assert main([*words, "--dry-run"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "cube DeltaProduct n=6 [-1, 1], lr" in first and "(others start from it)" in first
    assert "then windows, lr" in second and "(others" not in second
    assert main([*words, "--out", str(tmp_path), "--workers", "0", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count("DeltaProduct n=6 [-1, 1]") == 2 and out.count("then windows") == 1
    assert {run.name for run in find_runs(tmp_path)} == {first.split()[0], second.split()[0]}
    assert main(["reproduce", "puzzles", "--dry-run", "--only", "n=6 [-1, 1], lr"]) == 0
    assert capsys.readouterr().out.splitlines() == [first.removesuffix(" (others start from it)")]


def test_without_a_name_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == [*experiments.EXPERIMENTS, experiments.STATES]
    assert "table 3" in lines[names.index("chomsky")]
    for name in names[:-1]:
        assert lines[names.index(name)].endswith(experiments.get(name).summary)


def test_choices_are_those_of_the_experiments() -> None:
    """They stand here again because help loads no experiment."""
    assert get_args(command.Scale) == get_args(experiments.Scale)
    assert get_args(command.Version) == get_args(experiments.Version)


def test_failed_runs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrack.training import Engine

    monkeypatch.setattr(Engine, "_evaluate", lambda self, rows: 1 / 0)
    words = ["reproduce", "figure-1", "--out", str(tmp_path), "--workers", "0", "--device", "cpu"]
    assert main(words) == 1
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if line.startswith("statetrack: ")]
    assert len(told) == 2 and all("ZeroDivisionError" in line for line in told)
    assert "(1 missing)" in captured.out
    assert "(smoke); NO RESULT" in captured.out


def test_demo_draws_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look; that it reaches its numbers is for the machine it is made for."""
    full = recipe.demo

    def short(seed: int = 0) -> list[tiny.RunConfig]:
        small = {"steps": 50, "batch": 2}
        return [replace(c, **small, evaluation=replace(c.evaluation, size=32)) for c in full(seed)]

    monkeypatch.setattr(recipe, "demo", short)
    assert main(["demo", "--out", str(tmp_path), "--workers", "0"]) == 0
    out = capsys.readouterr().out
    for name in ("DeltaNet [0, 1]", "DeltaNet [-1, 1]", "Mamba [0, 1]", "Mamba [-1, 1]"):
        assert out.count(name) == 2  # in the table and over its picture
    assert "40 to 255" in out and "parity_dense" in out
    runs = find_runs(tmp_path)
    assert len(runs) == 4
    lines = [line.strip().split("  ") for line in out.splitlines() if line.endswith(" s")]
    cells = {name: [cell.strip() for cell in rest if cell][:2] for name, *rest in lines}
    for group in group_runs(runs):  # the console and the page have one number each, the same
        found = row(group)
        assert cells[found.model] == [f"{found.learnt:z.3f}", f"{found.best:z.3f}"]


def refuse_to_write() -> None:
    """From here on no file may grow beyond a few bytes, with which packages probe for a place for
    temporary files: a full disk, for this process and its children."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))


@pytest.mark.parametrize("workers", mostly_slow(["0", "2"], fast=["0"]))
def test_a_disk_that_takes_nothing_ends_a_sweep_with_one_line(workers: str, tmp_path: Path) -> None:
    words = ["reproduce", "figure-1", "--workers", workers, "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "statetrack", *words, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=refuse_to_write,
        # Python takes what it could write of a module's bytecode for all of it, now and later.
        env=os.environ
        | {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2, done.stderr
    start, *progress, error = done.stderr.splitlines()
    assert done.stdout == "" and start.startswith("2 runs in "), done.stderr
    assert all(line.endswith(": starting") for line in progress), done.stderr
    assert error.startswith("statetrack: File too large")
