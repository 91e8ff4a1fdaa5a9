"""Archives: what a line says is what the folder said, and no line is ever replaced."""

import json
from datetime import date
from pathlib import Path

import pytest

from statetrack.runs import Record, Run, problems, read_records
from statetrack.runs.archive import archived_runs, columns_of, numbers_of, records_in, store
from statetrack.runs.files import InUse, checksum_of, exclusive
from statetrack.runs.folder import MODEL
from tests.analysis.audits import fields
from tests.report.folders import parity, scores, write_run

DAY = date(2026, 11, 20)


def made(root: Path, *values: float, lr: float = 1e-3) -> list[Run]:
    """Runs of one cell, one for each seed."""
    return [write_run(root, parity(seed, lr), scores(0.1, v)) for seed, v in enumerate(values)]


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def test_an_archived_run_reads_as_its_folder_did(tmp_path: Path) -> None:
    run, _ = made(tmp_path / "runs", 0.5, 0.25)
    run.audit_at.path.write_text(json.dumps(fields()))
    assert store([run], tmp_path / "kept") == [run.config.fingerprint]
    (found,) = archived_runs(tmp_path)
    assert found.config == run.config and found.info == run.info and found.audit == run.audit
    assert found.fingerprints == (run.config.fingerprint,)
    assert found.finished and found.error is None
    assert sorted(found.records, key=str) == sorted(run.records, key=str)
    assert found.last("scaled_accuracy") == 0.5 and found.curve() == run.curve() != {}
    assert found.name == str(found.place) == f"{tmp_path / 'kept' / 'runs.jsonl'} line 1"
    assert not found.has_weights
    with pytest.raises(ValueError, match="runs.jsonl line 1 has no weights"):
        found.weights()


