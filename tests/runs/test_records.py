"""Records: every line is a number with its labels, or its file and line are named."""

import os
from pathlib import Path

import pytest

from statetrack.runs.files import checksum_of
from statetrack.runs.records import JsonLines, Record, read_records
from tests.runs.folders import rows

LONG = Record(3, "test", "accuracy", 0.25, length=8, length_min=5, count=64)


def write(path: Path, records: list[Record]) -> None:
    lines = JsonLines(path)
    lines.write(records)
    lines.close()


def test_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", [*rows(1), LONG])
    assert read_records(tmp_path / "r.jsonl") == [*rows(1), LONG]
    assert (tmp_path / "r.jsonl").read_text().splitlines()[0] == (
        '{"step": 1, "split": "train", "length": null, "metric": "loss", "value": 1.0}'
    )


def test_a_last_line_without_an_end_is_no_row(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", rows(1))
    content = (tmp_path / "r.jsonl").read_bytes()
    (tmp_path / "r.jsonl").write_bytes(content[:-1])
    assert read_records(tmp_path / "r.jsonl") == rows(1)[:1]


ROW = '{"step": 1, "split": "a", "metric": "b", "value": %s}'


@pytest.mark.parametrize(
    "line",
    [
        "",
        "?",
        "[1]",
        '{"step": 1}',
        ROW % "NaN",
        ROW % "1e400",
        ROW % "-Infinity",
        ROW % '"1"',
        ROW % "null",
        ROW % '1, "more": 2',
        ROW % '1, "length": "x"',
        (ROW % "1").replace('"step": 1', '"step": 1.5'),
        (ROW % "1").replace('"split"', '"split'),
        "[" * 100_000,
    ],
)
def test_what_is_no_record_is_named_by_file_and_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{LONG.to_json()}\n{line}\n{LONG.to_json()}\n")
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2, is no record"):
        read_records(path)


def test_a_number_that_is_none_is_never_written() -> None:
    with pytest.raises(ValueError):
        Record(1, "train", "loss", float("nan")).to_json()


def test_opening_cuts_and_the_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = JsonLines(path)
    first.write(rows(1))
    kept = first.size
    assert first.checksum == checksum_of(path, kept)
    first.write(rows(2))
    first.close()
    again = JsonLines(path, keep=kept)
    assert (again.size, again.checksum) == (kept, checksum_of(path))
    again.write(rows(3))
    assert (again.size, again.checksum) == (path.stat().st_size, checksum_of(path))
    again.close()
    assert read_records(path) == rows(1) + rows(3)


def test_sync_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "r.jsonl", []
    lines = JsonLines(path)
    lines.write(rows(1))
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number)))
    lines.sync()
    lines.close()
    assert [(s.st_ino, s.st_size) for s in synced] == [(path.stat().st_ino, path.stat().st_size)]
