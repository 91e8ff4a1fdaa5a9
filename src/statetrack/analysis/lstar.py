"""L*: the smallest machine that agrees with a black box on all words asked so far, in batches.

Angluin's table with the counterexamples of Rivest and Schapire. A row belongs to a word w and
holds the answers to w·e for every suffix e. Words with different rows lead to different states;
each state keeps the word by which it was first reached. Nobody answers the empty word, so the
start's output is free: its row has a mark of its own there, and `Hypothesis.machine` lets the start
be any state that goes on in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from statetrack.analysis.black_box import BlackBox
from statetrack.automata import Machine
from statetrack.automata.machine import IntArray

__all__ = ["Hypothesis", "Table", "Unlearnable"]

Word = tuple[int, ...]

FREE = -2
"""In place of an answer to the empty word."""


class Unlearnable(Exception):
    """No machine within the bounds agrees with the answers; the message says which bound."""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A machine as the table has it: state 0 is the start, which no letter leads to.

    Attributes:
        delta: the state after each letter.
        answers: what is said in each state; at the start nothing is.
        access: the word by which each state was found.
    """

    delta: IntArray
    answers: IntArray
    access: tuple[Word, ...]

    def states(self, words: IntArray) -> IntArray:
        """The state after every letter, [batch, time] for [batch, time]."""
        found = np.empty_like(words)
        state = np.zeros(len(words), dtype=np.int64)
        for time, letters in enumerate(words.T):
            state = self.delta[state, letters]
            found[:, time] = state
        return found

    def says(self, words: IntArray) -> IntArray:
        """The answer after every letter."""
        return self.answers[self.states(words)]

    @property
    def start(self) -> int:
        """The state nearest to the start that goes on as it does, or else 0, the start itself."""
        same = np.flatnonzero((self.delta[1:] == self.delta[0]).all(axis=1)) + 1
        return min(same.tolist(), key=lambda state: len(self.access[state]), default=0)

    def machine(self, box: BlackBox) -> Machine:
        """The same as a `Machine`; a start like no other says what follows letter 0."""
        answers = self.answers.copy()
        answers[0] = answers[self.delta[0, 0]]
        return Machine.from_table(
            self.delta, self.start, outputs=box.outputs(answers.tolist()), alphabet=box.alphabet
        )


class Table:
    """The words asked so far, and the machine they make.

    `queries` counts the words asked. `tick` is called before every batch and may raise to stop.
    """

    def __init__(self, box: BlackBox, max_states: int, tick: Callable[[], None]) -> None:
        self.box = box
        self.max_states = max_states
        self.queries = 0
        self._tick = tick
        self._answer: dict[Word, int] = {(): FREE}
        self._row: dict[Word, Word] = {}
        self._suffixes: list[Word] = [()]
        self._access: list[Word] = [()]
        self.hypothesis = self._close()

    def refine(self, word: Word) -> None:
        """Makes room for a word after which the black box disagrees with the hypothesis."""
        states = [0, *self.hypothesis.states(np.array([word]))[0].tolist()]
        access = self.hypothesis.access

        def answer(cut: int) -> int:
            """To the word with its first letters replaced by those that reach the same state."""
            return self._ask([access[states[cut]] + word[cut:]])[0]

        said, low, high = answer(0), 0, len(word)
        if said == self.hypothesis.answers[states[-1]]:
            raise Unlearnable("the answer after a word changes with the letters that follow it")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if answer(middle) == said else (low, middle)
        assert word[high:] not in self._suffixes
        self._suffixes.append(word[high:])
        self.hypothesis = self._close()

    def _close(self) -> Hypothesis:
        """Adds states until every letter leads from a state to a state."""
        letters = range(self.box.num_letters)
        number = {row: state for state, row in enumerate(self._rows(self._access))}
        delta: list[list[int]] = []
        while len(delta) < len(self._access):
            fresh = self._access[len(delta) :]
            words = [(*word, letter) for word in fresh for letter in letters]
            reached = []
            for word, row in zip(words, self._rows(words), strict=True):
                if row not in number:
                    if len(number) > self.max_states:  # the start, which may be like another
                        raise Unlearnable(f"more than {self.max_states} states")
                    number[row] = len(number)
                    self._access.append(word)
                reached.append(number[row])
            delta += np.array(reached).reshape(len(fresh), -1).tolist()
        answers = [self._answer[word] for word in self._access]
        return Hypothesis(np.array(delta), np.array(answers), tuple(self._access))

    def _rows(self, words: Sequence[Word]) -> list[Word]:
        """A row only ever grows: what it lacks are the answers to the newest suffixes."""
        lacks = [(word, self._suffixes[len(self._row.get(word, ())) :]) for word in words]
        asked = iter(self._ask([word + suffix for word, new in lacks for suffix in new]))
        for word, new in lacks:
            self._row[word] = self._row.get(word, ()) + tuple(islice(asked, len(new)))
        return [self._row[word] for word in words]

    def _ask(self, words: Sequence[Word]) -> list[int]:
        """The answers to these words; each is asked once, words of one length together."""
        new: dict[int, list[Word]] = {}
        for word in dict.fromkeys(words):
            if word not in self._answer:
                new.setdefault(len(word), []).append(word)
        for group in new.values():
            answers = self.box.ask(np.array(group), self._tick)[:, -1]
            self._answer.update(zip(group, answers.tolist(), strict=True))
            self.queries += len(group)
        return [self._answer[word] for word in words]
