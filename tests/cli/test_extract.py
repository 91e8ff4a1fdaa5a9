"""The machine of a trained run, from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from statetrack import analysis, automata
from statetrack.cli import main
from statetrack.training import run
from tests.training import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tiny.config(), tmp_path_factory.mktemp("extract")).folder


def fake(*machines: str, interrupt: bool = False) -> object:
    """Extractions of parity, one for each machine named, from a function and not the run."""

    def extractions(model: str, **options: object) -> Iterator[analysis.Extraction]:
        for name in machines:
            machine = automata.read(name)
            yield analysis.extract(
                lambda tokens, m=machine: m.run(tokens.numpy()),
                alphabet=machine.alphabet,
                lengths=(4, 8),
            )
        if interrupt:
            raise KeyboardInterrupt

    return extractions


def test_a_run_that_learnt_nothing(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["extract", str(trained), "--longest", "16", "--max-states", "4"])
    out = capsys.readouterr().out
    assert out.startswith("words of 8 to 16 letters") and "length 8:" in out
    assert code == (1 if "no finite machine" in out else 0)


def test_the_machine_is_written_and_compared(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "extractions", fake("parity"))
    out = tmp_path / "machine.json"
    words = ["extract", str(trained), "--out", str(out), "--against"]
    assert main([*words, "parity"]) == 0
    assert "equal to the target machine" in capsys.readouterr().out
    assert json.loads(out.read_text())["delta"] == [[0, 1], [1, 0]]
    assert main([*words, "z2"]) == 0
    assert "equal to the target machine" in capsys.readouterr().out
    assert main(["explain", str(out)]) == 0


def test_ctrl_c_gives_what_was_found(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "extractions", fake("parity", interrupt=True))
    assert main(["extract", str(trained)]) == 130
    out = capsys.readouterr().out
    assert "stopped; this was found so far:" in out and "trusted to 8 letters" in out
    monkeypatch.setattr(analysis, "extractions", fake(interrupt=True))
    assert main(["extract", str(trained)]) == 130
    assert "nothing was found" in capsys.readouterr().err


def test_without_a_machine_nothing_is_written(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def extractions(model: str, **options: object) -> Iterator[analysis.Extraction]:
        yield analysis.extract(
            lambda tokens: tokens.cumsum(1), alphabet=2, lengths=(4, 8), max_states=3
        )

    monkeypatch.setattr(analysis, "extractions", extractions)
    assert main(["extract", str(trained), "--out", str(tmp_path / "machine.json")]) == 1
    out = capsys.readouterr().out
    assert "no finite machine" in out and "nothing was written" in out
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("terminal", [True, False])
def test_it_is_never_silent(
    terminal: bool,
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr("statetrack.cli.show.LINE_S", 0.0)
    main(["extract", str(trained), "--longest", "16", "--max-states", "4"])
    told = capsys.readouterr().err
    assert "length 8: 0 states so far, 0 words asked" in told
    assert ("\x1b[K" in told) == terminal and told.endswith("\x1b[K" if terminal else "asked\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["extract", "nowhere"], "nowhere is not the folder of a run"),
        (["extract", "nowhere", "--out", "machine.txt"], "must end in .json"),
        (["extract", "nowhere", "--longest", "8"], "two or more, rising"),
        (["extract", "nowhere", "--against", "mod_arithmetic_brackets"], "has no machine"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
