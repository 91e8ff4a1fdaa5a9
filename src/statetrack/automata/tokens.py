"""A machine over characters or bytes that reads the tokens of a vocabulary instead.

A token is a string of bytes, so it moves every state somewhere. The bytes of all tokens form a
trie; each of its nodes is walked once, for all states at the same time. Tokens that move all states
alike are one letter of the machine that comes out, so its table stays small: a vocabulary of 32,000
tokens seldom has more than a few hundred letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.automata.limits import MAX_TOKEN_TABLE, too_large
from statetrack.automata.machine import IntArray, Machine

Token = bytes | str | None
"""What a token writes; None for one that writes nothing of its own, such as the end of a text."""

FAR = np.iinfo(np.int64).max
"""The distance of what cannot be reached."""


@dataclass(frozen=True, eq=False, repr=False)
class TokenMachine:
    """A machine that reads token numbers.

    Attributes:
        machine: a letter for each class of tokens that move all its states alike. `compile` takes
            it as any other machine.
        letter: `[vocabulary]`, the letter of each token. Tokens that write nothing lead to the
            sink, as do those with bytes that the machine does not know.

    >>> tokens = over_tokens(Machine.from_regex("(ab)*", "ab"), ["a", "b", "ab", "ba", "c"])
    >>> tokens.run([2, 0, 3, 1]).tolist(), tokens.allowed(0).tolist()
    ([0, 1, 1, 0], [True, False, True, False, False])
    """

    machine: Machine
    letter: IntArray

    def __post_init__(self) -> None:
        assert self.letter.ndim == 1 and self.letter.max() < self.machine.num_letters
        letter = self.letter.copy()
        letter.flags.writeable = False
        object.__setattr__(self, "letter", letter)

    def __repr__(self) -> str:
        return (
            f"TokenMachine({self.machine.num_states} states, {len(self.letter)} tokens as "
            f"{self.machine.num_letters} letters)"
        )

    def run(self, tokens: ArrayLike) -> IntArray:
        """The state after each token; `tokens` is one sequence or a batch of equal lengths."""
        numbers = np.asarray(tokens)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self.letter):
            raise ValueError(
                f"tokens reach from {numbers.min()} to {numbers.max()}, but the vocabulary has "
                f"0 to {len(self.letter) - 1}"
            )
        return self.machine.run(self.letter[numbers.astype(np.int64)])

    @property
    def options(self) -> dict[str, Any]:
        """What `layers.Tracker` takes: the table and the letter of each token."""
        return {
            "delta": tuple(map(tuple, self.machine.delta.tolist())),
            "letter": tuple(self.letter.tolist()),
        }

    @cached_property
    def distance(self) -> IntArray:
        """`[states]`, how many tokens are needed from each state to an accepting one, at least.

        `FAR` where none leads there.
        """
        outputs = self.machine.outputs
        if outputs.dtype != np.bool_:
            raise ValueError("only a machine with accepting states says which texts are whole")
        used = np.unique(self.letter)
        delta = self.machine.delta[:, used]
        order = np.argsort(delta, axis=None, kind="stable")
        bounds = np.searchsorted(delta.ravel()[order], np.arange(len(delta) + 1))
        before = [order[bounds[q] : bounds[q + 1]] // delta.shape[1] for q in range(len(delta))]
        found = np.where(outputs, 0, FAR)
        frontier = np.flatnonzero(outputs)
        steps = 0
        while frontier.size:
            steps += 1
            reached = np.unique(np.concatenate([before[q] for q in frontier.tolist()]))
            frontier = reached[found[reached] == FAR]
            found[frontier] = steps
        return found

    def allowed(self, state: int) -> NDArray[np.bool_]:
        """`[vocabulary]`, the tokens after which an accepting state can still be reached."""
        return (self.distance[self.machine.delta[state]] < FAR)[self.letter]


def over_tokens(machine: Machine, vocabulary: Sequence[Token]) -> TokenMachine:
    """The machine that reads the tokens of a vocabulary, with the same outputs.

    Its letters are characters (read as UTF-8) or bytes (numbers from 0 to 255).
    `lm.Text.vocabulary` gives that of a tokenizer.

    >>> over_tokens(Machine.from_regex("(ab)*", "ab"), [b"a", b"bab", b"", None])
    TokenMachine(4 states, 4 tokens as 4 letters)
    """
    table, outputs = _byte_table(machine)
    size, states = len(vocabulary), len(table)
    if not size:
        raise ValueError("the vocabulary is empty")
    if size * states > MAX_TOKEN_TABLE:
        raise too_large(
            f"a table of {size} tokens x {states} states",
            size * states,
            MAX_TOKEN_TABLE,
            "minimise the machine, or use one with fewer states",
        )
    moved = _moved(table, vocabulary)
    rows = np.ascontiguousarray(moved).view(f"V{moved.itemsize * states}").ravel()
    first, letter = np.unique(rows, return_index=True, return_inverse=True)[1:]
    small = Machine.from_table(moved[first].T.astype(np.int64), outputs=outputs)
    # a letter's number stays: `from_table` keeps the order of integers
    found = _without_double_letters(small, letter.reshape(-1).astype(np.int64))
    names = machine.output_names
    return found if not names else TokenMachine(_named(found.machine, names), found.letter)


def _without_double_letters(machine: Machine, letter: IntArray) -> TokenMachine:
    """Letters may have become alike, now that states which no token leads to are gone."""
    first, same = np.unique(machine.delta, axis=1, return_index=True, return_inverse=True)[1:]
    table = machine.delta[:, first]
    smaller = Machine.from_table(table, outputs=machine.outputs)
    return TokenMachine(smaller, same.reshape(-1)[letter])


def _named(machine: Machine, names: tuple[str, ...]) -> Machine:
    # a sink says -1, and a name for it is needed: the empty one
    outputs = np.where(machine.outputs < 0, len(names), machine.outputs)
    return Machine(machine.alphabet, machine.delta, outputs, (*names, ""))


def _byte_table(machine: Machine) -> tuple[IntArray, IntArray | NDArray[np.bool_]]:
    """`[states, 256]`, where each byte leads, with a sink at the end; and what the states say.

    In the middle of a character there is a state for each state before it and each beginning of a
    character; it does not accept, and says -1, as does the sink.
    """
    spelled = [_spelling(letter) for letter in machine.alphabet]
    begun: dict[bytes, int] = {b"": 0}
    for word in spelled:
        for length in range(1, len(word)):
            begun.setdefault(word[:length], len(begun))
    n = machine.num_states
    sink = n * len(begun)
    table = np.full((sink + 1, 256), sink, dtype=np.int64)
    states = np.arange(n)
    for prefix, index in begun.items():
        if prefix:
            table[begun[prefix[:-1]] * n + states, prefix[-1]] = index * n + states
    for letter, word in enumerate(spelled):
        table[begun[word[:-1]] * n + states, word[-1]] = machine.delta[:, letter]
    accepting = machine.outputs.dtype == np.bool_
    outputs = np.full(sink + 1, 0 if accepting else -1, dtype=machine.outputs.dtype)
    outputs[:n] = machine.outputs
    return table, outputs


def _spelling(letter: object) -> bytes:
    if isinstance(letter, str) and letter:
        return letter.encode()
    if isinstance(letter, int) and 0 <= letter < 256:
        return bytes([letter])
    raise ValueError(
        f"the machine has the letter {letter!r}, but a token is made of characters or bytes: give "
        "it letters that are strings, or numbers from 0 to 255"
    )


def _moved(table: IntArray, vocabulary: Sequence[Token]) -> NDArray[np.int32]:
    """`[vocabulary, states]`, where each token leads: along the trie of all tokens, by depth."""
    sink = len(table) - 1
    small = table.astype(np.int32)
    tokens = [token.encode() if isinstance(token, str) else token for token in vocabulary]
    moved = np.full((len(tokens), len(table)), sink, dtype=np.int32)
    writes = np.array([i for i, token in enumerate(tokens) if token is not None], dtype=np.int64)
    lengths = np.array([len(tokens[i] or b"") for i in writes.tolist()], dtype=np.int64)
    text = np.frombuffer(b"".join(token for token in tokens if token is not None), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    reached = np.arange(len(table), dtype=np.int32)[None, :]  # of each node at this depth
    node = np.zeros(len(writes), dtype=np.int64)
    depth = 0
    while True:
        ends = lengths == depth
        moved[writes[ends]] = reached[node[ends]]
        longer = lengths > depth
        if not longer.any():
            return moved
        writes, lengths, starts = writes[longer], lengths[longer], starts[longer]
        edges, node = np.unique(node[longer] * 256 + text[starts + depth], return_inverse=True)
        reached = small[reached[edges // 256], (edges % 256)[:, None]]
        depth += 1
