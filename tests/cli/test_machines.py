"""explain, compile, run and audit of compiled networks from the command line."""

import json
from pathlib import Path

import pytest

from statetrack.cli import main
from statetrack.compiler import CompiledRNN


def test_explain_says_who_can_and_who_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "(aa)*"]) == 0
    out = capsys.readouterr().out
    assert "CANNOT  eigenvalues in [0, 1]" in out and "theorem 1" in out
    assert "CAN     real diagonal or triangular in [-1, 1]" in out


@pytest.mark.parametrize("source", ["(a|b)*ab", "s5_swaps", "table.json"])
def test_compile_then_run_then_audit(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = {"delta": [[1, 0], [1, 2], [1, 0]], "accepting": [2], "alphabet": "ab"}
    Path("table.json").write_text(json.dumps(table))
    assert main(["compile", source, "--out", "model"]) == 0
    out = capsys.readouterr().out
    assert "method" in out and "0 of 8000 states wrong" in out
    network = CompiledRNN.load(Path("model"))
    if source == "s5_swaps":
        return
    assert main(["run", "model", "--word", "abab"]) == 0
    assert capsys.readouterr().out.strip().endswith("accepted")
    assert main(["run", "model", "--word", "aba"]) == 0
    assert capsys.readouterr().out.strip().endswith("rejected")
    assert main(["audit", "model", "--plot", "spectrum.png"]) == 0
    assert "theorem 1" in capsys.readouterr().out
    assert Path("spectrum.png").stat().st_size > 1000
    assert network.machine.accepts("abab")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "(a"], "regex '(a' is malformed"),
        (["explain", "s5_pionts"], "did you mean"),
        (["explain", "nothing.json"], "there is no file nothing.json"),
        (["compile", "(ab)*", "--out", "m", "--method", "diagnal"], "diagonal"),
        (["compile", "s5", "--out", "m", "--method", "diagonal"], "theorem 2"),
        (["run", "nowhere", "--word", "ab"], "nowhere"),
        (["audit", "."], "neither a run folder nor a language model nor a compiled network"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(("format", "file"), [("numpy", "run.py"), ("onnx", "network.onnx")])
def test_compile_for_elsewhere(
    format: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "there")
    words = ["compile", "(a|b)*ab", "--method", "cascade", "--out", out, "--format", format]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert file in said and "exact" in said and "2 layers" in said
    assert (tmp_path / "there" / file).is_file()
