"""Flip-flop against a loop with one bit."""

import pytest

from statetrack import tasks
from tests.tasks.oracles import draw, rows

SHARES = {"flip_flop": 0.8, "flip_flop_i98": 0.98, "flip_flop_i10": 0.1}


@pytest.mark.parametrize("name", SHARES)
def test_one_bit_of_memory(name: str) -> None:
    task = tasks.get(name)
    kinds = ""
    for words, asked in rows(task, draw(name, 60, 256)):
        bit = ""
        assert words[0] == "w" and words[-1] == "r" and len(words) == 511
        for t in range(0, len(words), 2):
            if words[t] == "w":
                bit = words[t + 1]
            elif words[t] == "r":
                assert asked.pop(t) == bit
                assert t + 1 == len(words) or words[t + 1] == bit
        assert not asked
        kinds += "".join(words[2:-1:2])
    assert abs(kinds.count("i") / len(kinds) - SHARES[name]) < 0.02
    assert abs(kinds.count("w") - kinds.count("r")) < 0.03 * len(kinds)


def test_shorter_sequences_end_in_a_read() -> None:
    task = tasks.get("flip_flop")
    sizes = [len(words) for words, _ in rows(task, draw(task, 200, 20, shortest=2))]
    assert min(sizes) == 3 and max(sizes) == 39


def test_depths_are_instructions_since_the_bit_was_seen() -> None:
    task = tasks.get("flip_flop")
    assert task.depths is not None
    batch = draw(task, 3, 100)
    ages = task.depths(batch).age[batch.mask].tolist()
    expected = []
    for words, asked in rows(task, batch):
        for t in asked:
            before = [words[s] for s in range(t - 2, -1, -2)]
            expected.append(1 + next(n for n, word in enumerate(before) if word != "i"))
    assert ages == expected
