"""How a label is stored and read: integers that a query picks out, compared with a constant one.

A DeltaNet head ends in a norm, so only the direction of y = Hᵀ q is left of what was read. Every
layer therefore keeps a row that always holds 1 in a column of its own; the other columns are read
relative to it. Row r answers a query with the integer t_r, and the label is the one whose integers
are nearest: argmax of 2 t·y - |t|² y_one, a linear map and an argmax, as in any classifier.
"""

from __future__ import annotations

import math

import numpy as np

from statetrack.compiler.program import FloatArray

BASE = 64
"""Rows per digit: bfloat16 tells apart integers of at most BASE/2 with room to spare."""

ONE = "one"
"""The row, and the column, that always hold the constant 1."""

HOLD_LOGIT = 27.75
"""On a reset the state is not wiped but shrunk by EPSILON = e^-27.75: what the layer held is
still there, to be read at this very token, and far below the last bit of what has been written, so
that sums round it away. The logit is exact in bfloat16, and 2^40·EPSILON is 249.9/256. In float32
EPSILON^3 is a normal number and EPSILON^4 is zero: no power is among the denormal numbers, which
processors are slow with.
"""
EPSILON = math.exp(-HOLD_LOGIT)
MAGNIFY = 2.0**40
"""How much larger the queries are that read what a reset has shrunk."""


def digits(count: int) -> FloatArray:
    """Integers `[count, heads]` that tell rows apart: 1, -1, 2, -2, ..., in digits of BASE.

    Never all zero, which stands for no row at all.

    >>> digits(4)[:, 0].tolist()
    [1.0, -1.0, 2.0, -2.0]
    """
    heads = 1
    while BASE**heads < count:
        heads += 1
    number = np.arange(count)
    columns = []
    for _ in range(heads):
        number, digit = np.divmod(number, BASE)
        columns.append(np.where(digit % 2 == 0, digit // 2 + 1, -(digit // 2) - 1))
    return np.stack(columns, axis=1).astype(np.float64)


def nearest(codes: FloatArray) -> FloatArray:
    """The readout `[labels, heads·(columns + 1)]` whose argmax is the nearest code.

    `codes` `[labels, heads, columns]`; y has for each head its columns, then the constant.

    >>> readout = nearest(np.array([[[1.0]], [[2.0]]]))
    >>> int(np.argmax(readout @ [1.9, 1.0]))
    1
    """
    squares = (codes**2).sum(-1, keepdims=True)
    return np.concatenate([2 * codes, -squares], axis=-1).reshape(len(codes), -1)


def with_one(queries: FloatArray, one: float = 1.0) -> tuple[tuple[float, ...], ...]:
    """Queries `[rows, heads]` with the row of the constant appended, as `[heads][rows + 1]`."""
    return tuple((*column, one) for column in queries.T.tolist())
