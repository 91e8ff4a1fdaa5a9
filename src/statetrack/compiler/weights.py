"""Pass: a layer of a `Program` -> a trained layer class with its weights set.

`DeltaLayer` becomes `layers.DeltaProduct`, `DiagonalLayer` `layers.Diagonal`, `DenseLayer`
`layers.FullMatrix`: the classes that are trained, with options they have. The input is one-hot, so
each projection is a table with a column for every symbol. What makes the numbers exact:

- β = (1-low)·σ(z): σ is exactly 1, 1/2 and 0 in float32 at z = 64, 0 and -256.
- the gate exp(-softplus(z)) is exactly 1 and 0 at z = -1000 and 1000.
- v = SiLU(z): SiLU(32) is exactly 32 and SiLU(0) exactly 0, so 1 is stored as 32.
- keys have unit norm: a one-hot key is exact. A swap of e_i and e_j would need (e_i - e_j)/√2,
  which is not; so a row that is ever swapped has two copies, and the key (1, 1, -1, -1)/2 is exact.
  To overwrite such a row takes two steps, one for each copy. After a gate of 0 or ε it takes one:
  its copies and two spare rows, which nobody reads, share the key (1, 1, 1, 1)/2. That would mix
  what the four hold, but all of it is below the last bit of what is written.
- queries may be anything: what they read is compared, never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statetrack import layers
from statetrack._typing import Float, Int
from statetrack.automata import Project, Swap
from statetrack.automata.limits import too_large
from statetrack.compiler.codes import EPSILON, HOLD_LOGIT
from statetrack.compiler.program import (
    DeltaLayer,
    DenseLayer,
    DiagonalLayer,
    FloatArray,
    ProgramLayer,
    Reflect,
    Step,
    Write,
)

SCALE = 32.0
"""How 1 is stored: the least power of two with SiLU(z) = z in float32."""

SATURATED = 64.0
OFF = -256.0
GATE_LOGITS = {1.0: -1000.0, 0.0: 1000.0, EPSILON: HOLD_LOGIT}

MAX_WEIGHTS = 2**26
"""Entries of a layer's largest projection."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A layer class, its arguments, and what the tables around it need to know.

    Attributes:
        kind: the name of a class in `statetrack.layers`.
        d_model, options: its arguments.
        weights: its parameters by name; those not named are zero.
        num_symbols: input symbols; the next `num_start` symbols, in order, write the start.
        num_ones: coordinates of x that are always 1, in front of the one-hot symbol.
        readout: `[labels, features]`, scores are `readout @ y[:features] + offset[symbol]`.
        offset: `[symbols, labels]`.
    """

    kind: str
    d_model: int
    options: dict[str, Any]
    weights: dict[str, FloatArray]
    num_symbols: int
    num_start: int
    num_ones: int
    readout: FloatArray
    offset: FloatArray

    def build(self) -> layers.Layer:
        """The layer, in float32."""
        layer = make_layer(self.kind, self.d_model, self.options)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                value = self.weights.get(name)
                if value is None:
                    parameter.zero_()
                else:
                    parameter.copy_(torch.from_numpy(value))
        return layer


def make_layer(kind: str, d_model: int, options: dict[str, Any]) -> layers.Layer:
    """A layer by name on the CPU, its weights not yet set; no random number is drawn."""
    known = {
        "DeltaProduct": layers.DeltaProduct,
        "Diagonal": layers.Diagonal,
        "FullMatrix": layers.FullMatrix,
    }
    if kind not in known:
        raise ValueError(f"a compiled network has no {kind!r} layers; it has {', '.join(known)}")
    with torch.device("meta"):
        layer: layers.Layer = known[kind](d_model, **options)
    return layer.to_empty(device="cpu")


def lower(layer: ProgramLayer) -> Lowered:
    """The weights of a program's layer.

    >>> from statetrack.automata import Machine
    >>> from statetrack.compiler import compile_program
    >>> program = compile_program(Machine.from_regex("(ab)*", "ab"), "one-layer")
    >>> lowered = lower(program.stages[0].layer)
    >>> lowered.kind, lowered.options["num_householders"]
    ('DeltaProduct', 3)
    """
    if isinstance(layer, DeltaLayer):
        return _lower_delta(layer)
    if isinstance(layer, DiagonalLayer):
        return _lower_diagonal(layer)
    assert isinstance(layer, DenseLayer)
    return _lower_dense(layer)


@dataclass(frozen=True)
class _MicroStep:
    """H <- (I - β k kᵀ) H + β k vᵀ, with k not yet of unit norm."""

    key: FloatArray
    value: FloatArray
    beta: float


def _lower_delta(layer: DeltaLayer) -> Lowered:
    places = _places(layer)
    copies, size, width = places.copies, places.size, len(layer.columns)
    heads = len(layer.symbols[0].queries)
    steps = [
        list(_micro_steps(symbol.steps, symbol.gate, places, width)) for symbol in layer.symbols
    ]
    micro = max(1, *map(len, steps))
    opening = list(_micro_steps(layer.start, 1.0, places, width))
    opening_tokens = [opening[i : i + micro] for i in range(0, len(opening), micro)]
    tokens = steps + opening_tokens
    d_model = max(len(tokens), heads * width)
    entries = heads * (size * (1 + micro) + width * micro) * d_model
    if entries > MAX_WEIGHTS:
        raise too_large(
            "weights of a layer", entries, MAX_WEIGHTS, "use another method, or fewer letters"
        )
    reflects = any(step.beta == 2 for token in tokens for step in token)
    gated = any(symbol.gate != 1 for symbol in layer.symbols)
    # channels of qkv: q, then k_1..k_n, then v_1..v_n, for each head the rows or the columns of H
    q = np.zeros((heads, size, d_model))
    k = np.zeros((micro, heads, size, d_model))
    v = np.zeros((micro, heads, width, d_model))
    logits = np.full((micro, heads, d_model), OFF)
    beta_logit = {2.0: SATURATED, 1.0: 0.0 if reflects else SATURATED}
    for x, token in enumerate(tokens):
        for j, step in enumerate(token):
            k[j, :, :, x] = step.key
            v[j, :, :, x] = step.value
            logits[j, :, x] = beta_logit[step.beta]
    for x, symbol in enumerate(layer.symbols):
        for head, query in enumerate(symbol.queries):
            for row, weight in enumerate(query):
                q[head, copies[row][0], x] = weight
    weights = {
        "qkv_proj.weight": np.concatenate([w.reshape(-1, d_model) for w in (q, k, v)]),
        "beta_proj.weight": logits.reshape(-1, d_model),
        "norm.weight": np.ones(width),
        "out_proj.weight": np.eye(d_model, heads * width),
    }
    if gated:
        gates = [symbol.gate for symbol in layer.symbols] + [1.0] * len(opening_tokens)
        weights["decay_proj.weight"] = np.zeros((heads, d_model))
        weights["decay_proj.weight"][:, : len(gates)] = [GATE_LOGITS[gate] for gate in gates]
    return Lowered(
        kind="DeltaProduct",
        d_model=d_model,
        options={
            "num_heads": heads,
            "head_dim": size,
            "value_dim": width,
            "eigen_range": (-1.0 if reflects else 0.0, 1.0),
            "num_householders": micro,
            "forget_gate": gated,
            "conv_size": 0,
            "qk_silu": False,
            "norm_eps": 1e-30,
        },
        weights=weights,
        num_symbols=len(layer.symbols),
        num_start=len(opening_tokens),
        num_ones=0,
        readout=layer.readout,
        offset=np.zeros((len(layer.symbols), len(layer.labels))),
    )


@dataclass(frozen=True)
class _Places:
    """Where the rows of a program's layer are among the `size` rows of the trained layer.

    `copies` has two places for a row that is ever swapped, else one; `spare` two more, or none.
    """

    copies: list[list[int]]
    spare: list[int]
    size: int


def _places(layer: DeltaLayer) -> _Places:
    every = [step for symbol in layer.symbols for step in symbol.steps]
    swapped = {row for step in every if isinstance(step, Swap) for row in (step.i, step.j)}
    copies: list[list[int]] = []
    size = 0
    for row in range(len(layer.rows)):
        count = 2 if row in swapped else 1
        copies.append(list(range(size, size + count)))
        size += count
    shrunk = [step for symbol in layer.symbols if symbol.gate < 1 for step in symbol.steps]
    needed = any(isinstance(step, Write) and step.row in swapped for step in shrunk)
    spare = [size, size + 1] if needed else []
    return _Places(copies, spare, size + len(spare))


def _micro_steps(
    steps: tuple[Step, ...], gate: float, places: _Places, width: int
) -> Iterator[_MicroStep]:
    """The steps of a symbol after its gate; `width` is the number of columns."""
    nothing = np.zeros(width)
    for step in steps:
        if isinstance(step, Swap):
            key = np.zeros(places.size)
            key[places.copies[step.i]], key[places.copies[step.j]] = 1.0, -1.0
            yield _MicroStep(key, nothing, 2.0)
        elif isinstance(step, Reflect):
            yield _MicroStep(np.array(step.key), nothing, 2.0)
        elif isinstance(step, Project):
            yield from _overwrite(places.copies[step.i], nothing, places.size)
        else:
            value, row = SCALE * np.array(step.value), places.copies[step.row]
            assert (value >= 0).all(), "SiLU stores no negative number exactly"
            if gate < 1 and len(row) == 2:
                key = np.zeros(places.size)
                key[[*row, *places.spare]] = 1.0
                yield _MicroStep(key, 2 * value, 1.0)
            else:
                yield from _overwrite(row, value, places.size)


def _overwrite(row: list[int], value: FloatArray, size: int) -> Iterator[_MicroStep]:
    for place in row:
        yield _MicroStep(np.eye(size)[place], value, 1.0)


def _lower_diagonal(layer: DiagonalLayer) -> Lowered:
    """x is (1, ..., 1, one-hot symbol): the layer writes its projection times x, so x may not be 0.

    Symbols are followed by one that writes the start.
    """
    symbols, width = layer.decay.shape
    low = -1.0 if (layer.decay < 0).any() else 0.0
    d_model = width + symbols + 1
    decay = np.concatenate([layer.decay, np.ones((1, width))])
    add = np.concatenate([layer.add, layer.start[None, :]])
    gates = np.zeros((d_model, d_model))
    gates[:width, width:] = _gate_logit(decay, low).T / 10.0  # the layer multiplies by 10
    writes = np.zeros((d_model, d_model))
    writes[:width, width:] = add.T
    return Lowered(
        kind="Diagonal",
        d_model=d_model,
        options={"eigen_range": (low, 1.0)},
        weights={"decay_proj.weight": gates, "input_proj.weight": writes},
        num_symbols=symbols,
        num_start=1,
        num_ones=width,
        readout=layer.codes,
        offset=-layer.add @ layer.codes.T,
    )


def _gate_logit(decay: FloatArray, low: float) -> FloatArray:
    """z with low + (1-low)·σ((1-low)·z) = decay, far out where that is the end of the range."""
    unit = (decay - low) / (1 - low)
    inside = (unit > 0) & (unit < 1)
    logit = np.where(unit > 0.5, 10 * SATURATED, 10 * OFF)
    logit[inside] = np.log(unit[inside] / (1 - unit[inside])) / (1 - low)
    return logit


def _lower_dense(layer: DenseLayer) -> Lowered:
    """A = I + W x; the first column of H is read, and its norm is the same for every state."""
    symbols, n, _ = layer.matrices.shape
    d_model = max(symbols, n)
    matrix = np.zeros((n * n, d_model))
    matrix[:, :symbols] = (layer.matrices - np.eye(n)).reshape(symbols, -1).T
    out = np.zeros((d_model, n, n))
    out[np.arange(n), np.arange(n), 0] = math.sqrt(n)
    return Lowered(
        kind="FullMatrix",
        d_model=d_model,
        options={"eigen_range": None, "state_dim": n},
        weights={"matrix_proj.weight": matrix, "out_proj.weight": out.reshape(d_model, -1)},
        num_symbols=symbols,
        num_start=0,
        num_ones=0,
        readout=np.eye(n),
        offset=np.zeros((symbols, n)),
    )


def embed(
    symbols: Int[Tensor, "batch time"], num_ones: int, d_model: int, dtype: torch.dtype
) -> Float[Tensor, "batch time d_model"]:
    """x: ones, then the symbol one-hot."""
    x = torch.zeros(*symbols.shape, d_model, dtype=dtype, device=symbols.device)
    x[..., :num_ones] = 1
    return x.scatter_(-1, symbols.unsqueeze(-1) + num_ones, 1)
