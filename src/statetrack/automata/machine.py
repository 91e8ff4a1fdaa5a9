"""`Machine`: a Moore machine over integer tables, canonically numbered.

Notation: n states, k letters; words act on the right, `q·w` is the state after reading `w` from
`q`. State 0 is the start. States are numbered breadth-first from the start over the sorted
alphabet, so two machines that differ only in the names of their states are equal, hash alike and
have equal bytes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statetrack.automata import _automata_lib
from statetrack.automata._draw import MAX_DRAWN, diagram
from statetrack.automata._subsets import subset_table
from statetrack.automata.limits import MAX_TABLE, too_large

Letter = str | int | tuple[Any, ...]
Word = str | Sequence[Any] | NDArray[np.integer[Any]]
IntArray = NDArray[np.int64]

MOORE_ROUNDS = 64
"""Rounds of refining all states at once before states are moved one by one."""


MAX_LISTED = 16
"""States that `str` of a machine lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Machine:
    """An immutable, complete, deterministic Moore machine whose states are all reachable.

    Build one with `from_regex`, `from_table` or `from_dfa`; the constructor itself takes tables
    that are canonical already.

    Attributes:
        alphabet: the letters, sorted; a letter's position is its number, `0 .. k-1`.
        delta: `[n, k]` int64, `delta[q, a]` is the state after letter number `a` in state `q`.
        outputs: `[n]` bool (accepting or not) or int64, what the machine says in each state.
        output_names: where outputs are words: `output_names[i]` is output i. Else empty.

    >>> machine = Machine.from_regex("(a|b)*ab", "ab")
    >>> machine.run("aab").tolist(), machine.accepts("aab")
    ([1, 1, 2], True)
    """

    alphabet: tuple[Letter, ...]
    delta: IntArray
    outputs: NDArray[Any]
    output_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, k = self.delta.shape
        assert len(self.alphabet) == k and self.outputs.shape == (n,)
        assert not self.output_names or self.outputs.max() < len(self.output_names)
        for name in ("delta", "outputs"):
            array = getattr(self, name).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    # -- constructors ---------------------------------------------------------------------------

    @staticmethod
    def from_regex(regex: str, alphabet: Iterable[str]) -> Machine:
        """The minimal machine of a regular expression; needs automata-lib.

        Operators are those of automata-lib: `*`, `+`, `?`, `|`, `&` (intersection), `{m,n}`, `.`,
        brackets. A backslash before one of them, or before a blank, makes it a letter. The
        alphabet is always given: it decides what the complement and the sink are.

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
        Where the table has None, the arrow leads to a sink, which does not accept and says -1.

        >>> parity = Machine.from_table([[0, 1], [1, 0]], accepting=[1])
        >>> parity.run([1, 0, 1, 1]).tolist()
        [1, 1, 0, 1]
        """
        if isinstance(delta, Sequence) and any(_has_gap(row) for row in delta):
            delta, outputs = _completed(delta, accepting, outputs)
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

    @staticmethod
    def from_dict(
        transitions: Mapping[Any, Mapping[Any, Hashable]],
        start: Hashable,
        *,
        accepting: Iterable[Hashable] | None = None,
        outputs: Mapping[Any, Any] | None = None,
    ) -> Machine:
        """The machine of arrows `transitions[state][letter] -> state` with states of any name.

        Arrows may be missing: they lead to a sink, which does not accept and says -1 (or "").
        `outputs` gives a boolean, an integer or a word for each state; with neither `outputs` nor
        `accepting` a state says its own name if that is an integer, else its name as a word.

        >>> door = {"shut": {"open": "ajar"}, "ajar": {"shut": "shut", "open": "ajar"}}
        >>> machine = Machine.from_dict(door, "shut")
        >>> machine.says(["open", "shut", "shut"])
        ['ajar', 'shut', '']
        """
        states, letters = _names_in(transitions)
        if start not in states:
            raise ValueError(f"the start {start!r} is not a state; there are {_show(states)}")
        number = {state: i for i, state in enumerate(states)}
        sink = len(states)
        rows = [
            [number.get(transitions.get(state, {}).get(a, _MISSING), sink) for a in letters]
            for state in states
        ]
        partial = any(sink in row for row in rows)
        rows += [[sink] * len(letters)] * partial
        if accepting is not None and outputs is not None:
            raise ValueError("give accepting or outputs, not both")
        if accepting is not None:
            chosen = list(accepting)
            for state in chosen:
                if state not in number:
                    raise ValueError(f"accepting {state!r} is not a state; {_show(states)} are")
            says: list[Any] = [state in chosen for state in states] + [False] * partial
            return Machine.from_table(rows, number[start], outputs=says, alphabet=letters)
        given = {state: state for state in states} if outputs is None else outputs
        missing = [state for state in states if state not in given]
        if missing:
            raise ValueError(f"state {missing[0]!r} has no output; give one for each state")
        said, names = _numbered_outputs([given[state] for state in states], partial)
        machine = Machine.from_table(rows, number[start], outputs=said, alphabet=letters)
        return replace(machine, output_names=names)

    @staticmethod
    def from_mealy(
        transitions: Mapping[Any, Mapping[Any, tuple[Hashable, Any]]], start: Hashable
    ) -> Machine:
        """The Moore machine of a Mealy machine: `transitions[state][letter] = (state, output)`.

        A state of the result is a state with the output of the arrow that led to it; before the
        first letter it says -1, or nothing. Missing arrows lead to a sink that says the same.

        >>> carry = {0: {"0": (0, "same"), "1": (1, "up")}, 1: {"0": (0, "down"), "1": (1, "same")}}
        >>> Machine.from_mealy(carry, 0).says("0110")
        ['same', 'up', 'same', 'down']
        """
        first = (start, _MISSING)
        arrows: dict[tuple[Hashable, Any], dict[Any, tuple[Hashable, Any]]] = {}
        queue: list[tuple[Hashable, Any]] = [first]
        for pair in queue:
            if pair not in arrows:
                row = transitions.get(pair[0], {})
                for letter, arrow in row.items():
                    if not isinstance(arrow, tuple | list) or len(arrow) != 2:
                        raise ValueError(
                            f"state {pair[0]!r}, letter {letter!r} has {arrow!r}; an arrow of a "
                            "Mealy machine is a pair (state, output)"
                        )
                arrows[pair] = {a: (state, said) for a, (state, said) in row.items()}
                queue += arrows[pair].values()
        every = [pair[1] for pair in arrows if pair[1] is not _MISSING]
        nothing: Any = "" if any(isinstance(said, str) for said in every) else -1
        said = {pair: nothing if pair[1] is _MISSING else pair[1] for pair in arrows}
        return Machine.from_dict(arrows, first, outputs=said)

    @staticmethod
    def from_nfa(
        transitions: Mapping[Any, Mapping[Any, Iterable[Hashable]]],
        start: Hashable,
        accepting: Iterable[Hashable],
    ) -> Machine:
        """The minimal machine of an automaton with choices: `transitions[state][letter]` is a set.

        The letter "" stands for arrows that read nothing.

        >>> ends_ab = {0: {"a": [0, 1], "b": [0]}, 1: {"b": [2]}}
        >>> Machine.from_nfa(ends_ab, 0, [2]) == Machine.from_regex("(a|b)*ab", "ab")
        True
        """
        for state, row in transitions.items():
            for letter, ends in row.items():
                if isinstance(ends, str) or not isinstance(ends, Iterable):
                    raise ValueError(
                        f"state {state!r}, letter {letter!r} leads to {ends!r}; an automaton with "
                        "choices has a list of states there"
                    )
        flat = {
            state: {(letter, i): end for letter, ends in row.items() for i, end in enumerate(ends)}
            for state, row in transitions.items()
        }
        states, pairs = _names_in(flat)
        goals = list(accepting)
        states = tuple(dict.fromkeys([*states, start, *goals]))
        letters = _sorted_alphabet(tuple({letter for letter, _ in pairs} - {""}))
        number = {state: i for i, state in enumerate(states)}
        rows = [transitions.get(state, {}) for state in states]
        table, accepts = subset_table(
            [[[number[end] for end in row.get(a, ())] for a in letters] for row in rows],
            [[number[end] for end in row.get("", ())] for row in rows],
            [number[start]],
            [number[goal] for goal in goals],
            f"an automaton of {len(states)} states",
        )
        return _canonical(letters, np.array(table), 0, np.array(accepts)).minimal()

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
        if self.output_names:
            head += f"{self.output_names!r}|"
        return head.encode() + self.delta.astype("<i8").tobytes() + _output_bytes(self.outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __repr__(self) -> str:
        shown = [str(letter) for letter in self.alphabet[:8]]
        letters = ("" if max(map(len, shown)) == 1 else " ").join(shown)
        letters += "…" if self.num_letters > 8 else ""
        states = "1 state" if self.num_states == 1 else f"{self.num_states} states"
        count = "1 letter" if self.num_letters == 1 else f"{self.num_letters} letters"
        return f"Machine({states} over {count} {letters!r})"

    def __str__(self) -> str:
        """The table: a line for each state, its outputs, and where each letter leads."""
        accepting = self.outputs.dtype == np.bool_
        shown = min(self.num_letters, 12)
        head = ["state", "accepts" if accepting else "says", *map(str, self.alphabet[:shown])]
        rows = [head]
        for q in range(min(self.num_states, MAX_LISTED)):
            said = ("yes" if self.outputs[q] else "no") if accepting else self.said(q)
            rows.append([str(q), str(said), *map(str, self.delta[q, :shown].tolist())])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
        more = self.num_states - MAX_LISTED
        lines = [repr(self), *(line.rstrip() for line in lines)]
        return "\n".join(lines + ([f"… {more} more states"] if more > 0 else []))

    def _repr_svg_(self) -> str | None:
        """The state diagram in a notebook; a large machine shows its `repr`."""
        return (
            None
            if self.num_states > MAX_DRAWN
            else diagram(
                self.delta.tolist(),
                [str(a) for a in self.alphabet],
                [self.said(q) for q in range(self.num_states)],
            )
        )

    def said(self, state: int) -> Any:
        """What the machine says in a state: a boolean, an integer or a word."""
        said = self.outputs[state].item()
        return self.output_names[said] if self.output_names else said

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

    def says(self, word: Word) -> list[Any]:
        """The output after each letter: booleans, integers, or words.

        >>> Machine.from_regex("(aa)*", "a").says("aaa")
        [False, True, False]
        """
        return [self.said(state) for state in self.run(word).tolist()]

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
        smaller = _canonical(
            self.alphabet, block[self.delta[chosen]], int(block[0]), self.outputs[chosen]
        )
        return replace(smaller, output_names=self.output_names)

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
        self._same_alphabet(other, "a product")
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

    def reverse(self) -> Machine:
        """The minimal machine of the same words read backwards.

        >>> Machine.from_regex("ab*", "ab").reverse() == Machine.from_regex("b*a", "ab")
        True
        """
        n = self._acceptor("reversed")
        before: list[list[list[int]]] = [[[] for _ in self.alphabet] for _ in range(n)]
        for state, row in enumerate(self.delta.tolist()):
            for letter, target in enumerate(row):
                before[target][letter].append(state)
        final = np.flatnonzero(self.outputs).tolist()
        return self._of_choices(before, [[] for _ in range(n)], final, [0])

    def concatenate(self, other: Machine) -> Machine:
        """The minimal machine of words of this one followed by words of the other.

        >>> a, b = Machine.from_regex("a*", "ab"), Machine.from_regex("b", "ab")
        >>> a.concatenate(b) == Machine.from_regex("a*b", "ab")
        True
        """
        n = self._acceptor("concatenated")
        other._acceptor("concatenated")
        self._same_alphabet(other, "a concatenation")
        arrows = [[[end] for end in row] for row in self.delta.tolist()]
        arrows += [[[n + end] for end in row] for row in other.delta.tolist()]
        silent = [[n] if final else [] for final in self.outputs.tolist()]
        silent += [[] for _ in range(other.num_states)]
        final = (n + np.flatnonzero(other.outputs)).tolist()
        return self._of_choices(arrows, silent, [0], final)

    def star(self) -> Machine:
        """The minimal machine of any number of words of this one, one after the other.

        >>> Machine.from_regex("ab", "ab").star() == Machine.from_regex("(ab)*", "ab")
        True
        """
        n = self._acceptor("starred")
        arrows = [[[end] for end in row] for row in self.delta.tolist()]
        arrows.append([[] for _ in self.alphabet])
        silent = [[n] if final else [] for final in self.outputs.tolist()] + [[0]]
        return self._of_choices(arrows, silent, [n], [n])

    def counterexample(self, other: Machine) -> tuple[Letter, ...] | None:
        """A shortest word, as letters, after which the outputs differ; None if there is none.

        >>> a, b = Machine.from_regex("(aa)*", "a"), Machine.from_regex("a*", "a")
        >>> a.counterexample(b), a.counterexample(a)
        (('a',), None)
        """
        self._same_alphabet(other, "a comparison")
        width = other.num_states
        mine = [self.said(q) for q in range(self.num_states)]
        theirs = [other.said(q) for q in range(width)]
        came: dict[int, tuple[int, int]] = {0: (-1, -1)}
        queue = [0]
        for pair in queue:
            q, r = divmod(pair, width)
            if mine[q] != theirs[r]:
                word: list[Letter] = []
                while pair:
                    pair, letter = came[pair]
                    word.append(self.alphabet[letter])
                return tuple(reversed(word))
            reached = self.delta[q] * width + other.delta[r]
            for letter, following in enumerate(reached.tolist()):
                if following not in came:
                    came[following] = (pair, letter)
                    queue.append(following)
            if len(came) * self.num_letters > MAX_TABLE:
                raise too_large("pairs of states", len(came), MAX_TABLE, "minimise both first")
        return None

    def equivalent(self, other: Machine) -> bool:
        """Whether both say the same after every word.

        >>> six = Machine.from_table([[1], [2], [3], [0]], outputs=[0, 1, 0, 1])
        >>> six.equivalent(six.minimal())
        True
        """
        return self.counterexample(other) is None

    def _acceptor(self, done: str) -> int:
        if self.outputs.dtype != np.bool_:
            raise ValueError(f"only a machine with accepting states can be {done}")
        return self.num_states

    def _same_alphabet(self, other: Machine, what: str) -> None:
        if self.alphabet != other.alphabet:
            raise ValueError(
                f"{what} needs equal alphabets, got {_show(self.alphabet)} "
                f"and {_show(other.alphabet)}"
            )

    def _of_choices(
        self,
        arrows: list[list[list[int]]],
        silent: list[list[int]],
        starts: list[int],
        accepting: list[int],
    ) -> Machine:
        what = f"a machine made of {len(arrows)} states"
        table, accepts = subset_table(arrows, silent, starts, accepting, what)
        return _canonical(self.alphabet, np.array(table), 0, np.array(accepts)).minimal()

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
            said = _quoted(str(self.said(state)))
            label = f"{state}" if accepting else f"{state} / {said}"
            lines.append(f'  {state} [shape={shape}, label="{label}"];')
        lines.append("  start -> 0;")
        for state, row in enumerate(self.delta.tolist()):
            for target in sorted(set(row)):
                names = [str(a) for a, end in zip(self.alphabet, row, strict=True) if end == target]
                label = _quoted(",".join(names))
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


def _has_gap(row: Any) -> bool:
    return isinstance(row, Sequence) and not isinstance(row, str) and None in row


def _completed(
    delta: Sequence[Any], accepting: Iterable[int] | None, outputs: ArrayLike | None
) -> tuple[list[list[Any]], ArrayLike | None]:
    """A table whose missing arrows lead to a last state, and its outputs with that state's."""
    sink = len(delta)
    rows = [[sink if target is None else target for target in row] for row in delta]
    rows.append([sink] * len(rows[0]))
    if accepting is not None:
        return rows, outputs
    says = list(range(sink)) if outputs is None else np.asarray(outputs).tolist()
    nothing = False if says and all(isinstance(said, bool) for said in says) else -1
    return rows, [*says, nothing]


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


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _names_in(
    transitions: Mapping[Any, Mapping[Any, Hashable]],
) -> tuple[tuple[Hashable, ...], tuple[Any, ...]]:
    """The states, in order of appearance, and the letters of arrows by name."""
    if not isinstance(transitions, Mapping) or not transitions:
        raise ValueError(f"arrows are a dict of dicts, got {_show(transitions)}")
    states: dict[Hashable, None] = {}
    letters: dict[Any, None] = {}
    for state, row in transitions.items():
        if not isinstance(row, Mapping):
            raise ValueError(f"the arrows of state {state!r} are {row!r}, not a dict of letters")
        states[state] = None
        letters.update(dict.fromkeys(row))
    for row in transitions.values():
        states.update(dict.fromkeys(row.values()))
    return tuple(states), tuple(letters)


def _numbered_outputs(said: list[Any], partial: bool) -> tuple[list[Any], tuple[str, ...]]:
    """Outputs as booleans or integers, with those of the sink if there is one; and their names."""
    if all(isinstance(x, bool | np.bool_) for x in said):
        return said + [False] * partial, ()
    if all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in said):
        return said + [-1] * partial, ()
    words = [str(x) for x in said] + [""] * partial
    names = tuple(sorted(set(words)))
    return [names.index(word) for word in words], names


_MISSING = object()


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
