"""`Machine`: a Moore machine over integer tables, canonically numbered.

Notation: n states, k letters; words act on the right, `q·w` is the state after reading `w` from
`q`. State 0 is the start. States are numbered breadth-first from the start over the sorted
alphabet, so two machines that differ only in the names of their states are equal, hash alike and
have equal bytes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.automata import _automata_lib
from statetrack.automata.limits import MAX_TABLE, too_large

Letter = str | int | tuple[Any, ...]
Word = str | Sequence[Any] | NDArray[np.integer[Any]]
IntArray = NDArray[np.int64]

MOORE_ROUNDS = 64
"""Rounds of refining all states at once before states are moved one by one."""


@dataclass(frozen=True, eq=False, repr=False)
class Machine:
    """An immutable, complete, deterministic Moore machine whose states are all reachable.

    Build one with `from_regex`, `from_table` or `from_dfa`; the constructor itself takes tables
    that are canonical already.

    Attributes:
        alphabet: the letters, sorted; a letter's position is its number, `0 .. k-1`.
        delta: `[n, k]` int64, `delta[q, a]` is the state after letter number `a` in state `q`.
        outputs: `[n]` bool (accepting or not) or int64, what the machine says in each state.

    >>> machine = Machine.from_regex("(a|b)*ab", "ab")
    >>> machine.run("aab").tolist(), machine.accepts("aab")
    ([1, 1, 2], True)
    """

    alphabet: tuple[Letter, ...]
    delta: IntArray
    outputs: NDArray[Any]

    def __post_init__(self) -> None:
        n, k = self.delta.shape
        assert len(self.alphabet) == k and self.outputs.shape == (n,)
        for name in ("delta", "outputs"):
            array = getattr(self, name).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    # -- constructors ---------------------------------------------------------------------------

    @staticmethod
    def from_regex(regex: str, alphabet: Iterable[str]) -> Machine:
        """The minimal machine of a regular expression; needs automata-lib.

        Operators are those of automata-lib: `*`, `+`, `?`, `|`, `&` (intersection), `{m,n}`, `.`,
        brackets. The alphabet is always given: it decides what the complement and the sink are.

        >>> Machine.from_regex("(aa)*", "a").num_states
        2
        >>> Machine.from_regex("(aa)*", "ab").num_states
        3
        """
        letters = _sorted_alphabet(tuple(alphabet))
        table, accepting = _automata_lib.regex_table(regex, [str(a) for a in letters])
        return _canonical(letters, np.array(table), 0, np.array(accepting)).minimal()

    @staticmethod
    def from_table(
        delta: ArrayLike,
        start: int = 0,
        *,
        accepting: Iterable[int] | None = None,
        outputs: ArrayLike | None = None,
        alphabet: Iterable[Letter] | None = None,
    ) -> Machine:
        """The machine of a transition table, canonically renumbered, not minimised.

        States that cannot be reached from `start` are dropped. `delta[q][a]` is the state after
        letter `a`; column `a` belongs to the a-th letter of `alphabet` as given (default: the
        integers `0 .. k-1`). `accepting` lists accepting states; `outputs` gives one bool or
        integer for each state instead. With neither, a state's output is the number it had in the
        given table, so that `machine.outputs[machine.run(word)]` speaks of the states you wrote.

        >>> parity = Machine.from_table([[0, 1], [1, 0]], accepting=[1])
        >>> parity.run([1, 0, 1, 1]).tolist()
        [1, 1, 0, 1]
        """
        table = _checked_table(delta)
        n, k = table.shape
        letters = tuple(range(k)) if alphabet is None else tuple(map(_plain, alphabet))
        if len(letters) != k:
            raise ValueError(f"the table has {k} columns but the alphabet has {len(letters)}")
        if not isinstance(start, int | np.integer) or not 0 <= start < n:
            raise ValueError(f"start {start!r} is not a state; the table has states 0 to {n - 1}")
        ordered = _sorted_alphabet(letters)
        number = {letter: i for i, letter in enumerate(letters)}
        columns = [number[letter] for letter in ordered]
        says = _checked_outputs(n, accepting, outputs)
        return _canonical(ordered, table[:, columns], int(start), says)

    @staticmethod
    def from_dfa(dfa: Any) -> Machine:
        """The machine of an automata-lib `DFA`: completed with a sink, trimmed, not minimised.

        >>> from automata.fa.dfa import DFA
        >>> dfa = DFA(states={"x"}, input_symbols={"a"}, transitions={"x": {"a": "x"}},
        ...           initial_state="x", final_states={"x"})
        >>> Machine.from_dfa(dfa).accepts("aaa")
        True
        """
        table, accepting, alphabet = _automata_lib.dfa_table(dfa)
        if not alphabet:
            raise ValueError("the DFA has no input symbols; a machine needs at least one letter")
        return _canonical(_sorted_alphabet(tuple(alphabet)), np.array(table), 0, accepting)

    # -- values ---------------------------------------------------------------------------------

    @property
    def num_states(self) -> int:
        """n, the number of states."""
        return int(self.delta.shape[0])

    @property
    def num_letters(self) -> int:
        """k, the number of letters."""
        return int(self.delta.shape[1])

    def __bytes__(self) -> bytes:
        """Alphabet, table and outputs as bytes: equal for equal machines, on any platform."""
        head = f"{self.alphabet!r}|{self.delta.shape}|{self.outputs.dtype.kind}|"
        return head.encode() + self.delta.astype("<i8").tobytes() + _output_bytes(self.outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __repr__(self) -> str:
        letters = "".join(map(str, self.alphabet[:8])) + ("…" if self.num_letters > 8 else "")
        return f"Machine({self.num_states} states over {self.num_letters} letters {letters!r})"

    # -- running --------------------------------------------------------------------------------

    def encode(self, word: Word) -> IntArray:
        """A word as letter numbers: a string is read letter by letter, integers are kept.

        Integers are positions in `alphabet`, in any shape; a sequence of strings (or tuples) is a
        sequence of letters.

        >>> Machine.from_regex("a*", "ab").encode("abba").tolist()
        [0, 1, 1, 0]
        """
        letters = list(word) if isinstance(word, str) else word
        if isinstance(letters, list | tuple) and letters and isinstance(letters[0], str | tuple):
            number = {letter: i for i, letter in enumerate(self.alphabet)}
            try:
                return np.array([number[letter] for letter in letters], dtype=np.int64)
            except (KeyError, TypeError):
                outside = next(x for x in letters if x not in self.alphabet)
                raise ValueError(
                    f"symbol {outside!r} is not in the alphabet {_show(self.alphabet)}"
                ) from None
        array = _integers(letters, "a word")
        bad = array[(array < 0) | (array >= self.num_letters)]
        if bad.size:
            raise ValueError(
                f"letter number {bad.flat[0]} is not in 0..{self.num_letters - 1}; "
                f"integers number the letters of the alphabet {_show(self.alphabet)}"
            )
        return array

    def run(self, word: Word) -> IntArray:
        """The state after each letter, as many as letters; state 0 before the first.

        `word` is a string, a sequence of letter numbers, or a batch `[batch, time]` of letter
        numbers; the result has the shape of the word in numbers.

        >>> Machine.from_regex("(aa)*", "a").run([[0, 0, 0], [0, 0, 0]]).tolist()
        [[1, 0, 1], [1, 0, 1]]
        """
        letters = self.encode(word)
        if letters.ndim == 1:
            rows = self.delta.tolist()
            walk = accumulate(
                letters.tolist(), lambda state, letter: rows[state][letter], initial=0
            )
            next(walk)
            return np.fromiter(walk, dtype=np.int64, count=len(letters))
        if letters.ndim != 2:
            raise ValueError(f"a word has 1 axis and a batch 2, got shape {letters.shape}")
        states = np.empty(letters.shape, dtype=np.int64)
        state = np.zeros(letters.shape[0], dtype=np.int64)
        for time in range(letters.shape[1]):
            state = self.delta[state, letters[:, time]]
            states[:, time] = state
        return states

    def accepts(self, word: Word) -> bool:
        """Whether the machine ends in an accepting state; the outputs must be booleans.

        >>> Machine.from_regex("(ab)*", "ab").accepts("")
        True
        """
        if self.outputs.dtype != np.bool_:
            raise ValueError(
                "this machine has integer outputs, so it accepts nothing; "
                "read machine.outputs[machine.run(word)] instead"
            )
        letters = self.encode(word)
        if letters.ndim != 1:
            raise ValueError(f"accepts takes one word, got a batch of shape {letters.shape}")
        return bool(self.outputs[self.run(letters)[-1] if len(letters) else 0])

    # -- new machines ---------------------------------------------------------------------------

    def minimal(self) -> Machine:
        """The smallest machine with the same outputs after every word.

        Moore's refinement, all states at once; where that takes many rounds, Hopcroft's after it.

        >>> Machine.from_table([[1], [2], [3], [0]], outputs=[0, 1, 0, 1]).minimal().num_states
        2
        """
        block = _numbered(self.outputs)
        count = rounds = 0
        while count < (count := int(block.max()) + 1):
            if (rounds := rounds + 1) > MOORE_ROUNDS:
                block = _hopcroft(self.delta, block)
                break
            finer = block
            for successor in block[self.delta].T:
                finer = _numbered(finer * count + successor)
            block = finer
        chosen = np.unique(block, return_index=True)[1]
        return _canonical(
            self.alphabet, block[self.delta[chosen]], int(block[0]), self.outputs[chosen]
        )

    def product(
        self,
        other: Machine,
        combine: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]] = np.logical_and,
    ) -> Machine:
        """Both machines read the same word; outputs are `combine(outputs, other.outputs)`.

        The default is the intersection of two languages; `np.logical_or` is the union,
        `np.logical_xor` the symmetric difference. Only reachable pairs are kept; not minimised.

        >>> a = Machine.from_regex("(aa)*", "a")
        >>> b = Machine.from_regex("(aaa)*", "a")
        >>> a.product(b).num_states
        6
        """
        if self.alphabet != other.alphabet:
            raise ValueError(
                f"a product needs equal alphabets, got {_show(self.alphabet)} "
                f"and {_show(other.alphabet)}"
            )
        if combine is np.logical_and and {self.outputs.dtype, other.outputs.dtype} != {
            np.dtype(bool)
        }:
            raise ValueError(
                "a machine in the product has integer outputs; say how to combine them"
            )
        width = other.num_states
        start = np.zeros(1, dtype=np.int64)
        found = start
        frontier = start
        while frontier.size:
            left, right = np.divmod(frontier, width)
            reached = np.unique(self.delta[left] * width + other.delta[right])
            frontier = np.setdiff1d(reached, found, assume_unique=True)
            found = np.union1d(found, frontier)
            if found.size * self.num_letters > MAX_TABLE:
                raise too_large(
                    "the product table", found.size * self.num_letters, MAX_TABLE, "minimise first"
                )
        left, right = np.divmod(found, width)
        delta = np.searchsorted(found, self.delta[left] * width + other.delta[right])
        return _canonical(
            self.alphabet, delta, 0, combine(self.outputs[left], other.outputs[right])
        )

    def complement(self) -> Machine:
        """The machine that accepts exactly the words this one does not.

        >>> Machine.from_regex("(ab)*", "ab").complement().accepts("a")
        True
        """
        if self.outputs.dtype != np.bool_:
            raise ValueError("only a machine with accepting states has a complement")
        return Machine(self.alphabet, self.delta, ~self.outputs)

    # -- pictures -------------------------------------------------------------------------------

    def to_dot(self) -> str:
        """The state diagram in the DOT language; letters with the same arrow share one label.

        >>> print(Machine.from_regex("(aa)*", "a").to_dot().splitlines()[-2])
          1 -> 0 [label="a"];
        """
        accepting = self.outputs.dtype == np.bool_
        lines = ["digraph machine {", "  rankdir=LR;", '  start [shape=point, label=""];']
        for state, output in enumerate(self.outputs.tolist()):
            shape = "doublecircle" if accepting and output else "circle"
            label = f"{state}" if accepting else f"{state} / {output}"
            lines.append(f'  {state} [shape={shape}, label="{label}"];')
        lines.append("  start -> 0;")
        for state, row in enumerate(self.delta.tolist()):
            for target in sorted(set(row)):
                names = [str(a) for a, end in zip(self.alphabet, row, strict=True) if end == target]
                label = ",".join(names).replace("\\", "\\\\").replace('"', '\\"')
                lines.append(f'  {state} -> {target} [label="{label}"];')
        return "\n".join([*lines, "}", ""])

    def to_svg(self) -> str:
        """The state diagram as SVG text, drawn by graphviz's `dot` program."""
        program = shutil.which("dot")
        if program is None:
            raise ValueError(
                "an SVG diagram needs graphviz's `dot` program on the PATH: install graphviz "
                "(apt install graphviz, brew install graphviz), or draw to_dot() elsewhere"
            )
        drawn = subprocess.run(
            [program, "-Tsvg"],
            input=self.to_dot(),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if drawn.returncode:
            raise ValueError(f"dot failed: {drawn.stderr.strip().splitlines()[-1:]}")
        return drawn.stdout


def _canonical(
    alphabet: tuple[Letter, ...], delta: NDArray[Any], start: int, outputs: ArrayLike
) -> Machine:
    """Trim to the states reachable from `start`, number them breadth-first, start first."""
    number = np.full(len(delta), -1, dtype=np.int64)
    number[start] = 0
    order = [np.array([start], dtype=np.int64)]
    found = 1
    while order[-1].size:
        reached = delta[order[-1]].ravel()
        fresh = reached[number[reached] < 0]
        first = np.sort(np.unique(fresh, return_index=True)[1])
        new = fresh[first].astype(np.int64)
        number[new] = np.arange(found, found + new.size)
        found += new.size
        order.append(new)
    states = np.concatenate(order)
    says = np.asarray(outputs)
    says = says.astype(bool if says.dtype == np.bool_ else np.int64)
    return Machine(alphabet, number[delta[states]], says[states])


def _numbered(keys: NDArray[Any]) -> IntArray:
    """Equal keys get equal numbers, counted from 0 in the order of the keys."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _hopcroft(delta: IntArray, block: IntArray) -> IntArray:
    """The coarsest partition finer than `block` in which a block moves into one block (1971)."""
    n, k = delta.shape
    order = np.argsort(delta, axis=0, kind="stable")
    ends = np.stack([np.searchsorted(delta[order[:, a], a], np.arange(n + 1)) for a in range(k)])
    sources, bounds = order.T.tolist(), ends.tolist()
    number = block.tolist()
    members: list[set[int]] = [set() for _ in range(int(block.max()) + 1)]
    for state, b in enumerate(number):
        members[b].add(state)
    waiting = {(b, a) for b in range(len(members)) for a in range(k)}
    while waiting:
        b, a = waiting.pop()
        row, bound = sources[a], bounds[a]
        touched: dict[int, set[int]] = {}
        for state in members[b]:
            for source in row[bound[state] : bound[state + 1]]:
                touched.setdefault(number[source], set()).add(source)
        for split, part in touched.items():
            if len(part) == len(members[split]):
                continue
            rest = members[split] - part
            small, large = (part, rest) if len(part) <= len(rest) else (rest, part)
            members[split] = large
            for state in small:
                number[state] = len(members)
            # what waits for the whole block now waits for both halves; else the smaller will do
            waiting |= {(len(members), letter) for letter in range(k)}
            members.append(small)
    return _numbered(np.array(number))


def _plain(letter: Any) -> Letter:
    """A number of numpy as Python's own, so that equal alphabets have equal bytes."""
    return letter.item() if isinstance(letter, np.generic) else letter


def _sorted_alphabet(letters: tuple[Letter, ...]) -> tuple[Letter, ...]:
    if not letters:
        raise ValueError("the alphabet is empty; a machine needs at least one letter")
    seen: set[Hashable] = set()
    for letter in letters:
        if letter in seen:
            raise ValueError(f"letter {letter!r} is in the alphabet twice")
        seen.add(letter)
    try:
        return tuple(sorted(letters))
    except TypeError:
        raise ValueError(
            f"the alphabet {_show(letters)} cannot be sorted; use letters of one type"
        ) from None


def _checked_table(delta: ArrayLike) -> IntArray:
    """A rectangular `[n, k]` array of integers in `0 .. n-1`, or a line naming the wrong entry."""
    if not isinstance(delta, np.ndarray):
        if not isinstance(delta, Sequence) or isinstance(delta, str):
            raise ValueError(f"a table is a list of rows, got {type(delta).__name__}")
        rows: list[Any] = list(delta)
        for state, row in enumerate(rows):
            if not isinstance(row, Sequence | np.ndarray) or isinstance(row, str):
                raise ValueError(f"row {state} of the table is {row!r}, not a list of states")
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"incomplete table: state {state} has {len(row)} entries, "
                    f"state 0 has {len(rows[0])}; give every state one entry for each letter"
                )
            for letter, target in enumerate(row):
                if isinstance(target, bool) or not isinstance(target, int | np.integer):
                    raise ValueError(
                        f"state {state}, letter {letter} goes to {target!r}; "
                        "a deterministic table holds one state number in each place"
                    )
                if not 0 <= target < len(rows):
                    raise ValueError(_outside(state, letter, int(target), len(rows)))
    table = np.asarray(delta)
    if table.ndim != 2 or 0 in table.shape or table.dtype.kind not in "iu":
        raise ValueError(
            "a table is a non-empty [states, letters] array of integers, "
            f"got shape {table.shape} of {table.dtype}"
        )
    if table.size > MAX_TABLE:
        raise too_large("the table's entries", table.size, MAX_TABLE, "use fewer letters or states")
    bad = np.argwhere((table < 0) | (table >= len(table)))
    if bad.size:
        state, letter = map(int, bad[0])
        raise ValueError(_outside(state, letter, int(table[state, letter]), len(table)))
    return table.astype(np.int64)


