"""Records: every line is a number with its labels, or its file and line are named."""

import json
import os
from pathlib import Path

import pytest

from statetrack.runs.archive import numbers_of
from statetrack.runs.files import checksum_of
from statetrack.runs.records import JsonLines, Record, parse_records, read_records
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


def test_numbers_by_operations_are_not_overall() -> None:
    row = Record(4, "test", "accuracy", 0.5, operations=8, count=3)
    assert json.loads(row.to_json())["operations"] == 8 and not row.overall
    assert "operations" not in Record(4, "test", "accuracy", 0.5).to_json()
    assert Record(4, "test", "accuracy", 0.5).overall
    assert next(parse_records([row.to_json().encode() + b"\n"])) == row


def test_an_archive_keeps_numbers_by_operations_apart() -> None:
    overall = [Record(step, "test", "accuracy", 0.1 * step) for step in (1, 2)]
    by_length = [Record(2, "test", "accuracy", 0.3, length=n) for n in (1, 2)]
    deep = [Record(2, "test", "accuracy", 0.4, operations=n) for n in (0, 1)]
    series, places = numbers_of([*overall, *by_length, *deep])
    assert [columns["step"] for columns in series] == [[1, 2]]
    assert [columns.get("length") for columns in places] == [[1, 2], None]
    assert [columns.get("operations") for columns in places] == [None, [0, 1]]


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "records.jsonl")
    with open("/dev/full", "r+b") as full:
        lines._file.close()
        lines._file = full
        with pytest.raises(OSError, match="records.jsonl"):
            lines.write(rows(4))
        with pytest.raises(OSError, match="records.jsonl"):
            lines.close()


def test_numbers_of_one_domain_are_not_overall() -> None:
    row = Record(4, "validation", "loss", 0.5, domain="code")
    assert json.loads(row.to_json())["domain"] == "code" and not row.overall
    assert next(parse_records([row.to_json().encode() + b"\n"])) == row
    broken = row.to_json().replace('"code"', "3").encode() + b"\n"
    with pytest.raises(ValueError, match="line 1, is no record"):
        next(parse_records([broken]))
    other = Record(4, "validation", "loss", 0.6, domain="prose")
    _, places = numbers_of([row, other])
    assert [columns["domain"] for columns in places] == ["code", "prose"]
