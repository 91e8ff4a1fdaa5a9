"""Accuracy against length, drawn with characters."""

from statetrack.experiments.picture import bars


def test_picture() -> None:
    assert bars({1: 1.0, 2: 1.0, 3: 0.0, 4: -1.0}, width=2, height=2) == ["█ ", "█ "]
    few = {n: 1.0 if n < 20 else 0.0 for n in range(2, 40, 2)}  # 19 lengths: steps and no comb
    assert bars(few, width=40, height=1, longest=40) == [" " + 17 * "█" + 22 * " "]
    assert bars({4: 0.5}, width=4, height=2, longest=4) == ["    ", "   █"]
    assert bars({}, width=3, height=1) == ["   "]
    assert bars({1: 1.0}, width=1, height=1, unicode=False) == ["#"]
