"""Accuracy against length, drawn with characters."""

from statetrack.experiments.picture import bars


def test_picture() -> None:
    assert bars({1: 1.0, 2: 1.0, 3: 0.0, 4: -1.0}, width=2, height=2) == ["█ ", "█ "]
    assert bars({4: 0.5}, width=4, height=2, longest=4) == ["    ", "   █"]
    assert bars({}, width=3, height=1) == ["   "]
    assert bars({1: 1.0}, width=1, height=1, unicode=False) == ["#"]
