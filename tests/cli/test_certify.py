"""Certificates and repaired runs, from the command line."""

from pathlib import Path

import pytest
import torch

from statetrack import compiler, tasks
from statetrack.analysis import polish
from statetrack.automata import read
from statetrack.cli import main
from statetrack.runs.files import write_atomically
from statetrack.runs.folder import CONFIG, MODEL, run_at
from statetrack.runs.tensors import save_tensors
from statetrack.training import EvaluationConfig, RunConfig, run
from tests.analysis.test_certify import noisy, tagger_for
from tests.cli.words import complaint


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights are those of compiled S3 swaps, all a little off."""
    tagger, machine = tagger_for("s3_swaps", 100)
    config = RunConfig(
        task=tasks.from_machine(machine),
        model=tagger.config,
        steps=1,
        batch=4,
        lengths=(3, 8),
        log_every=1,
        checkpoint_every=None,
        evaluation=EvaluationConfig(every=1, size=4, lengths=(3, 8)),
    )
    folder = run(config, tmp_path_factory.mktemp("certify")).folder
    weights = save_tensors(noisy(tagger, 0.01, seed=1).state_dict())
    write_atomically(folder / MODEL, weights)
    return folder


def test_a_run_is_repaired_and_certified(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def certified(folder: Path) -> int:
        assert main(["certify", str(folder)]) == 0
        line = capsys.readouterr().out.splitlines()[1]
        assert line.endswith("letters with exact arithmetic (bound: linear)") or "cover" in line
        return int(line.split()[0].replace(",", ""))

    before = certified(spoilt)
    out = tmp_path / "polished"
    assert main(["polish", str(spoilt), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "is repaired within 300 s" in told and "accepted after" in told
    assert told.endswith(f"Model: {out}/\n")
    assert {path.name for path in out.iterdir()} == {CONFIG, MODEL}
    assert certified(out) > 1000 * before
    # what was written is what the function gives
    found = polish(run_at(spoilt), read("s3_swaps")).model
    assert found is not None
    kept = run_at(out).weights()
    assert all(torch.equal(kept[name], value) for name, value in found.state_dict().items())
    assert "is not empty" in complaint(["polish", str(spoilt), "--out", str(out)], capsys)


def test_what_is_rejected_is_not_written(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["polish", str(spoilt), "--out", str(tmp_path / "polished"), "--seconds", "1e-9"]
    assert main(words) == 1
    assert "rejected, and the model is as it was: the 1e-09 seconds" in capsys.readouterr().out
    assert not (tmp_path / "polished").exists()


def test_a_compiled_network_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiler.compile(read("(ab)*")).save(tmp_path)
    assert main(["certify", str(tmp_path)]) == 0
    assert "proved letter by letter for words of any length" in capsys.readouterr().out
    assert "--against is about runs" in complaint(
        ["certify", str(tmp_path), "--against", "parity"], capsys
    )


def test_mistakes_are_one_line(spoilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere is not the folder of a run" in complaint(["certify", "nowhere"], capsys)
    words = ["certify", str(spoilt), "--against", "mod_arithmetic_brackets"]
    assert "has no machine; name one with --against" in complaint(words, capsys)
    assert "same letters" in complaint(["certify", str(spoilt), "--against", "parity"], capsys)
