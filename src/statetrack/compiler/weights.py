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
  what the four hold, but all of it is below the last bit of what is written. Rows that one symbol
  overwrites have spare rows of their own.
- queries may be anything: what they read is compared, never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack import layers
from statetrack._typing import Float, Int
from statetrack.automata import Project, Swap
from statetrack.compiler.codes import EPSILON, HOLD_LOGIT
from statetrack.compiler.layout import Layout, Places, layout_of, places_of, reflects
from statetrack.compiler.program import (
    DeltaLayer,
    DenseLayer,
    DiagonalLayer,
    FloatArray,
    ProgramLayer,
    Reflect,
    Step,
)

SCALE = 32.0
"""How 1 is stored: the least power of two with SiLU(z) = z in float32."""

SATURATED = 64.0
OFF = -256.0
GATE_LOGITS = {1.0: -1000.0, 0.0: 1000.0, EPSILON: HOLD_LOGIT}


@dataclass(frozen=True, eq=False)
class Lowered:
    """A layout with its numbers.

    Attributes:
        layout: the layer class and its arguments.
        weights: its parameters by name; those not named are zero.
        readout: `[labels, features]`, scores are `readout @ y[:features] + offset[symbol]`.
        offset: `[symbols, labels]`.
    """

    layout: Layout
    weights: dict[str, NDArray[Any]]
    readout: FloatArray
    offset: FloatArray

    def build(self) -> layers.Layer:
        """The layer, in float32."""
        layer = make_layer(self.layout.kind, self.layout.d_model, self.layout.options)
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
    >>> lowered.layout.kind, lowered.weights["beta_proj.weight"].shape
    ('DeltaProduct', (3, 3))
    """
    layout = layout_of(layer)
    layout.check()
    if isinstance(layer, DeltaLayer):
        return _lower_delta(layer, layout)
    if isinstance(layer, DiagonalLayer):
        return _lower_diagonal(layer, layout)
    assert isinstance(layer, DenseLayer)
    return _lower_dense(layer, layout)


@dataclass(frozen=True)
class _MicroStep:
    """H <- (I - β k kᵀ) H + β k vᵀ; k, not yet of unit norm, has `key` at `rows` and else 0."""

    rows: tuple[int, ...]
    key: tuple[float, ...]
    value: FloatArray
    beta: float


def _lower_delta(layer: DeltaLayer, layout: Layout) -> Lowered:
    places, options = places_of(layer), layout.options
    heads, size, width = options["num_heads"], options["head_dim"], options["value_dim"]
    micro, d_model = options["num_householders"], layout.d_model
    nothing = np.zeros(width)
    tokens = [list(_micro_steps(s.steps, s.gate, places, nothing)) for s in layer.symbols]
    opening = list(_micro_steps(layer.start, 1.0, places, nothing))
    tokens += [opening[i : i + micro] for i in range(0, len(opening), micro)]
    # channels of qkv: q, then k_1..k_n, then v_1..v_n, for each head the rows or the columns of H
    keys = heads * size
    qkv = np.zeros((keys * (1 + micro) + heads * width * micro, d_model), dtype=np.float32)
    q = qkv[:keys].reshape(heads, size, d_model)
    k = qkv[keys : keys * (1 + micro)].reshape(micro, heads, size, d_model)
    v = qkv[keys * (1 + micro) :].reshape(micro, heads, width, d_model)
    logits = np.full((micro, heads, d_model), OFF, dtype=np.float32)
    beta_logit = {2.0: SATURATED, 1.0: 0.0 if reflects(layer) else SATURATED}
    for x, token in enumerate(tokens):
        for j, step in enumerate(token):
            for row, entry in zip(step.rows, step.key, strict=True):
                k[j, :, row, x] = entry
            v[j, :, :, x] = step.value
            logits[j, :, x] = beta_logit[step.beta]
    first = [copies[0] for copies in places.copies]
    for x, symbol in enumerate(layer.symbols):
        for head, query in enumerate(symbol.queries):
            q[head, first, x] = query
    weights: dict[str, NDArray[Any]] = {
        "qkv_proj.weight": qkv,
        "beta_proj.weight": logits.reshape(-1, d_model),
        "norm.weight": np.ones(width),
        "out_proj.weight": np.eye(d_model, heads * width),
    }
    if options["forget_gate"]:
        gates = [symbol.gate for symbol in layer.symbols] + [1.0] * layout.num_start
        weights["decay_proj.weight"] = np.zeros((heads, d_model))
        weights["decay_proj.weight"][:, : len(gates)] = [GATE_LOGITS[gate] for gate in gates]
    offset = np.zeros((len(layer.symbols), len(layer.labels)))
    return Lowered(layout, weights, layer.readout, offset)


def _micro_steps(
    steps: tuple[Step, ...], gate: float, places: Places, nothing: FloatArray
) -> Iterator[_MicroStep]:
    """The steps of a symbol after its gate; `nothing` is what a swap writes, one 0 a column."""
    spare = iter(places.spare)
    for step in steps:
        if isinstance(step, Swap):
            rows = (*places.copies[step.i], *places.copies[step.j])
            yield _MicroStep(rows, (1.0, 1.0, -1.0, -1.0), nothing, 2.0)
        elif isinstance(step, Reflect):
            yield _MicroStep(tuple(range(len(step.key))), step.key, nothing, 2.0)
        elif isinstance(step, Project):
            yield from _overwrite(places.copies[step.i], nothing)
        else:
            value, row = SCALE * np.array(step.value), places.copies[step.row]
            assert (value >= 0).all(), "SiLU stores no negative number exactly"
            if gate < 1 and len(row) == 2:
                yield _MicroStep((*row, *next(spare)), (1.0,) * 4, 2 * value, 1.0)
            else:
                yield from _overwrite(row, value)


def _overwrite(row: tuple[int, ...], value: FloatArray) -> Iterator[_MicroStep]:
    for place in row:
        yield _MicroStep((place,), (1.0,), value, 1.0)


def _lower_diagonal(layer: DiagonalLayer, layout: Layout) -> Lowered:
    """x is (1, ..., 1, one-hot symbol): the layer writes its projection times x, so x may not be 0.

    Symbols are followed by one that writes the start.
    """
    d_model, width = layout.d_model, layout.num_ones
    low = layout.options["eigen_range"][0]
    decay = np.concatenate([layer.decay, np.ones((1, width))])
    add = np.concatenate([layer.add, layer.start[None, :]])
    gates = np.zeros((d_model, d_model))
    gates[:width, width:] = _gate_logit(decay, low).T / 10.0  # the layer multiplies by 10
    writes = np.zeros((d_model, d_model))
    writes[:width, width:] = add.T
    weights: dict[str, NDArray[Any]] = {"decay_proj.weight": gates, "input_proj.weight": writes}
    return Lowered(layout, weights, layer.codes, -layer.add @ layer.codes.T)


def _gate_logit(decay: FloatArray, low: float) -> FloatArray:
    """z with low + (1-low)·σ((1-low)·z) = decay, far out where that is the end of the range."""
    unit = (decay - low) / (1 - low)
    inside = (unit > 0) & (unit < 1)
    logit = np.where(unit > 0.5, 10 * SATURATED, 10 * OFF)
    logit[inside] = np.log(unit[inside] / (1 - unit[inside])) / (1 - low)
    return logit


def _lower_dense(layer: DenseLayer, layout: Layout) -> Lowered:
    """A = I + W x; the first column of H is read, and its norm is the same for every state."""
    symbols, n, _ = layer.matrices.shape
    matrix = np.zeros((n * n, layout.d_model), dtype=np.float32)
    matrix[:, :symbols] = (layer.matrices - np.eye(n)).reshape(symbols, -1).T
    out = np.zeros((layout.d_model, n, n), dtype=np.float32)
    out[np.arange(n), np.arange(n), 0] = math.sqrt(n)
    weights: dict[str, NDArray[Any]] = {
        "matrix_proj.weight": matrix,
        "out_proj.weight": out.reshape(layout.d_model, -1),
    }
    return Lowered(layout, weights, np.eye(n), np.zeros((symbols, n)))


def embed(
    symbols: Int[Tensor, "batch time"], num_ones: int, d_model: int, dtype: torch.dtype
) -> Float[Tensor, "batch time d_model"]:
    """x: ones, then the symbol one-hot."""
    x = torch.zeros(*symbols.shape, d_model, dtype=dtype, device=symbols.device)
    x[..., :num_ones] = 1
    return x.scatter_(-1, symbols.unsqueeze(-1) + num_ones, 1)
