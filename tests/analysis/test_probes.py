"""The words a model is tried on."""

import numpy as np

from statetrack.analysis.lstar import Table
from statetrack.analysis.probes import KINDS, every_word, mixture
from statetrack.automata import read
from tests.analysis.machines import box_of


def hypothesis(name: str) -> Table:
    table = Table(box_of(read(name)), 100, lambda: None)
    for word in ((0, 1, 0), (1, 0, 1), (1, 0), (0, 0, 1), (0, 1, 0, 1)):
        says = table.hypothesis.says(np.array([word]))[0, -1]
        if says != table.box.ask(np.array([word]))[0, -1]:
            table.refine(word)
    return table


def test_every_kind_is_drawn_and_only_lively_words_stay_out_of_the_sink() -> None:
    table = hypothesis("(ab)*")
    words, kinds = mixture(table.hypothesis, 400, 50, np.random.default_rng(0))
    assert words.shape == (400, 50) and set(words.flat) == {0, 1}
    assert set(kinds.tolist()) == set(range(len(KINDS)))
    accepted = read("(ab)*").outputs[read("(ab)*").run(words)]
    assert accepted[kinds == 1].mean() == 0.5  # (ab)^25, after every second letter
    assert accepted[kinds == 0].mean() < 0.1


def test_powers_repeat_to_the_end() -> None:
    table = hypothesis("(a|b)*ab")
    words, kinds = mixture(table.hypothesis, 200, 64, np.random.default_rng(1))

    def repeats(word: np.ndarray) -> bool:
        return any((word[16:-p] == word[16 + p :]).all() for p in range(1, 9))

    assert all(map(repeats, words[kinds == 2]))
    assert not any(map(repeats, words[kinds == 0]))


def test_ways_to_every_state_are_taken() -> None:
    table = hypothesis("(ab)*")
    words, kinds = mixture(table.hypothesis, 200, 10, np.random.default_rng(0))
    for way in table.hypothesis.access:
        assert (words[kinds == 3, : len(way)] == way).all(axis=1).any()


def test_words_shorter_than_a_way() -> None:
    table = hypothesis("(ab)*")
    words, _ = mixture(table.hypothesis, 50, 1, np.random.default_rng(0))
    assert words.shape == (50, 1)


def test_the_same_seed_gives_the_same_words() -> None:
    table = hypothesis("(ab)*")
    first, again = (mixture(table.hypothesis, 9, 9, np.random.default_rng(3)) for _ in range(2))
    assert (first[0] == again[0]).all() and (first[1] == again[1]).all()


def test_every_word() -> None:
    words = every_word(3, 100, 100)
    assert len({tuple(word) for word in words.tolist()}) == len(words) == 3**4
    assert every_word(2, 3, 4096).shape == (8, 3)
    assert every_word(1, 50, 4096).shape == (1, 50)
    assert every_word(5000, 8, 4096).shape == (5000, 1)