def _outside(state: int, letter: int, target: int, n: int) -> str:
    return f"state {state}, letter {letter} goes to {target}, but the states are 0 to {n - 1}"


def _checked_outputs(
    n: int, accepting: Iterable[int] | None, outputs: ArrayLike | None
) -> NDArray[Any]:
    if accepting is not None and outputs is not None:
        raise ValueError("give accepting or outputs, not both")
    if accepting is not None:
        says = np.zeros(n, dtype=bool)
        for state in accepting:
            if isinstance(state, bool | np.bool_) or not isinstance(state, int | np.integer):
                raise ValueError(
                    f"accepting lists state numbers, got {state!r}; "
                    "for one boolean for each state use outputs="
                )
            if not 0 <= state < n:
                raise ValueError(f"accepting state {state} is not in 0..{n - 1}")
            says[state] = True
        return says
    if outputs is None:
        return np.arange(n, dtype=np.int64)
    says = np.asarray(outputs)
    if says.shape != (n,) or says.dtype.kind not in "biu":
        raise ValueError(
            f"outputs are {n} booleans or integers, one for each state, "
            f"got shape {says.shape} of {says.dtype}"
        )
    return says


def _integers(values: Any, what: str) -> IntArray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{what} in a batch must have equal lengths; pad them first") from None
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} is a string or integers, got {array.dtype}: {_show(values)}")
    return array.astype(np.int64, copy=False)


def _output_bytes(outputs: NDArray[Any]) -> bytes:
    return outputs.astype("|u1" if outputs.dtype == np.bool_ else "<i8").tobytes()


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
