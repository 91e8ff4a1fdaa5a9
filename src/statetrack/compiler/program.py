"""`Program`: a machine as layers of exact transitions over named directions, in plain numpy.

A layer keeps a state H `[rows, columns]`. On every symbol it reads,

    H <- A H + B,        y = Hᵀ q,        label = argmax(readout · y)

with A, B and the query q chosen by the symbol alone. Between layers there is nothing but two
tables. Layer i knows a context c (for the first layer: the letter); `symbol[c]` is what it reads,
and its label l makes `after[c, l]` the context of the next layer; after the last layer that is the
machine's state. So y_t = dec(H_t, x_t) as in the theorems, with H_t after the update.

A layer needs one label only, although the next one has to know its state before and after the
letter: a permutation can be undone, so the label after gives the label before; a reset leaves a
known label, so what is read on a reset is the label before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import Machine, Project, Swap
from statetrack.automata.limits import too_large
from statetrack.automata.machine import Word

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MAX_PROGRAM = 2**24
"""Entries of the largest table of a program: contexts x labels, or symbols x rows x rows."""


@dataclass(frozen=True)
class Write:
    """Replace row `row` of H by `value`: I - e eᵀ with e = e_row (beta 1), and B = e valueᵀ."""

    row: int
    value: tuple[float, ...]


@dataclass(frozen=True)
class Reflect:
    """I - 2 k kᵀ with a unit vector k, one entry for each row."""

    key: tuple[float, ...]


Step = Swap | Project | Write | Reflect
"""A generalized Householder factor with what it writes; `Swap` and `Project` write nothing."""


@dataclass(frozen=True)
class Symbol:
    """What a layer does on one input symbol: H <- gate·H, then the steps in order.

    `queries` `[heads][rows]` are the functionals of H that are read; all heads share one state.
    `leaves` is the label the layer holds afterwards if the symbol alone decides it, else -1.
    """

    name: str
    gate: float
    steps: tuple[Step, ...]
    queries: tuple[tuple[float, ...], ...]
    leaves: int = -1


class ProgramLayer(ABC):
    """One recurrence with its symbols and labels."""

    @property
    @abstractmethod
    def directions(self) -> tuple[str, ...]:
        """A name for each row of H."""

    @property
    @abstractmethod
    def symbol_names(self) -> tuple[str, ...]:
        """A name for each input symbol."""

    @property
    @abstractmethod
    def label_names(self) -> tuple[str, ...]:
        """A name for each label that can be read."""

    @property
    @abstractmethod
    def leaves(self) -> tuple[int, ...]:
        """For each symbol the label it leaves whatever was there, or -1: what is read then."""

    @property
    @abstractmethod
    def num_householders(self) -> int:
        """The most factors of any symbol's A; 0 for a diagonal layer."""

    @abstractmethod
    def transition(self, symbol: int) -> tuple[FloatArray, FloatArray]:
        """A `[rows, rows]` and B `[rows, columns]` of a symbol."""

    @abstractmethod
    def initial_state(self) -> FloatArray:
        """H `[rows, columns]` before the first symbol, after the start has been written."""

    @abstractmethod
    def read(self, states: FloatArray, symbols: IntArray) -> IntArray:
        """The label at each time, from H after the update `[time, rows, columns]` and symbols."""

    @abstractmethod
    def step(self, state: FloatArray, symbol: int) -> FloatArray:
        """A H + B, computed as the layer does."""

    def run(self, symbols: IntArray) -> FloatArray:
        """H after each symbol, `[time, rows, columns]`: the recurrence, one step after another."""
        h = self.initial_state()
        states = np.empty((len(symbols), *h.shape))
        for t, symbol in enumerate(symbols.tolist()):
            h = states[t] = self.step(h, symbol)
        return states


