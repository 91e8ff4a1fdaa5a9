"""`extract`: the finite machine that a trained model has learnt, found from its answers alone.

Length is what decides. A model is right up to its horizon, and beyond it L* learns the drift. So
words of 8 letters are tried first, then of 16, and so on. A machine counts as learnt once it is the
same at two lengths in a row; the model is trusted up to the last length before the first change.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from statetrack.analysis.black_box import Alphabet, BlackBox, Model, black_box
from statetrack.analysis.lstar import Hypothesis, Table, Unlearnable
from statetrack.analysis.probes import KINDS, every_word, mixture
from statetrack.automata import Machine, table_of
from statetrack.automata.machine import IntArray
from statetrack.runs.files import write_atomically
from statetrack.tasks import Task

__all__ = [
    "LENGTHS",
    "Attempt",
    "Difference",
    "Disagreement",
    "Extraction",
    "difference",
    "extract",
    "extractions",
]

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
EVERY = 4096
"""At most so many words are tried in a row where all of a length are."""
MAX_DISAGREEMENTS = 16
MAX_SHOWN = 16
"""States and letters of a machine that are printed, and letters of a word at each end."""

Word = tuple[int, ...]
Ended = Literal["not yet", "longest", "broke", "states", "time", "contradiction"]


@dataclass(frozen=True)
class Attempt:
    """What was found at one length.

    Attributes:
        length: of the words tried.
        states: of the machine that agreed with all of them; None if none did.
        why: what went wrong, or None.
        words: how many of the mixture agreed with it, all drawn after it was found.
        queries: words asked so far, here and at shorter lengths.
        seconds: time so far.
    """

    length: int
    states: int | None
    why: str | None
    words: int
    queries: int
    seconds: float

    def __str__(self) -> str:
        found = self.why if self.states is None else f"{self.states} states"
        return f"length {self.length}: {found}; {self.queries} words, {self.seconds:.1f} s so far"


@dataclass(frozen=True)
class Disagreement:
    """A word after which the model does not say what the machine says.

    Attributes:
        word: as letter numbers.
        model, machine: what they say after it, as outputs of the machine.
        kind: of the word that it began, one of `probes.KINDS`, or "every word".
    """

    word: Word
    model: int | bool
    machine: int | bool
    kind: str


@dataclass(frozen=True)
class Difference:
    """A shortest word after which two machines differ, as letter numbers, and what each says.

    `first` is what the one says, `second` what the other does.
    """

    word: Word
    first: int | bool
    second: int | bool


@dataclass(frozen=True, eq=False)
class Extraction:
    """What `extract` found; `str()` of it is a page of text.

    Attributes:
        machine: what the model has learnt, or None if it is nothing finite. Its start may say
            anything, because no model is asked before the first letter.
        trusted_to: the greatest length at which model and machine agreed; None without a machine.
        disagreements: words beyond it on which they do not, shortest first; not all there are.
        queries: words the model was asked.
        attempts: one for each length tried.
        every_word_to: all words of up to so many letters were tried.
        epsilon, delta: at most a share epsilon of the words of the mixture at length `trusted_to`
            has a wrong answer, except with probability delta.
        ended: why no longer words were tried.
        target: what was to be learnt, the machine of the task; None if it is not known.
    """

    machine: Machine | None
    trusted_to: int | None
    disagreements: tuple[Disagreement, ...]
    queries: int
    attempts: tuple[Attempt, ...]
    every_word_to: int
    epsilon: float
    delta: float
    ended: Ended
    target: Machine | None

    @property
    def breaks(self) -> Disagreement | None:
        """The shortest word found on which the model leaves the machine."""
        return self.disagreements[0] if self.disagreements else None

    @property
    def difference(self) -> Difference | None:
        """A shortest word on which machine and target differ; None if they are equal."""
        if self.machine is None or self.target is None:
            raise ValueError("there is no difference without both a machine and a target")
        return difference(self.machine, self.target)

    def save(self, path: Path | str) -> Path:
        """Writes the machine as JSON, which `automata.read`, `explain` and `compile` take."""
        if self.machine is None:
            raise ValueError("there is no machine to save: the model has learnt nothing finite")
        text = json.dumps(table_of(self.machine)) + "\n"
        write_atomically(Path(path), text.encode())
        return Path(path)

    def text(self) -> str:
        """The findings in words."""
        if self.machine is None:
            return "\n".join(_no_machine(self))
        lines = [*_shown_machine(self.machine), *_trust(self)]
        if self.target is not None:
            lines.append(_compared(self.machine, self.target))
        return "\n".join(lines)

    __str__ = text


def extract(
    model: Model,
    task: Task | str | None = None,
    *,
    alphabet: Alphabet | None = None,
    before: Sequence[int] = (),
    lengths: Sequence[int] = LENGTHS,
    max_states: int = 256,
    epsilon: float = 1e-2,
    delta: float = 1e-3,
    seconds: float = 60.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Extraction:
    """The finite machine that a model has learnt, from its answers alone.

    Args:
        model, task, alphabet, before, device: see `black_box`. A task's machine is also what the
            machine found is compared with.
        lengths: of the words tried, shortest first. A machine counts once it is the same at two
            of them in a row.
        max_states: a model that needs more is said to have no machine.
        epsilon, delta: the share of wrong words that may go unseen, and the probability that more
            do; they set how many words are tried.
        seconds: no new batch of words begins after this time.
        seed: of the words.

    >>> found = extract(lambda tokens: tokens.cumsum(1) % 3, alphabet=2, lengths=(8, 16, 32))
    >>> found.machine.num_states, found.trusted_to, found.breaks
    (3, 32, None)
    """
    *_, last = extractions(
        model,
        task,
        alphabet=alphabet,
        before=before,
        lengths=lengths,
        max_states=max_states,
        epsilon=epsilon,
        delta=delta,
        seconds=seconds,
        seed=seed,
        device=device,
    )
    return last


def extractions(
    model: Model,
    task: Task | str | None = None,
    *,
    alphabet: Alphabet | None = None,
    before: Sequence[int] = (),
    lengths: Sequence[int] = LENGTHS,
    max_states: int = 256,
    epsilon: float = 1e-2,
    delta: float = 1e-3,
    seconds: float = 60.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Extraction]:
    """The same, with what is known after each length; the last one is what `extract` returns.

    `progress` is told in words what is being done, before every batch.
    """
    if len(lengths) < 2 or list(lengths) != sorted(set(lengths)) or lengths[0] < 1:
        raise ValueError(f"lengths={list(lengths)} must be two or more, rising, from 1 on")
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            raise ValueError(f"{name}={value} must lie between 0 and 1")
    if max_states < 1 or seconds <= 0:
        raise ValueError(f"max_states={max_states} and seconds={seconds} must be positive")
    box = black_box(model, task, alphabet=alphabet, before=before, device=device)
    return _Search(box, max_states, epsilon, delta, seconds, seed, progress).run(lengths)


class _OutOfTime(Unlearnable):
    pass


class _Search:
    """The table and what is needed to try it on words."""

    def __init__(
        self,
        box: BlackBox,
        max_states: int,
        epsilon: float,
        delta: float,
        seconds: float,
        seed: int,
        progress: Callable[[str], None],
    ) -> None:
        self.box, self.max_states, self.seconds = box, max_states, seconds
        self.progress = progress
        self.epsilon, self.delta = epsilon, delta
        self.rng = np.random.default_rng(seed)
        self.begun = time.monotonic()
        self.rounds = 0
        self.length = 0
        self.tried = 0  # words of the mixture and of `every_word`
        self.table: Table | None = None
        self.short: tuple[IntArray, IntArray] | None = None  # every word of a length, its answers

    def run(self, lengths: Sequence[int]) -> Iterator[Extraction]:
        found = Extraction(
            machine=None,
            trusted_to=None,
            disagreements=(),
            queries=0,
            attempts=(),
            every_word_to=0,
            epsilon=self.epsilon,
            delta=self.delta,
            ended="not yet",
            target=self.box.target,
        )
        last: Machine | None = None
        for length in lengths:
            self.length = length
            ended: Ended = "longest" if length == lengths[-1] else "not yet"
            words, why = 0, None
            wrong: tuple[Disagreement, ...] = ()
            try:
                if found.machine is None:
                    words = self.learn(length)
                else:
                    words, wrong = self.test(length)
            except _OutOfTime as error:
                ended, why = "time", str(error)
            except Unlearnable as error:
                ended, why = ("states" if "states" in str(error) else "contradiction"), str(error)
            if wrong:
                ended, why = "broke", f"the model breaks after {_letters(len(wrong[0].word))}"
            if why is None:
                assert self.table is not None
                now = self.table.hypothesis.machine(self.box)
                if found.machine is not None or now == last:
                    covered = every_word(self.box.num_letters, length, EVERY).shape[1]
                    found = replace(found, machine=now, trusted_to=length, every_word_to=covered)
                last = now
            states = None if why is not None or last is None else last.num_states
            attempt = Attempt(length, states, why, words, self.queries, self.elapsed)
            found = replace(
                found,
                disagreements=wrong,
                queries=self.queries,
                attempts=(*found.attempts, attempt),
                ended=ended,
            )
            yield found
            if ended != "not yet":
                return

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    @property
    def queries(self) -> int:
        return self.tried + (0 if self.table is None else self.table.queries)

    def tick(self) -> None:
        if self.elapsed > self.seconds:
            raise _OutOfTime(f"the {self.seconds:g} seconds are over")
        states = 0 if self.table is None else len(self.table.hypothesis.access) - 1
        self.progress(f"length {self.length}: {states} states so far, {self.queries} words asked")

    def learn(self, length: int) -> int:
        """Asks and tries until a whole round agrees with the hypothesis; its number of words."""
        if self.table is None:
            self.table = Table(self.box, self.max_states, self.tick)
        while True:
            before = self.table.hypothesis
            words = 0
            for batch, kinds, answers in self.round(length):
                words += int((kinds >= 0).sum())
                while (word := _first_wrong(self.table.hypothesis, batch, answers)) is not None:
                    self.table.refine(word)
                if self.table.hypothesis is not before:
                    break
            else:
                return words

    def test(self, length: int) -> tuple[int, tuple[Disagreement, ...]]:
        """One round against the hypothesis, which stays as it is."""
        assert self.table is not None
        hypothesis = self.table.hypothesis
        words, wrong = 0, []
        for batch, kinds, answers in self.round(length):
            words += int((kinds >= 0).sum())
            wrong += _disagreements(self.box, hypothesis, batch, kinds, answers)
        wrong.sort(key=lambda found: (len(found.word), found.word))
        return words, tuple(dict.fromkeys(wrong))[:MAX_DISAGREEMENTS]

    def answers(self, words: IntArray) -> IntArray:
        self.tried += len(words)
        return self.box.ask(words, self.tick)

    def every_word(self, length: int) -> tuple[IntArray, IntArray]:
        """Every short word and the answers, which are asked for once."""
        words = every_word(self.box.num_letters, length, EVERY)
        if self.short is None or self.short[0].shape != words.shape:
            self.short = words, self.answers(words)
        return self.short

    def round(self, length: int) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Every short word, then fresh words of the mixture; their kinds (-1 first), the answers.

        In round r there are ln(2^r / delta) / epsilon of the mixture: if the hypothesis were wrong
        on more than a share epsilon, they would all agree with probability below delta / 2^r.
        """
        assert self.table is not None
        self.rounds += 1
        words, answers = self.every_word(length)
        yield words, np.full(len(words), -1), answers
        hypothesis = self.table.hypothesis
        left = math.ceil((math.log(1 / self.delta) + self.rounds * math.log(2)) / self.epsilon)
        while left:
            count = min(left, max(1, 2**16 // length))
            words, kinds = mixture(hypothesis, count, length, self.rng)
            yield words, kinds, self.answers(words)
            left -= count


def _first_wrong(hypothesis: Hypothesis, words: IntArray, answers: IntArray) -> Word | None:
    """The shortest beginning of one of the words after which the answer is not the hypothesis's."""
    wrong = hypothesis.says(words) != answers
    if not wrong.any():
        return None
    end = int(wrong.any(axis=0).argmax())
    row = int(wrong[:, end].argmax())
    return tuple(words[row, : end + 1].tolist())


def _disagreements(
    box: BlackBox, hypothesis: Hypothesis, words: IntArray, kinds: IntArray, answers: IntArray
) -> list[Disagreement]:
    """The shortest wrong beginning of each word, of a few with the shortest."""
    says = hypothesis.says(words)
    wrong = says != answers
    rows = np.flatnonzero(wrong.any(axis=1))
    ends = wrong[rows].argmax(axis=1)
    found = []
    for place in np.argsort(ends, kind="stable")[:MAX_DISAGREEMENTS]:
        row, end = int(rows[place]), int(ends[place])
        model, machine = box.outputs([int(answers[row, end]), int(says[row, end])]).tolist()
        kind = "every word" if kinds[row] < 0 else KINDS[kinds[row]]
        word = tuple(words[row, : end + 1].tolist())
        found.append(Disagreement(word, model, machine, kind))
    return found


def difference(first: Machine, second: Machine) -> Difference | None:
    """A shortest word, not the empty one, after which two machines differ; None if there is none.

    >>> odd, always = Machine.from_table([[1], [0]]), Machine.from_table([[1], [1]])
    >>> difference(odd, always)
    Difference(word=(0, 0), first=0, second=1)
    """
    if first.alphabet != second.alphabet:
        raise ValueError(
            f"machines over different alphabets cannot be compared: {_shortened(first.alphabet)} "
            f"and {_shortened(second.alphabet)}"
        )
    words: dict[tuple[int, int], Word] = {(0, 0): ()}
    queue = [(0, 0)]
    for here in queue:
        nexts = zip(first.delta[here[0]].tolist(), second.delta[here[1]].tolist(), strict=True)
        for letter, there in enumerate(nexts):
            if there in words and there != (0, 0):
                continue
            says = first.outputs[there[0]].item(), second.outputs[there[1]].item()
            if says[0] != says[1]:
                return Difference((*words[here], letter), *says)
            if there not in words:
                words[there] = (*words[here], letter)
                queue.append(there)
    return None


# -- in words -----------------------------------------------------------------------------------


def _no_machine(found: Extraction) -> list[str]:
    sizes = ", ".join(
        f"{attempt.states or attempt.why} at length {attempt.length}" for attempt in found.attempts
    )
    if found.ended == "time":
        verdict = "no machine yet: the time was over before two lengths agreed"
    elif found.ended == "not yet":
        verdict = "no machine yet"
    else:
        verdict = "the model has learnt no finite machine: no two lengths in a row agree"
    lines = [verdict, f"states: {sizes}"]
    first, *others = found.attempts
    if len(others) == 1 and found.ended in ("states", "contradiction"):
        lines.append(f"it may have one for shorter words: try lengths below {first.length}")
    return lines


def _trust(found: Extraction) -> list[str]:
    attempt = next(a for a in reversed(found.attempts) if a.length == found.trusted_to)
    lines = [
        f"trusted to {found.trusted_to} letters: the model agreed with it on every word of up to "
        f"{_letters(found.every_word_to)} and on {attempt.words} longer ones, after each letter",
        f"  so, except with probability {found.delta:g}, at most {found.epsilon:.2%} of such words "
        f"of {found.trusted_to} letters have a wrong answer. In equal parts they are",
        *(f"  - {kind}" for kind in KINDS),
        "  and nothing is known of words drawn in another way, or of longer ones",
    ]
    broken = found.breaks
    if broken is not None:
        assert found.machine is not None
        lines.append(
            f"breaks after {_letters(len(broken.word))}, the shortest found: "
            f"{_spelt(found.machine, broken.word)}: the model says {broken.model}, the machine "
            f"{broken.machine} (a word of the kind: {broken.kind})"
        )
    elif found.ended == "longest":
        lines.append(f"did not break: {found.trusted_to} letters were the most that were tried")
    elif found.attempts[-1].why is not None:
        lines.append(f"stopped at length {found.attempts[-1].length}: {found.attempts[-1].why}")
    return lines


def _compared(machine: Machine, target: Machine) -> str:
    if machine.alphabet != target.alphabet:
        return f"the target machine reads another alphabet: {_shortened(target.alphabet)}"
    found = difference(machine, target)
    if found is None:
        return "equal to the target machine, after words of any length"
    return (
        f"not the target machine: after {_spelt(machine, found.word)} it says {found.first}, the "
        f"target {found.second}"
    )


def _shown_machine(machine: Machine) -> list[str]:
    """A table, cut where it is large."""
    letters = [str(letter) for letter in machine.alphabet[:MAX_SHOWN]]
    more = machine.num_letters > MAX_SHOWN
    rows = [["state", "says", *letters, *["…"] * more]]
    for state in range(min(machine.num_states, MAX_SHOWN)):
        after = machine.delta[state, :MAX_SHOWN].tolist()
        rows.append([str(state), str(machine.outputs[state]), *map(str, after), *["…"] * more])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if machine.num_states > MAX_SHOWN:
        lines.append("  …")
    number = machine.num_states
    states = "1 state" if number == 1 else f"{number} states"
    return [f"a machine with {states} over {_letters(machine.num_letters)}:", *lines]


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count} letters"


def _spelt(machine: Machine, word: Word) -> str:
    letters = [str(machine.alphabet[letter]) for letter in word]
    gap = "" if all(len(letter) == 1 for letter in letters) else " "
    if len(letters) > 3 * MAX_SHOWN:
        letters = [*letters[:MAX_SHOWN], " … ", *letters[-MAX_SHOWN:]]
    return gap.join(letters)


def _shortened(alphabet: Sequence[object]) -> str:
    shown = " ".join(map(str, alphabet[:MAX_SHOWN]))
    return shown + " …" * (len(alphabet) > MAX_SHOWN)
