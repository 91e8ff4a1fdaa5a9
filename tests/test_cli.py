"""The command line: what works says where it is, what does not says why in one line."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statetrack.cli import COMMANDS, main
from statetrack.experiments import demo as recipe
from statetrack.runs import find_runs
from tests.training import tiny

SMALL = ["--width", "8", "--layers", "1", "--steps", "4", "--batch", "4", "--option", "num_heads=2"]
SMALL += ["--eval-every", "4", "--eval-size", "16"]


def test_train_writes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "train",
        *SMALL,
        "--eigen-range",
        "-0.5",
        "1",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    (run,) = find_runs(tmp_path)
    assert run.finished and str(run.folder) in out and "scaled accuracy" in out
    assert run.config.model.backbone.mixers[0].options["eigen_range"] == (-0.5, 1.0)
    assert run.config.model.backbone.mixers[0].options["num_heads"] == 2
    # the stored config is a recipe
    again = tmp_path / "again"
    stored = str(run.folder / "config.json")
    assert main(["train", "--config", stored, "--out", str(again), "--device", "cpu"]) == 0
    (copy,) = find_runs(again)
    assert copy.config == run.config and copy.records == run.records


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], 'Did you mean "train"'),
        (["train", "--taks", "parity"], "Did you mean --task"),
        (["train", "--task", "paritty"], "did you mean 'parity'"),
        (["train", "--model", "deltanett"], "did you mean 'DeltaNet'"),
        (["train", "--steps", "0"], "at least 1"),
        (["train", "--steps", "many"], "into int"),
        (["train", "--option", "num_head=2"], "did you mean 'num_heads'"),
        (["train", "--option", "num_heads"], "name=value"),
        (["train", "--option", "num_heads=3"], "num_heads=3 must divide d_model=128"),
        (["train", "--model", "Attention", "--eigen-range", "-1", "1"], "takes no eigen_range"),
        (["train", "--eigen-range", "-2", "1"], "-2"),
        (["train", "--config", "missing.json"], "missing.json"),
        (["train", "--device", "gpu"], "gpu"),
        (["train", "--out", "/dev/null/x", *SMALL], "/dev/null/x"),
        (["reproduce", "chomky"], "did you mean 'chomsky'"),
        (["reproduce", "chomsky", "--scale", "large"], "smoke"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("statetrack: ")
    assert message in captured.err
    with pytest.raises(BaseException, match=r".") as caught:
        main([*words, "--debug"])
    assert not isinstance(caught.value, SystemExit)


def test_a_config_with_an_unknown_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**tiny.config().to_dict(), "stepz": 3}))
    assert main(["train", "--config", str(path)]) == 2
    assert "did you mean 'steps'" in capsys.readouterr().err


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


def test_a_full_disk_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrack.runs import files

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "_write", full)
    assert main(["train", *SMALL, "--out", str(tmp_path), "--device", "cpu"]) == 2
    start, error = capsys.readouterr().err.splitlines()
    assert start.endswith(f"4 steps in {tmp_path}")
    assert error.startswith("statetrack: No space left on device: ")


def test_a_diverging_run_is_a_failure_and_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *SMALL, "--out", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--lr", "1e30", "--warmup", "0"]) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("statetrack: ") and "became" in error and "at step" in error


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert "mod_arithmetic_brackets " in capsys.readouterr().out
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("DeltaNet ") for line in lines)
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


@pytest.mark.parametrize("command", [command.__name__ for command in COMMANDS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"statetrack {command}" in capsys.readouterr().out


def test_demo_draws_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look; that it reaches its numbers is for the machine it is made for."""
    from dataclasses import replace

    full = recipe.demo

    def short(seed: int = 0) -> list[tiny.RunConfig]:
        small = {"steps": 50, "batch": 2}
        return [replace(c, **small, evaluation=replace(c.evaluation, size=32)) for c in full(seed)]

    monkeypatch.setattr(recipe, "demo", short)
    assert main(["demo", "--out", str(tmp_path), "--workers", "0"]) == 0
    out = capsys.readouterr().out
    for name in ("DeltaNet [0, 1]", "DeltaNet [-1, 1]", "Mamba [0, 1]", "Mamba [-1, 1]"):
        assert out.count(name) == 2  # in the table and over its picture
    assert "41 to 256" in out and "parity_dense" in out
    assert len(find_runs(tmp_path)) == 4


def test_help_imports_nothing_of_training() -> None:
    code = (
        "import sys; from statetrack.cli import main; main(['--help']); "
        "print([name for name in sys.modules if name.startswith('statetrack.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "reproduce" in done.stdout
    loaded = done.stdout.splitlines()[-1]
    assert "statetrack.cli" in loaded
    for heavy in ("training", "experiments", "models", "tasks", "layers"):
        assert f"statetrack.{heavy}" not in loaded


def test_module_entry_point() -> None:
    env = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "statetrack", "train", "--stesp", "3"],
        capture_output=True,
        text=True,
        env=env,
    )
    assert done.returncode == 2
    assert done.stderr == "statetrack: Unknown option: --stesp. Did you mean --steps?\n"