@dataclass(frozen=True, eq=False)
class DeltaLayer(ProgramLayer):
    """A layer whose A is a gate times a product of generalized Householder factors.

    Attributes:
        rows, columns: names of the directions of H and of what is stored in them.
        symbols: the input symbols.
        start: steps that turn the zero state into the start.
        labels: names of the labels.
        readout: `[labels, heads·columns]`, the label is the largest entry of `readout @ y`.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    start: tuple[Step, ...]
    labels: tuple[str, ...]
    readout: FloatArray

    def __post_init__(self) -> None:
        heads = len(self.symbols[0].queries)
        _bound("entries of a layer's queries", len(self.symbols) * heads * len(self.rows))
        _bound("entries of a layer's readout", self.readout.size)

    @property
    def directions(self) -> tuple[str, ...]:
        return self.rows

    @property
    def symbol_names(self) -> tuple[str, ...]:
        return tuple(symbol.name for symbol in self.symbols)

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels

    @property
    def leaves(self) -> tuple[int, ...]:
        return tuple(symbol.leaves for symbol in self.symbols)

    @property
    def num_householders(self) -> int:
        return max(len(symbol.steps) for symbol in self.symbols)

    def transition(self, symbol: int) -> tuple[FloatArray, FloatArray]:
        spec = self.symbols[symbol]
        matrix = spec.gate * np.eye(len(self.rows))
        added = np.zeros((len(self.rows), len(self.columns)))
        for step in spec.steps:
            matrix = _apply(step, matrix, write=False)
            added = _apply(step, added, write=True)
        return matrix, added

    def step(self, state: FloatArray, symbol: int) -> FloatArray:
        spec = self.symbols[symbol]
        h = spec.gate * state
        for step in spec.steps:
            h = _apply(step, h, write=True)
        return h

    def initial_state(self) -> FloatArray:
        h = np.zeros((len(self.rows), len(self.columns)))
        for step in self.start:
            h = _apply(step, h, write=True)
        return h

    def read(self, states: FloatArray, symbols: IntArray) -> IntArray:
        queries = self._queries[symbols]
        read = np.einsum("trc,thr->thc", states, queries).reshape(
            len(symbols), self.readout.shape[1]
        )
        return np.argmax(read @ self.readout.T, axis=1)

    @cached_property
    def _queries(self) -> FloatArray:
        return np.array([symbol.queries for symbol in self.symbols])


@dataclass(frozen=True, eq=False)
class DiagonalLayer(ProgramLayer):
    """A layer h <- a ∘ h + b with a and b chosen by the symbol.

    Attributes:
        coordinates: names of the coordinates.
        symbols: names of the input symbols.
        decay, add: `[symbols, coordinates]`, a and b.
        start: `[coordinates]`, h before the first symbol.
        labels: names of the labels.
        codes: `[labels, coordinates]` of signs. The label is the code nearest to h - b in sign,
            what was there before the symbol wrote, or h itself where it wrote nothing.
        written: for each symbol the label it writes, or -1.
    """

    coordinates: tuple[str, ...]
    symbols: tuple[str, ...]
    decay: FloatArray
    add: FloatArray
    start: FloatArray
    labels: tuple[str, ...]
    codes: FloatArray
    written: tuple[int, ...]

    @property
    def leaves(self) -> tuple[int, ...]:
        return self.written

    @property
    def directions(self) -> tuple[str, ...]:
        return self.coordinates

    @property
    def symbol_names(self) -> tuple[str, ...]:
        return self.symbols

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels

    @property
    def num_householders(self) -> int:
        return 0

    def transition(self, symbol: int) -> tuple[FloatArray, FloatArray]:
        return np.diag(self.decay[symbol]), self.add[symbol][:, None]

    def step(self, state: FloatArray, symbol: int) -> FloatArray:
        return self.decay[symbol][:, None] * state + self.add[symbol][:, None]

    def initial_state(self) -> FloatArray:
        return self.start[:, None]

    def read(self, states: FloatArray, symbols: IntArray) -> IntArray:
        left = states[:, :, 0] - self.add[symbols]
        return np.argmax(left @ self.codes.T, axis=1)


@dataclass(frozen=True, eq=False)
class DenseLayer(ProgramLayer):
    """A layer with any matrix for each symbol, from H = I; the label is where e_0 has gone."""

    matrices: FloatArray
    symbols: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def directions(self) -> tuple[str, ...]:
        return self.labels

    @property
    def leaves(self) -> tuple[int, ...]:
        return (-1,) * len(self.symbols)

    @property
    def symbol_names(self) -> tuple[str, ...]:
        return self.symbols

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels

    @property
    def num_householders(self) -> int:
        return 0

    def transition(self, symbol: int) -> tuple[FloatArray, FloatArray]:
        matrix = self.matrices[symbol]
        return matrix, np.zeros_like(matrix)

    def step(self, state: FloatArray, symbol: int) -> FloatArray:
        moved: FloatArray = self.matrices[symbol] @ state
        return moved

    def initial_state(self) -> FloatArray:
        return np.eye(self.matrices.shape[1])

    def read(self, states: FloatArray, symbols: IntArray) -> IntArray:
        return np.argmax(states[:, :, 0], axis=1)


@dataclass(frozen=True, eq=False)
class Stage:
    """A layer and the two tables around it.

    Attributes:
        layer: the recurrence.
        symbol: `[contexts]`, the symbol that each context makes the layer read.
        after: `[contexts, labels]`, the next context, or -1 for a label that cannot be read there.
    """

    layer: ProgramLayer
    symbol: IntArray
    after: IntArray

    def __post_init__(self) -> None:
        assert self.after.shape == (len(self.symbol), len(self.layer.label_names))
        _bound("entries of a program's tables", self.after.size)
        for table in (self.symbol, self.after):
            table.flags.writeable = False


@dataclass(frozen=True)
class Trace:
    """What every layer read and held, letter by letter.

    Attributes:
        letters: the word.
        symbols, labels: for each layer the names of the symbol it read and of the label it then
            holds, after each letter.
        states: the machine's state after each letter.
    """

    letters: tuple[str, ...]
    symbols: tuple[tuple[str, ...], ...]
    labels: tuple[tuple[str, ...], ...]
    states: tuple[int, ...]

    def __str__(self) -> str:
        head = ["letter"]
        for i in range(len(self.symbols)):
            head += [f"layer {i + 1} reads", "and holds"]
        rows = [[*head, "state"]]
        for t, letter in enumerate(self.letters):
            row = [letter]
            for symbols, labels in zip(self.symbols, self.labels, strict=True):
                row += [symbols[t], labels[t]]
            rows.append([*row, str(self.states[t])])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """An immutable, runnable linear RNN for a machine.

    Attributes:
        machine: the machine it emulates.
        method: how it was made.
        stages: its layers, first layer first, each with its tables.
        exact: whether all its numbers are exact in floating point (rotations are not).
        note: what else there is to say about how it was made; may be empty.

    >>> from statetrack.compiler import compile_program
    >>> machine = Machine.from_regex("(a|b)*ab", "ab")
    >>> program = compile_program(machine, "cascade")
    >>> program.run("aabab").tolist() == machine.run("aabab").tolist()
    True
    """

    machine: Machine
    method: str
    stages: tuple[Stage, ...]
    exact: bool = True
    note: str = ""

    def __repr__(self) -> str:
        layers = len(self.stages)
        count = f"{layers} layer" + ("" if layers == 1 else "s")
        return f"Program({self.method!r}, {count}, for {self.machine!r})"

    def __str__(self) -> str:
        """The layers with their directions and symbols, a few lines each."""
        lines = [repr(self) + (f", {self.note}" if self.note else "")]
        for i, stage in enumerate(self.stages):
            layer = stage.layer
            kind = type(layer).__name__
            lines.append(f"  layer {i + 1}: {kind}, {layer.num_householders} Householders")
            lines.append(f"    directions: {listed(layer.directions)}")
            lines.append(f"    symbols: {listed(layer.symbol_names)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """In a notebook: the text, with the diagram of a small machine above it."""
        drawn = self.machine._repr_svg_() or ""
        return f"{drawn}<pre>{escape(str(self))}</pre>"

    def run(self, word: Word) -> IntArray:
        """The machine's state after each letter, computed by the layers."""
        return self._run(word)[1]

    def trace(self, word: Word) -> Trace:
        """The same run with what each layer read and held, by name."""
        letters = self.machine.encode(word)
        steps, states = self._run(letters)
        return named_trace(
            self.machine,
            letters,
            [
                (stage.layer.symbol_names, stage.layer.label_names, stage.layer.leaves)
                for stage in self.stages
            ],
            steps,
            states,
        )

    def _run(self, word: Word) -> tuple[list[tuple[IntArray, IntArray]], IntArray]:
        """Per layer its symbols and labels; and the states."""
        contexts = self.machine.encode(word)
        if contexts.ndim != 1:
            raise ValueError(f"a program runs one word, got shape {contexts.shape}")
        steps = []
        for stage in self.stages:
            symbols = stage.symbol[contexts]
            labels = stage.layer.read(stage.layer.run(symbols), symbols)
            steps.append((symbols, labels))
            contexts = stage.after[contexts, labels]
            assert (contexts >= 0).all(), "a layer read a label that cannot occur"
        return steps, contexts


