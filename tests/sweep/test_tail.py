"""Records that another process writes are read once, in whole lines, and may be cut."""

from pathlib import Path

from statetrack.runs import Record
from statetrack.sweep.tail import Tail


def line(step: int) -> str:
    return Record(step, "train", "loss", 0.5).to_json() + "\n"


def test_new_whole_lines_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    assert Tail(tmp_path).rows() == []
    path.write_text(line(1))
    tail = Tail(tmp_path)
    with path.open("a") as file:
        file.write(line(2) + line(3)[:10])
        file.flush()
        assert [row.step for row in tail.rows()] == [2]
        assert tail.rows() == []
        file.write(line(3)[10:])
    assert [row.step for row in tail.rows()] == [3]


def test_a_resumed_run_cuts_its_records(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(line(1) + line(2))
    tail = Tail(tmp_path)
    path.write_text(line(1))
    assert tail.rows() == []
    path.write_text(line(1) + line(2))
    assert [row.step for row in tail.rows()] == [2]
