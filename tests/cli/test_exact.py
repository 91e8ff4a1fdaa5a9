"""From examples to an exact network, from the command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from statetrack import automata, tasks
from statetrack.analysis.exact_file import read_exact
from statetrack.cli import main
from statetrack.cli.exact import _needed
from statetrack.compiler import CompiledRNN
from tests.cli.words import complaint


@pytest.mark.slow
def test_parity_becomes_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exact", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "equal to the target machine" in told and "any length, proved" in told
    record = read_exact(tmp_path / "exact.json")
    assert record.exact and (record.task, record.states) == ("parity_dense", 2)
    # from the trained run the same, without training
    assert main(["exact", str(tmp_path / record.fingerprint), "--out", str(tmp_path / "b")]) == 0
    again = read_exact(tmp_path / "b" / "exact.json")
    assert replace(again, made=record.made) == record
    machine = automata.read(str(tmp_path / "machine.json"))
    assert machine.equivalent(automata.read("parity"))
    assert CompiledRNN.load(tmp_path / "network").run([1, 1, 0, 1]).tolist() == [1, 0, 0, 1]


def test_what_learnt_nothing_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["exact", "--task", "s3", "--steps", "1", "--width", "8", "--longest", "4"]
    code = main([*words, "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert told.startswith("1. train on examples of s3") and "2. extract" in told
    assert (code == 1) == ("there is no machine to compile" in told)
    record = read_exact(tmp_path / "exact.json")
    assert (record.states is None) == (code == 1) and not record.exact
    assert (tmp_path / "machine.json").exists() == (code == 0)


def test_as_many_householders_as_the_machine_needs() -> None:
    needed = {name: _needed(tasks.get(name)) for name in ("parity_dense", "z3", "s3_swaps", "s5")}
    assert needed == {"parity_dense": 1, "z3": 2, "s3_swaps": 1, "s5": 4}
    assert _needed(tasks.get("mod_arithmetic_brackets")) == 1  # no machine has it


def test_training_options_do_not_go_with_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["exact", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]
    assert "do not go with" in complaint([*words, "--steps", "7"], capsys)
    assert main(words) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
