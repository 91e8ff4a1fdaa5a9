"""From examples to an exact network, from the command line."""

from pathlib import Path

import pytest

from statetrack import automata
from statetrack.cli import main
from statetrack.compiler import CompiledRNN


@pytest.mark.slow
def test_parity_becomes_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exact", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "equal to the target machine" in told and "any length, proved" in told
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
    assert (tmp_path / "machine.json").exists() == (code == 0)
