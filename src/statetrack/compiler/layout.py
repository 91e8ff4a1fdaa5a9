"""How large each layer is once it is built, known before a single weight is.

`weights` builds exactly what is laid out here, so the cost of a program is that of the network:
rows that are swapped are stored twice, overwriting such a row takes two micro-steps, and every
projection counts. No torch is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from statetrack.automata import Project, Swap
from statetrack.automata.limits import too_large
from statetrack.compiler.program import (
    DeltaLayer,
    DenseLayer,
    DiagonalLayer,
    Program,
    ProgramLayer,
    Step,
    Symbol,
    Write,
)

Objective = Literal["latency", "layers", "parameters", "flops"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "layers", "parameters", "flops")

LAYER_STEPS = 4
"""What surrounds the recurrence of a layer (tables, projections, norm) takes about as long as so
many Householders, where the loops are compiled (docs/design/compiler.md)."""

MAX_WEIGHTS = 2**26
"""Entries of all projections of a layer."""


@dataclass(frozen=True)
class Cost:
    """What a network costs, as it is built.

    Attributes:
        layers: recurrences, one after the other.
        width: rows of the states of all layers; a row that is swapped is stored twice.
        householders: the most Householder factors for one token in any layer; a diagonal layer and
            a dense one have none.
        steps: what one token waits for: the factors of all layers (one for a layer without), and
            `LAYER_STEPS` for each layer.
        parameters: weights of all layers.
        flops: floating-point operations for one token.
    """

    layers: int
    width: int
    householders: int
    steps: int
    parameters: int
    flops: int

    def key(self, objective: Objective) -> tuple[int, ...]:
        """For comparing: what is asked for first, then the rest.

        >>> Cost(1, 5, 3, 7, 100, 900).key("parameters")[:2]
        (100, 7)
        """
        rest = (self.steps, self.layers, self.width, self.householders, self.parameters)
        if objective == "layers":
            return (self.layers, self.householders, self.width, self.parameters)
        if objective == "parameters":
            return (self.parameters, *rest)
        return (self.flops, *rest) if objective == "flops" else rest

    def __str__(self) -> str:
        factors = f", {_count(self.householders, 'Householder')} per token"
        return (
            f"{_count(self.layers, 'layer')}, width {self.width}"
            + (factors if self.householders else "")
            + f", {_count(self.parameters, 'parameter')}"
        )


@dataclass(frozen=True)
class Places:
    """Where the rows of a program's layer are among the `size` rows of the trained layer.

    `copies` has two places for a row that is ever swapped, else one; `spare` two more places for
    each such row that one symbol overwrites after its gate.
    """

    copies: tuple[tuple[int, ...], ...]
    spare: tuple[tuple[int, int], ...]
    size: int


@dataclass(frozen=True)
class Layout:
    """A layer class and its arguments, and what follows from them.

    Attributes:
        kind: the name of a class in `statetrack.layers`.
        d_model, options: its arguments.
        num_start: symbols behind the input symbols that, in order, write the start.
        num_ones: coordinates of x that are always 1, in front of the one-hot symbol.
        num_features: coordinates of y that the readout looks at.
        num_labels: what the readout tells apart.
    """

    kind: str
    d_model: int
    options: dict[str, Any]
    num_start: int
    num_ones: int
    num_features: int
    num_labels: int

    @property
    def householders(self) -> int:
        """Factors for one token; a diagonal or dense layer has none."""
        factors: int = self.options.get("num_householders", 0)
        return factors

    @property
    def rows(self) -> int:
        """Rows of the state that are used."""
        names = {"DeltaProduct": "head_dim", "FullMatrix": "state_dim"}
        rows: int = self.options[names[self.kind]] if self.kind in names else self.num_ones
        return rows

    @property
    def parameters(self) -> int:
        """Weights of the layer."""
        if self.kind == "Diagonal":
            return 2 * self.d_model * (self.d_model + 1)
        if self.kind == "FullMatrix":
            return 2 * self.rows**2 * self.d_model
        heads, width, gated = self._delta_sizes
        micro = self.householders
        channels = heads * (self.rows * (1 + micro) + (width + 1) * micro + width + gated)
        return channels * self.d_model + width + 2 * heads * gated

    @property
    def flops(self) -> int:
        """Operations for one token: projections, recurrence and readout."""
        around = 2 * self.parameters + 2 * self.num_labels * self.num_features
        if self.kind == "Diagonal":
            return around + 2 * self.d_model
        if self.kind == "FullMatrix":
            return around + 2 * self.rows**3
        heads, width, gated = self._delta_sizes
        return around + (4 * self.householders + 2 + gated) * heads * self.rows * width

    @property
    def _delta_sizes(self) -> tuple[int, int, bool]:
        """Heads, columns of the state, and whether there is a gate."""
        options = self.options
        return options["num_heads"], options.get("value_dim") or self.rows, options["forget_gate"]

    def check(self) -> None:
        """Refuses what is too large, before it is allocated."""
        if self.parameters > MAX_WEIGHTS:
            raise too_large(
                "weights of a layer",
                self.parameters,
                MAX_WEIGHTS,
                "minimise the machine, or ask for another method",
            )


def layout_of(layer: ProgramLayer) -> Layout:
    """The layout of a program's layer.

    >>> from statetrack.automata import Machine
    >>> from statetrack.compiler import compile_program
    >>> program = compile_program(Machine.from_regex("(ab)*", "ab"), "one-layer")
    >>> layout = layout_of(program.stages[0].layer)
    >>> layout.kind, layout.householders, layout.rows
    ('DeltaProduct', 3, 5)
    """
    if isinstance(layer, DeltaLayer):
        return _delta(layer)
    if isinstance(layer, DiagonalLayer):
        return _diagonal(layer)
    assert isinstance(layer, DenseLayer)
    return _dense(layer)


def cost_of(program: Program) -> Cost:
    """What the network of a program costs.

    >>> from statetrack.automata import groups
    >>> from statetrack.compiler import compile_program
    >>> str(cost_of(compile_program(groups.symmetric(3))))
    '1 layer, width 7, 2 Householders per token, 291 parameters'
    """
    return total([layout_of(stage.layer) for stage in program.stages])


def total(layouts: list[Layout]) -> Cost:
    """The cost of layers in a row."""
    return Cost(
        layers=len(layouts),
        width=sum(layout.rows for layout in layouts),
        householders=max(layout.householders for layout in layouts),
        steps=sum(max(1, layout.householders) + LAYER_STEPS for layout in layouts),
        parameters=sum(layout.parameters for layout in layouts),
        flops=sum(layout.flops for layout in layouts),
    )


def places_of(layer: DeltaLayer) -> Places:
    """Where each row goes."""
    every = [step for symbol in layer.symbols for step in symbol.steps]
    swapped = {row for step in every if isinstance(step, Swap) for row in (step.i, step.j)}
    copies: list[tuple[int, ...]] = []
    size = 0
    for row in range(len(layer.rows)):
        count = 2 if row in swapped else 1
        copies.append(tuple(range(size, size + count)))
        size += count
    pairs = 0
    for symbol in layer.symbols:
        if symbol.gate < 1:
            twice = [s for s in symbol.steps if isinstance(s, Write) and s.row in swapped]
            pairs = max(pairs, len(twice))
    spare = tuple((size + 2 * i, size + 2 * i + 1) for i in range(pairs))
    return Places(tuple(copies), spare, size + 2 * pairs)


def num_micro_steps(step: Step, gate: float, places: Places) -> int:
    """How many factors a step takes after a gate."""
    if isinstance(step, Project):
        return len(places.copies[step.i])
    if isinstance(step, Write):
        return 1 if gate < 1 else len(places.copies[step.row])
    return 1


def reflects(layer: DeltaLayer) -> bool:
    """Whether a factor has the eigenvalue -1; else all lie in [0, 1]."""
    every = [*layer.start, *(step for symbol in layer.symbols for step in symbol.steps)]
    return any(not isinstance(step, Project | Write) for step in every)


def _delta(layer: DeltaLayer) -> Layout:
    places = places_of(layer)
    size, width = places.size, len(layer.columns)
    heads = len(layer.symbols[0].queries)
    micro = max(1, *(_length(symbol, places) for symbol in layer.symbols))
    opening = sum(num_micro_steps(step, 1.0, places) for step in layer.start)
    num_start = -(-opening // micro)
    d_model = max(len(layer.symbols) + num_start, heads * width)
    gated = any(symbol.gate != 1 for symbol in layer.symbols)
    return Layout(
        kind="DeltaProduct",
        d_model=d_model,
        options={
            "num_heads": heads,
            "head_dim": size,
            "value_dim": width,
            "eigen_range": (-1.0 if reflects(layer) else 0.0, 1.0),
            "num_householders": micro,
            "forget_gate": gated,
            "conv_size": 0,
            "qk_silu": False,
            "norm_eps": 1e-30,
        },
        num_start=num_start,
        num_ones=0,
        num_features=layer.readout.shape[1],
        num_labels=len(layer.labels),
    )


def _length(symbol: Symbol, places: Places) -> int:
    return sum(num_micro_steps(step, symbol.gate, places) for step in symbol.steps)


def _diagonal(layer: DiagonalLayer) -> Layout:
    symbols, width = layer.decay.shape
    d_model = width + symbols + 1
    return Layout(
        kind="Diagonal",
        d_model=d_model,
        options={"eigen_range": (-1.0 if (layer.decay < 0).any() else 0.0, 1.0)},
        num_start=1,
        num_ones=width,
        num_features=width,
        num_labels=len(layer.labels),
    )


def _dense(layer: DenseLayer) -> Layout:
    symbols, n, _ = layer.matrices.shape
    d_model = max(symbols, n)
    return Layout(
        kind="FullMatrix",
        d_model=d_model,
        options={"eigen_range": None, "state_dim": n},
        num_start=0,
        num_ones=0,
        num_features=n,
        num_labels=n,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
