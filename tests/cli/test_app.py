"""What works says where it is, what does not says why in one line; help is quick and complete."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statetrack.cli import app, main
from statetrack.cli import train as train_command
from tests.cli.words import SMALL, complaint

NAMES = [command.__name__ for command in app.commands()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], 'Did you mean "train"'),
        (["train", "--taks", "parity"], "Did you mean --task"),
        (["train", "--task", "paritty"], "did you mean 'parity'"),
        (["train", "--model", "deltanett"], "did you mean 'DeltaNet'"),
        (["train", "--steps", "0"], "at least 1"),
        (["train", "--steps", "many"], "into int"),
        (["train", "--seed", "1.5"], '--seed: unable to convert "1.5" into int'),
        (["train", "--clip-norm", "none"], '--clip-norm: unable to convert "none" into float'),
        (["train", "--lengths", "3", "4.5"], "into int"),
        (["reproduce", "figure-1", "--workers", "none"], "into int"),
        (["train", "--option", "num_head=2"], "did you mean 'num_heads'"),
        (["train", "--option", "num_heads"], "name=value"),
        (["train", *["--option", "num_heads=2"] * 2], "num_heads is given twice: 2 and 2"),
        (
            ["train", "--option", "eigen_range=[0,1]", "--eigen-range", "-1", "1"],
            "the range is given twice",
        ),
        (["train", "--option", "num_heads=3"], "num_heads=3 must divide d_model=32"),
        (["train", "--model", "Attention", "--eigen-range", "-1", "1"], "takes no eigen_range"),
        (["train", "--eigen-range", "-2", "1"], "-2"),
        (["train", "--config", "missing.json"], "missing.json"),
        (
            ["train", "--config", "x", "--lr", "3", "--eval-size", "4"],
            "leave out --lr, --eval-size",
        ),
        (["train", "--device", "gpu"], "gpu"),
        (["train", "--out", "/dev/null/x", *SMALL], "/dev/null/x"),
        (["train", "--width", "0"], "width=0 must be at least 1"),
        (["train", "--layers", "0"], "layers=0 must be at least 1"),
        (["train", "--device", "meta"], "device='meta' must be cpu or cuda"),
        (["train", "--device", "cpu:x"], "must be cpu or cuda"),
        (["reproduce", "chomky"], "did you mean 'chomsky'"),
        (["reproduce", "chomsky", "--scale", "large"], "smoke"),
        (["reproduce", "figure-1", "--only", "no such run"], "has 'no such run' in its"),
        (["reproduce", "figure-1", "--workers", "-1"], "workers=-1 must be at least 0"),
        (["reproduce", "figure-1", "--launcher", "slurm"], '"processes", "ray", "submitit"'),
        (["reproduce", "figure-1", "--launcher", "ray", "--workers", "0"], "at least 1"),
        (["reproduce", "figure-1", "--launcher", "ray", "--device", "tpu"], "must be cpu or cuda"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in complaint(words, capsys)
    with pytest.raises(BaseException, match=r".") as caught:
        main([*words, "--debug"])
    assert not isinstance(caught.value, SystemExit)


LONG = "a" * 5000


@pytest.mark.parametrize(
    "words",
    [
        [LONG],
        ["train", "--task", LONG],
        ["train", f"--option=num_heads={LONG}"],
        ["train", "--option", LONG],
        ["train", "--task", f"regex:({LONG}"],
        ["train", "--steps", LONG],
        ["train", "--config", LONG],
        ["train", f"--{LONG}=3"],
        ["reproduce", LONG],
        ["explain", "(" + LONG],
        ["explain", "\n\t'" * 500],
    ],
    ids=lambda words: " ".join(words)[:24],
)
def test_long_arguments_are_cut(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = complaint(words, capsys)
    assert "…" in told and len(told) < 1000


def test_only_long_arguments_are_cut(tmp_path: Path) -> None:
    text = f"{'a' * 100} and {'b' * 101} and {'c' * 101}"
    cut = app.cut_arguments(text, ["a" * 100, "b" * 101])
    assert cut == f"{'a' * 100} and {'b' * 100}… and {'c' * 101}"
    there = tmp_path / ("d" * 101)  # the path of something that exists is worth reading
    there.touch()
    assert app.cut_arguments(f"{there} is odd", [str(there)]) == f"{there} is odd"


def test_what_nobody_foresaw_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_command, "layer_options", lambda pairs, between: 1 / 0)
    assert "ZeroDivisionError: division by zero (not foreseen" in complaint(["train"], capsys)
    with pytest.raises(ZeroDivisionError):
        main(["train", "--debug"])


def test_stopping_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(pairs: tuple[str, ...], between: tuple[float, float] | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "layer_options", stop)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "statetrack: stopped\n"  # nothing was saved, none is claimed


def test_a_full_disk_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrack.runs import files

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "_write", full)
    assert main(["train", *SMALL, "--out", str(tmp_path), "--device", "cpu"]) == 2
    start, error = capsys.readouterr().err.splitlines()
    assert "4 steps of 4 sequences" in start and start.endswith(f" in {tmp_path}")
    assert error.startswith("statetrack: No space left on device: ")


def test_code_of_ones_own_is_imported_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine_for_a_test.py"
    file.write_text(
        "import dataclasses\n"
        "from statetrack import layers, tasks\n"
        "@layers.register\n"
        "class MineForATest(layers.DeltaNet):\n"
        "    pass\n"
        "tasks.register(dataclasses.replace(tasks.get('parity'), name='parity_for_a_test'))\n"
    )
    words = ["--import", str(file), "train", *SMALL, "--out", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--model", "MineForATest", "--task", "parity_for_a_test"]) == 0
    assert "parity_for_a_test MineForATest [-1, 1]" in capsys.readouterr().out
    assert main(["--import", "no_such_module_for_a_test", "tasks"]) == 2
    assert main(["tasks", f"--import={tmp_path / 'gone.py'}"]) == 2
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"statetrack {command}" in out
    assert "--no-" not in out.replace("--no-browser", "") and "--empty-" not in out


def options() -> Iterator[tuple[str, Any]]:
    """Every argument of every command, as cyclopts sees it."""
    whole = app.build()
    for name in NAMES:
        for argument in whole[name].assemble_argument_collection(parse_docstring=True):
            if argument.show:
                yield f"{name} {argument.name}", argument


OPTIONS = dict(options())


def test_all_options_are_walked() -> None:
    for known in ("train --width", "train --wandb", "reproduce --workers", "audit MODELS"):
        assert known in OPTIONS
    assert len(OPTIONS) > 45


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_help_text(name: str) -> None:
    text = OPTIONS[name].parameter.help or ""
    assert len(text) >= 8 and text.rstrip().endswith("."), f"{name}: {text!r}"


QUICK = [["--help"], ["--version"], ["trian"], ["train", "--help"], ["train", "--stesp", "3"]]


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_help_and_typos_load_neither_torch_nor_training(words: list[str]) -> None:
    code = (
        f"import sys; from statetrack.cli import main; main({words!r}); "
        "print(*sorted(name for name in sys.modules), sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(done.stderr.splitlines())
    assert "statetrack.cli.app" in loaded, done.stderr
    for heavy in ("torch", "numpy", "matplotlib"):
        assert heavy not in loaded
    for heavy in ("training", "experiments", "models", "tasks", "layers", "report"):
        assert f"statetrack.{heavy}" not in loaded


def cpu_seconds(words: list[str]) -> float:
    """User and system time of one call in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "statetrack", *words], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_help_and_typos_take_half_a_second_of_cpu_time(words: list[str]) -> None:
    """0.2 to 0.35 s; the best of five, because a busy machine stretches CPU time too."""
    times: list[float] = []
    while len(times) < 5 and min(times, default=1.0) >= 0.5:
        times.append(cpu_seconds(words))
    assert min(times) < 0.5, times


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
