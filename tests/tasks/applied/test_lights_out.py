"""Lights Out against sets of lights that are on."""

import pytest

from statetrack import tasks
from tests.tasks.oracles import draw, rows


@pytest.mark.parametrize(("name", "side"), [("lights_out", 3), ("lights_out_5x5", 5)])
@pytest.mark.parametrize(("batch", "longest"), [(100, 16), (4, 256)])
def test_sets_of_lights(name: str, side: int, batch: int, longest: int) -> None:
    task = tasks.get(name)
    for words, asked in rows(task, draw(name, batch, longest)):
        on: set[tuple[int, int]] = set()
        for t, word in enumerate(words):
            row, column = divmod(int(word.lstrip("pres?")), side)
            if word.startswith("press"):
                near = {(row, column), (row - 1, column), (row + 1, column)}
                near |= {(row, column - 1), (row, column + 1)}
                on ^= {(r, c) for r, c in near if 0 <= r < side and 0 <= c < side}
            else:
                assert asked[t] == ("on" if (row, column) in on else "off")


def test_depths_count_switches() -> None:
    task = tasks.get("lights_out")
    assert task.depths is not None
    batch = draw(task, 200, 16)
    found = task.depths(batch)
    answers, operations = batch.targets[batch.mask], found.operations[batch.mask]
    assert (operations % 2 == answers).all()
    assert found.age[batch.mask].max() == 16
