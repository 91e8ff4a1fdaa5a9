"""How results are printed."""

import io

import pytest

from statetrack.cli import show


def test_a_table_is_as_wide_as_its_cells(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("Title", ["task", "m", "best"], [["a", "long model", "1"], ["b", "m", "0.500"]])
    assert capsys.readouterr().out.splitlines() == [
        "Title",
        "  task  m            best",
        "  ----  ----------  -----",
        "  a     long model      1",
        "  b     m           0.500",
    ]


def test_columns_of_numbers_stand_on_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ["9b60", "1,526", "42 s", "-", "33.1%", "-0.5 to 7.1", "1e-05", "2 of 8"],
        ["7", "2", "3 s", "0.1", "-", "-", "–", "8"],
    ]
    show.table("", [f"column {i}" for i in range(8)], rows)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "  7         " + "  ".join(
        ["       2", "     3 s", "     0.1", "       -", "          -", "       –", "8"]
    )


def test_a_missing_number_is_missing() -> None:
    assert show.number(None) == "-" and show.number(-0.0001) == "0.000"
    assert show.number(12.4, "{:.0f} s") == "12 s"


def test_a_picture_is_drawn_with_what_the_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(encoding: str) -> list[str]:
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr("sys.stdout", out)
        show.picture({1: 1.0, 2: 0.0}, width=2)
        out.seek(0)
        return out.read().splitlines()

    assert drawn("utf-8") == ["  |█ |"] * 3
    assert drawn("ascii") == ["  |# |"] * 3


def test_a_long_job_is_heard_of_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    line = show.LiveLine()
    for now in (1.0, 9.0, 11.0, 12.0, 22.0):
        line(f"at {now:g}")
    line("done", last=True)
    assert capsys.readouterr().err == "at 11\nat 22\ndone\n"
