"""Words that a model is tried on, of several kinds: uniform words alone soon sit in a sink."""

import numpy as np

from statetrack.analysis.lstar import Hypothesis
from statetrack.automata.machine import IntArray

__all__ = ["KINDS", "every_word", "mixture"]

KINDS = (
    "uniform letters",
    "uniform letters that stay out of sinks",
    "a way to some state, then a short word again and again",
    "a way to some state, then uniform letters",
)
MAX_POWER = 8
"""Letters of a word that is repeated."""
STRAY = 3
"""So many random letters at most stand between the way to a state and what follows."""


def mixture(
    hypothesis: Hypothesis, count: int, length: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """`count` words of exactly `length` letters, each of a kind drawn uniformly, and the kinds.

    >>> loop = Hypothesis(np.array([[1, 1], [1, 1]]), np.array([0, 0]), ((), (0,)))
    >>> words, kinds = mixture(loop, 3, 5, np.random.default_rng(0))
    >>> words.shape, kinds.shape
    ((3, 5), (3,))
    """
    num_letters = hypothesis.delta.shape[1]
    words = rng.integers(0, num_letters, (count, length))
    kinds = rng.integers(0, len(KINDS), count)
    words[kinds == 1] = _lively(hypothesis.delta, words[kinds == 1])
    for row in np.flatnonzero(kinds >= 2):
        way = hypothesis.access[rng.integers(len(hypothesis.access))]
        words[row, : len(way)] = way[:length]
        if kinds[row] == 2:
            begin = min(length, len(way) + int(rng.integers(STRAY + 1)))
            power = words[row, begin : begin + int(rng.integers(1, MAX_POWER + 1))].copy()
            words[row, begin:] = np.resize(power, length - begin)
    return words, kinds


def _lively(delta: IntArray, words: IntArray) -> IntArray:
    """The words, with every letter that leads into a sink replaced by one that does not, if any."""
    num_states, num_letters = delta.shape
    sink = (delta == np.arange(num_states)[:, None]).all(axis=1)
    stays = ~sink[delta]
    stays[~stays.any(axis=1)] = True
    count = stays.sum(axis=1)
    order = np.argsort(~stays, axis=1, kind="stable")  # letters that stay out come first
    found = np.empty_like(words)
    state = np.zeros(len(words), dtype=np.int64)
    for time, letters in enumerate(words.T):
        found[:, time] = np.where(
            stays[state, letters], letters, order[state, letters % count[state]]
        )
        state = delta[state, found[:, time]]
    return found


def every_word(num_letters: int, longest: int, most: int) -> IntArray:
    """All words of the greatest length, at most `longest`, that has at most `most` words.

    >>> every_word(2, 10, 5).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    length = 1
    while length < longest and num_letters ** (length + 1) <= most:
        length += 1
    places = num_letters ** np.arange(length - 1, -1, -1)
    return np.arange(num_letters**length)[:, None] // places % num_letters