def test_weights_may_be_gone_but_numbers_may_not(tmp_path: Path) -> None:
    run, _ = made(tmp_path / "runs", 0.5, 0.25)
    done = json.loads((run.folder / "DONE").read_text())
    sums = {name: checksum_of(run.folder / name) for name in ("config.json", "records.jsonl")}
    done["sha256"] = {**sums, MODEL: "of weights that are gone"}
    (run.folder / "DONE").write_text(json.dumps(done))
    assert problems(run) == [f"{run.folder / MODEL} is missing"]
    assert store([run], tmp_path / "kept") == [run.config.fingerprint]
    with (run.folder / "records.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(ValueError, match="records.jsonl has changed"):
        store([run], tmp_path / "other")


def test_numbers_are_the_last_by_length_and_no_learning_rates() -> None:
    over_all = [Record(step, "train", "loss", 1 / step) for step in (2, 4)]
    by_length = [
        Record(step, "test", "accuracy", n / 7, n, count=n) for step in (2, 4) for n in (1, 2)
    ]
    rates = [Record(step, "train", name, 0.1) for step in (2, 4) for name in ("lr", "grad_norm")]
    series, lengths = numbers_of([*over_all, *rates, *by_length])
    assert [row for columns in series for row in records_in(columns)] == over_all
    assert [row for columns in lengths for row in records_in(columns)] == by_length[2:]


@pytest.mark.parametrize(
    "rows",
    [
        [Record(2, "train", "loss", 0.1)],
        [Record(4, "test", "accuracy", 1 / 3, n, count=5) for n in (1, 2, 3)],
        [Record(4, "validation", "accuracy", 1 / 3, n + 9, n, 7 + n) for n in (1, 11)],
        [Record(4, "test", "accuracy", 0.5, 9, 1), Record(4, "test", "accuracy", 0.5, 10)],
        [Record(step, "validation", "accuracy", 0.5, count=8) for step in (1, 2)],
    ],
)
def test_columns_go_back_to_the_same_records(rows: list[Record]) -> None:
    columns = json.loads(json.dumps(columns_of(rows)))
    assert records_in(columns) == rows


def test_all_records_of_the_best_are_kept_byte_for_byte(tmp_path: Path) -> None:
    worse, best = made(tmp_path / "runs", 0.5, 0.75)
    store([worse, best], tmp_path / "kept")
    name = f"{best.config.fingerprint}.jsonl"
    assert [path.name for path in (tmp_path / "kept" / "records").iterdir()] == [name]
    first, second = archived_runs(tmp_path / "kept")
    assert first.records_at == first.place and first.place.line == 1
    assert second.records_at.path.read_bytes() == best.records_at.path.read_bytes()
    assert numbers_of(read_records(second.records_at.path)) == numbers_of(best.records)


def test_runs_that_come_later_are_added_below(tmp_path: Path) -> None:
    worse, best = made(tmp_path / "runs", 0.5, 0.75)
    store([worse], tmp_path / "kept")
    before = files(tmp_path / "kept")
    assert store([worse, best], tmp_path / "kept") == [best.config.fingerprint]
    after = files(tmp_path / "kept")
    assert after["runs.jsonl"].startswith(before["runs.jsonl"])
    assert after["runs.jsonl"].count(b"\n") == 2
    assert {name: after[name] for name in before if name != "runs.jsonl"}.items() <= before.items()
    assert f"records/{best.config.fingerprint}.jsonl" in after
    assert store([worse, best], tmp_path / "kept") == []
    assert files(tmp_path / "kept") == after


def test_a_line_is_never_replaced_and_a_retest_counts(tmp_path: Path) -> None:
    (first,) = made(tmp_path / "first", 0.5)
    (again,) = made(tmp_path / "again", 0.25)
    kept = tmp_path / "kept"
    store([first], kept)
    before = files(kept)
    with pytest.raises(ValueError, match="runs.jsonl line 1 has the run of .* with other content"):
        store([again], kept)
    assert files(kept) == before
    assert store([again], kept, retest=DAY) == [again.config.fingerprint]
    after = files(kept)
    assert before.items() <= after.items()
    (found,) = archived_runs(kept)
    assert found.last("scaled_accuracy") == 0.25
    assert found.place.path.name == "runs-2026-11-20.jsonl"
    assert found.records_at.path.parent.name == "records-2026-11-20"
    assert store([again], kept, retest=DAY) == []
    with pytest.raises(ValueError, match="runs-2026-11-20.jsonl line 1 has the run of"):
        store([first], kept, retest=DAY)
    assert files(kept) == after


def test_what_is_damaged_or_not_finished_is_refused_and_nothing_written(tmp_path: Path) -> None:
    good, bad = made(tmp_path / "runs", 0.5, 0.75)
    bad.records_at.path.write_text("")
    with pytest.raises(ValueError, match="is damaged: .*records.jsonl has changed"):
        store([good, bad], tmp_path / "kept")
    going = write_run(tmp_path / "going", parity(), scores(0.5), finished=False)
    with pytest.raises(ValueError, match="has not finished"):
        store([going], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_two_do_not_write_at_a_time(tmp_path: Path) -> None:
    runs = made(tmp_path / "runs", 0.5)
    (tmp_path / "kept").mkdir()
    with exclusive(tmp_path / "kept" / "runs.jsonl"), pytest.raises(InUse):
        store(runs, tmp_path / "kept")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: text[:-40], "line 2 is damaged"),
        (lambda text: text + text.splitlines()[0], "line 3 is damaged: its run is in a line"),
        (lambda text: text.replace('"former":[],', ""), "line 1 is damaged: a run has the keys"),
        (lambda text: text.replace('"seed":0', '"seed":5'), "line 1 is damaged: .* fingerprint"),
        (lambda text: text.replace('"seed":0', '"sed":0'), "line 1 is not the config of a run"),
        (lambda text: text.replace('"value":[', '"value":[NaN,'), "line 1 is damaged: .*records"),
        (lambda text: text.replace('"value":[0.1', '"value":[NaN'), "line 1 .* its value is nan"),
        (lambda text: text.replace('"value"', '"valeu"'), "line 1 is damaged: .*records"),
    ],
)
def test_a_damaged_line_is_named(damage: object, message: str, tmp_path: Path) -> None:
    store(made(tmp_path / "runs", 0.5, 0.75), tmp_path / "kept")
    path = tmp_path / "kept" / "runs.jsonl"
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        for run in archived_runs(tmp_path / "kept"):
            assert run.config and run.records
