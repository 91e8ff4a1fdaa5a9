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