def named_trace(
    machine: Machine,
    letters: IntArray,
    names: Sequence[tuple[Sequence[str], Sequence[str], Sequence[int]]],
    steps: Sequence[tuple[IntArray, IntArray]],
    states: IntArray,
) -> Trace:
    """A trace from numbers: per layer `names` (symbols, labels, leaves) and (symbols, labels)."""
    read, held = [], []
    for (symbol_names, label_names, leaves), (symbols, shown) in zip(names, steps, strict=True):
        read.append(tuple(symbol_names[s] for s in symbols.tolist()))
        left = np.asarray(leaves)[symbols]
        held.append(tuple(label_names[x] for x in np.where(left < 0, shown, left).tolist()))
    spelled = tuple(str(machine.alphabet[letter]) for letter in letters.tolist())
    return Trace(spelled, tuple(read), tuple(held), tuple(states.tolist()))


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Names with commas, the first few of many."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f", … ({rest} more)" if rest > 0 else "")


def _apply(step: Step, h: FloatArray, *, write: bool) -> FloatArray:
    """One step on H; without `write` the linear part alone."""
    if isinstance(step, Reflect):
        key = np.array(step.key)[:, None]
        return h - 2 * key * (key.T @ h)
    h = h.copy()
    if isinstance(step, Swap):
        h[[step.i, step.j]] = h[[step.j, step.i]]
    elif isinstance(step, Project):
        h[step.i] = 0
    else:
        h[step.row] = step.value if write else 0
    return h


def _bound(what: str, size: int) -> None:
    if size > MAX_PROGRAM:
        raise too_large(what, size, MAX_PROGRAM, "minimise the machine, or use fewer letters")
