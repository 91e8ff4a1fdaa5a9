"""A program as plain arrays: one affine map for each symbol, which any language can run.

Every layer of a program, whatever its kind, is

    H <- A[s] H + B[s],        y = query[s] H,        label = argmax(readout · y + offset[s])

so that a network is a few tables and a loop. No torch is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from statetrack.automata.limits import too_large
from statetrack.compiler.program import (
    MAX_PROGRAM,
    DeltaLayer,
    DenseLayer,
    DiagonalLayer,
    FloatArray,
    IntArray,
    Program,
    ProgramLayer,
    Stage,
)


@dataclass(frozen=True, eq=False)
class StageArrays:
    """One layer with the tables around it.

    Attributes:
        transition: `[symbols, rows, rows]`, A.
        add: `[symbols, rows, columns]`, B.
        start: `[rows, columns]`, H before the first symbol.
        query: `[symbols, heads, rows]`.
        readout: `[labels, heads·columns]`.
        offset: `[symbols, labels]`.
        symbol: `[contexts]`, the symbol that each context makes the layer read.
        after: `[contexts, labels]`, the next context; after the last layer the machine's state.
    """

    transition: FloatArray
    add: FloatArray
    start: FloatArray
    query: FloatArray
    readout: FloatArray
    offset: FloatArray
    symbol: IntArray
    after: IntArray

    def named(self) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def arrays_of(program: Program) -> tuple[StageArrays, ...]:
    """The arrays of every layer, first layer first.

    >>> from statetrack.automata import read
    >>> from statetrack.compiler import compile_program
    >>> (layer,) = arrays_of(compile_program(read("parity")))
    >>> layer.transition.tolist()
    [[[1.0]], [[-1.0]]]
    """
    return tuple(_stage(stage) for stage in program.stages)


def _stage(stage: Stage) -> StageArrays:
    layer = stage.layer
    symbols, rows = len(layer.symbol_names), len(layer.directions)
    if symbols * rows * rows > MAX_PROGRAM:
        raise too_large(
            "entries of a layer's transitions",
            symbols * rows * rows,
            MAX_PROGRAM,
            "use method='cascade', or the network itself",
        )
    pairs = [layer.transition(symbol) for symbol in range(symbols)]
    query, readout, offset = _reading(layer)
    start = layer.initial_state()
    columns = 1 if isinstance(layer, DenseLayer) else start.shape[1]  # it reads the first alone
    return StageArrays(
        transition=np.stack([matrix for matrix, _ in pairs]),
        add=np.stack([added[:, :columns] for _, added in pairs]),
        start=start[:, :columns],
        query=query,
        readout=readout,
        offset=offset,
        symbol=stage.symbol,
        after=np.maximum(stage.after, 0),  # labels that cannot be read lead anywhere
    )


def _reading(layer: ProgramLayer) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Queries, readout and offset."""
    symbols, rows = len(layer.symbol_names), len(layer.directions)
    if isinstance(layer, DeltaLayer):
        queries = np.array([symbol.queries for symbol in layer.symbols])
        return queries, layer.readout, np.zeros((symbols, len(layer.labels)))
    every = np.broadcast_to(np.eye(rows), (symbols, rows, rows))
    if isinstance(layer, DiagonalLayer):
        return every, layer.codes, -layer.add @ layer.codes.T
    assert isinstance(layer, DenseLayer)
    return every, np.eye(rows), np.zeros((symbols, rows))
