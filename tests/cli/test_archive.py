"""Runs into the archive, from the command line."""

import dataclasses
import json
from datetime import date
from pathlib import Path

import pytest

from statetrack import automata
from statetrack.analysis.exact_file import write_exact
from statetrack.cli import main
from statetrack.runs import find_runs
from tests.analysis.test_exact_file import record_of
from tests.cli.words import complaint
from tests.report.folders import parity, scores, write_run


def test_finished_runs_go_to_their_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(Path("runs/s5-quick"), parity(seed), scores(0.5))
    write_run(Path("runs/z60-quick"), parity(), scores(0.5))
    write_run(Path("runs/z60-quick"), parity(1), scores(0.5), finished=False)
    assert main(["archive", "runs"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "results/s5-quick: 2 runs added, 0 there already",
        "results/z60-quick: 1 runs added, 0 there already",
        "Left out: 1 that have not finished",
    ]
    assert len(find_runs("results")) == 3
    assert main(["archive", "runs/s5-quick", "--out", "results"]) == 0
    assert "0 runs added, 2 there already" in capsys.readouterr().out
    assert main(["report", "results"]) == 0
    page = Path("report.html").read_text()
    # a run that lies in two experiments counts in both tables, in each with its own line
    assert all(f"results/{name}/runs.jsonl line 1" in page for name in ("s5-quick", "z60-quick"))
    assert "results/s5-quick/runs.jsonl line 2" in page
    assert 'href="results/s5-quick/runs.jsonl#L2"' in page


def test_a_retest_goes_to_the_file_of_its_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/s5-quick"), parity(), scores(0.5))
    write_run(Path("again/s5-quick"), parity(), scores(0.75))
    assert main(["archive", "runs"]) == 0
    capsys.readouterr()
    assert "add it as a retest (--retest)" in complaint(["archive", "again"], capsys)
    assert main(["archive", "again", "--retest"]) == 0
    names = {path.name for path in Path("results/s5-quick").glob("*.jsonl")}
    assert len(names) == 2 and "runs.jsonl" in names
    (other,) = names - {"runs.jsonl"}
    assert date.fromisoformat(other.removeprefix("runs-").removesuffix(".jsonl")) <= date.today()


def test_a_run_made_again_for_others_to_start_from_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = parity()
    write_run(Path("runs/s5-quick"), first, scores(0.5))
    assert main(["archive", "runs"]) == 0
    write_run(Path("again/s5-quick"), first, scores(0.75))
    second = dataclasses.replace(first, start=first.fingerprint, data_seed=7)
    write_run(Path("again/s5-quick"), second, scores(1.0))
    capsys.readouterr()
    assert main(["archive", "again"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "results/s5-quick: 1 runs added, 0 there already",
        "Left out: 1 that others start from, and that are there already",
    ]
    assert [run.last("scaled_accuracy") for run in find_runs("results")] == [0.5, 1.0]


def test_exact_networks_go_to_their_own_folder_and_onto_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_exact(record_of(Path("exact"), automata.read("parity")), "exact")
    assert main(["archive", "exact"]) == 0
    assert capsys.readouterr().out == "results/exact: 1 added, 0 there already\n"
    assert main(["archive", "exact"]) == 0
    assert capsys.readouterr().out == "results/exact: 0 added, 1 there already\n"
    assert find_runs("results") == []  # the run itself is not kept
    write_run(Path("runs/mine"), parity(1), scores(0.5))
    assert main(["archive", "runs"]) == 0
    assert main(["report", "results"]) == 0
    page = Path("report.html").read_text()
    assert (
        '<a role="tab" id="tab-exact"' in page
        and "1 of 1 networks are exact at every length" in page
    )
    assert f'href="results/exact/{parity().fingerprint}.json">parity</a>' in page
    assert main(["report", "runs"]) == 0
    assert "tab-exact" not in Path("report.html").read_text()
    assert main(["report", "exact"]) == 0  # as it was made
    assert 'href="exact/exact.json">parity</a>' in Path("report.html").read_text()


def test_what_cannot_be_archived_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "give run folders" in complaint(["archive"], capsys)
    nowhere = str(tmp_path / "nowhere")
    assert f"{nowhere} is no folder" in complaint(["archive", str(tmp_path), nowhere], capsys)
    run = write_run(Path("runs/s5-quick"), parity(), scores(0.5))
    run.audit_at.path.write_text(json.dumps({"tokens": 1}))
    assert "audit.json cannot be read" in complaint(["archive", "runs"], capsys)
    run.audit_at.path.unlink()
    run.records_at.path.unlink()
    assert "records.jsonl is missing" in complaint(["archive", "runs"], capsys)
    assert not Path("results").exists()
