"""Linear attention of short sequences with one gate per head: a program has all tokens of a head.

Letters as in scalar.py, of which this is the case of one chunk and no state before it:

    y = scale S v and H' = (suffix ∘ K)ᵀ V with S = (Q Kᵀ) ∘ D

so nothing is saved, and one kernel has all gradients. A launch takes the sequences of up to C
tokens that are too long for the launch before it. A head of 2^n + 1 values, as where a last column
of ones counts what was written, has its last column summed without the matrix units.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import place
from statetrack.ops._triton.runtime import on_device_of, power_of_two
from statetrack.ops.linear_attention.triton.chunked import _block, _precision, _product, _rows
from statetrack.ops.linear_attention.triton.scalar import (
    _between,
    _between_transposed,
    _gates,
    _gates_precision,
)
from statetrack.ops.packing import in_a_row

__all__ = ["LONGEST", "backward", "forward"]

SIZES = (16, 32, 64)  # tokens of a program
HALF = (torch.bfloat16, torch.float16)
LONGEST = SIZES[-1]


@triton.jit
@no_type_check
def _column(ptr, t, end, stride):
    """A number for each token t, 0 outside of the sequence."""
    return tl.load(ptr + t * stride, mask=t < end, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    y_ptr,
    state_ptr,
    offsets_ptr,
    T,
    P,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    ABOVE: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    ONE: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """y and the final state of a sequence of ABOVE < length <= C.

    ONE: the last value is taken for itself. SPLIT as in scalar.py.
    """
    unit = tl.program_id(0).to(tl.int64)
    row, first, length = place(offsets_ptr, unit // H, T, P)
    if (length <= ABOVE) | (length > C):  # another launch has it
        return
    token = (row * T + first) * H + unit % H
    q_ptr += token * K
    k_ptr += token * K
    v_ptr += token * V
    y_ptr += token * V
    decay_ptr += token
    state_ptr += unit * K * V
    t = tl.arange(0, C)
    i, j = t[:, None], t[None, :]
    main: tl.constexpr = V - ONE
    a = _gates(decay_ptr, t, length, H)
    suffix = tl.cumprod(_gates(decay_ptr, t + 1, length, H), 0, reverse=True)
    if ONE:
        last = _column(v_ptr + main, t, length, H * V)

    scores = tl.zeros([C, C], tl.float32)
    for key in range(0, K, BK):
        keys = key + tl.arange(0, BK)
        q = _rows(q_ptr, t, length, H * K, keys, K, 0.0)
        k_at = k_ptr + t[None, :] * (H * K) + keys[:, None]
        k = tl.load(k_at, mask=(keys < K)[:, None] & (t < length)[None, :], other=0.0)
        scores += _product(q, k, PRECISION)
        gated = k.to(tl.float32) * suffix[None, :]
        for value in range(0, main, BV):
            values = value + tl.arange(0, BV)
            v = _rows(v_ptr, t, length, H * V, values, main, 0.0)
            if SPLIT:
                high = gated.to(tl.bfloat16)
                low = (gated - high.to(tl.float32)).to(tl.bfloat16)
                state = tl.dot(low, v, tl.dot(high, v))
            else:
                state = _product(gated, v, "tf32x3")
            at = state_ptr + keys[:, None] * V + values[None, :]
            tl.store(at, state, mask=(keys < K)[:, None] & (values < main)[None, :])
        if ONE:
            count = tl.sum(gated * last[None, :], 1)
            tl.store(state_ptr + keys * V + main, count, mask=keys < K)

    scores = tl.where(i >= j, SCALE * scores * _between(a, C), 0.0)
    for value in range(0, main, BV):
        values = value + tl.arange(0, BV)
        v = _rows(v_ptr, t, length, H * V, values, main, 0.0)
        # a product with zeros would carry a NaN of v to earlier tokens
        finite = tl.abs(v.to(tl.float32)) < float("inf")
        y = _product(scores, tl.where(finite, v, 0.0), PRECISION)
        if tl.min(tl.min(finite.to(tl.int32), 1), 0) == 0:
            y += tl.cumsum(tl.where(finite, 0.0, float("nan")), 0)
        at = y_ptr + i * (H * V) + values[None, :]
        tl.store(at, y, mask=(t < length)[:, None] & (values < main)[None, :])
    if ONE:
        y = tl.sum(tl.where(i >= j, scores * last[None, :], 0.0), 1)
        tl.store(y_ptr + t * (H * V) + main, y, mask=t < length)


@triton.jit
@no_type_check
def _backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    dy_ptr,
    dfinal_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    ddecay_ptr,
    offsets_ptr,
    T,
    P,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    ABOVE: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    ONE: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    GATES: tl.constexpr,
):
    """All gradients of a sequence; `dfinal_ptr` is None where nobody used the final state."""
    unit = tl.program_id(0).to(tl.int64)
    row, first, length = place(offsets_ptr, unit // H, T, P)
    if (length <= ABOVE) | (length > C):  # another launch has it
        return
    token = (row * T + first) * H + unit % H
    q_ptr += token * K
    k_ptr += token * K
    v_ptr += token * V
    dy_ptr += token * V
    decay_ptr += token
    if dfinal_ptr is not None:
        dfinal_ptr += unit * K * V
    t = tl.arange(0, C)
    r, c = t[:, None], t[None, :]
    main: tl.constexpr = V - ONE
    a = _gates(decay_ptr, t, length, H)
    if ONE:
        last = _column(v_ptr + main, t, length, H * V)
        dlast = _column(dy_ptr + main, t, length, H * V)

    # r is the writer j and c the reader i
    scores = tl.zeros([C, C], tl.float32)
    for key in range(0, K, BK):
        keys = key + tl.arange(0, BK)
        q = _rows(q_ptr, t, length, H * K, keys, K, 0.0)
        k = _rows(k_ptr, t, length, H * K, keys, K, 0.0)
        scores += _product(k, tl.trans(q), PRECISION)
    pairs = tl.zeros([C, C], tl.float32)
    mirrored = tl.zeros([C, C], tl.float32)  # and here r is the reader
    for value in range(0, main, BV):
        values = value + tl.arange(0, BV)
        v = _rows(v_ptr, t, length, H * V, values, main, 0.0)
        dy = _rows(dy_ptr, t, length, H * V, values, main, 0.0)
        pairs += _product(v, tl.trans(dy), PRECISION)
        mirrored += _product(dy, tl.trans(v), PRECISION)
    if ONE:
        pairs += last[:, None] * dlast[None, :]
        mirrored += dlast[:, None] * last[None, :]

    # D_{t-1,j} as [j, t]
    before = _gates(decay_ptr, t - 1, length, H)
    until = tl.where(c > r, tl.cumprod(tl.where(c - 1 > r, before[None, :], 1.0), 1), 0.0)
    around = tl.where(c > r, SCALE * scores * pairs, 0.0)
    between = _between(a, C)
    da = tl.sum(_product(around, between, GATES) * until, 0)
    mirrored = tl.where(r >= c, SCALE * mirrored * between, 0.0)
    between = _between_transposed(a, C)
    scores = tl.where(c >= r, SCALE * scores * between, 0.0)
    pairs = tl.where(c >= r, SCALE * pairs * between, 0.0)
    if dfinal_ptr is not None:
        suffix = tl.cumprod(_gates(decay_ptr, t + 1, length, H), 0, reverse=True)
        met = tl.zeros([C], tl.float32)
    if ONE:
        dcount = tl.sum(scores * dlast[None, :], 1)

    for key in range(0, K, BK):
        keys = key + tl.arange(0, BK)
        inside = (t < length)[:, None] & (keys < K)[None, :]
        at = token * K + r.to(tl.int64) * (H * K) + keys[None, :]
        k = _rows(k_ptr, t, length, H * K, keys, K, 0.0)
        tl.store(dq_ptr + at, _product(mirrored, k, PRECISION), mask=inside)
        q = _rows(q_ptr, t, length, H * K, keys, K, 0.0)
        dk = _product(pairs, q, PRECISION)
        if dfinal_ptr is not None:
            added = tl.zeros([C, BK], tl.float32)
            for value in range(0, main, BV):
                values = value + tl.arange(0, BV)
                v = _rows(v_ptr, t, length, H * V, values, main, 0.0)
                after = _rows(dfinal_ptr, keys, K, V, values, main, 0.0)
                added += _product(v, tl.trans(after), PRECISION)
            if ONE:
                after = _column(dfinal_ptr + main, keys, K, V)
                dcount += suffix * tl.sum(k.to(tl.float32) * after[None, :], 1)
                added += last[:, None] * after[None, :]
            met += tl.sum(k.to(tl.float32) * added, 1)
            dk += suffix[:, None] * added
        tl.store(dk_ptr + at, dk, mask=inside)
    for value in range(0, main, BV):
        values = value + tl.arange(0, BV)
        dy = _rows(dy_ptr, t, length, H * V, values, main, 0.0)
        dv = _product(scores, dy, PRECISION)
        if dfinal_ptr is not None:
            added = tl.zeros([C, BV], tl.float32)
            for key in range(0, K, BK):
                keys = key + tl.arange(0, BK)
                k = _rows(k_ptr, t, length, H * K, keys, K, 0.0)
                after = _rows(dfinal_ptr, keys, K, V, values, main, 0.0)
                added += _product(k, after, PRECISION)
            dv += suffix[:, None] * added
        at = token * V + r.to(tl.int64) * (H * V) + values[None, :]
        tl.store(dv_ptr + at, dv, mask=(t < length)[:, None] & (values < main)[None, :])
    if ONE:
        at = dv_ptr + token * V + t.to(tl.int64) * (H * V) + main
        tl.store(at, dcount, mask=t < length)
    if dfinal_ptr is not None:
        da += suffix * tl.sum(met[:, None] * until, 0)
    tl.store(ddecay_ptr + token + t.to(tl.int64) * H, da, mask=t < length)


# ------------------------------------------------------------------------------------- launches


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    scale: float,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
) -> None:
    """Fills y and the final state."""
    split = k.dtype == v.dtype == torch.bfloat16
    given = (q, k, v, decay, y, state, offsets, q.shape[1], in_a_row(offsets), q.shape[2])
    with on_device_of(q):
        for options in _sizes(q, k, v, scale, offsets, longest):
            tile = _forward_tile(options)
            launch(_forward_kernel, _grid(state), *given, SPLIT=split, **options, **tile)


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    scale: float,
    offsets: Tensor | None,
    longest: int,
    state: Tensor,
    dy: Tensor,
    dfinal: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    ddecay: Tensor,
) -> None:
    """Fills the gradients."""
    given = (q, k, v, decay, dy, dfinal, dq, dk, dv, ddecay, offsets)
    sizes = (q.shape[1], in_a_row(offsets), q.shape[2])
    gates = _gates_precision(_rounded_to(q, k, v))
    with on_device_of(q):
        for options in _sizes(q, k, v, scale, offsets, longest):
            tile = _backward_tile(options)
            launch(_backward_kernel, _grid(state), *given, *sizes, GATES=gates, **options, **tile)


def _grid(state: Tensor) -> tuple[int | torch.SymInt]:
    sequences, heads = state.shape[:2]
    return (sequences * heads,)


def _sizes(
    q: Tensor, k: Tensor, v: Tensor, scale: float, offsets: Tensor | None, longest: int
) -> list[dict[str, Any]]:
    """The constants of each launch; rows that are one sequence each need only one."""
    key, value = k.shape[-1], v.shape[-1]
    one = int(value - 1 >= 16 and power_of_two(value - 1) == value - 1)
    shape = {"K": key, "V": value, "ONE": one, "SCALE": scale, "PRECISION": _rounded_to(q, k, v)}
    above = [-1, *SIZES]  # of no tokens at all the state is zero, which somebody has to write
    needed = [size for size, below in zip(SIZES, above, strict=False) if below < longest]
    needed = needed if offsets is not None else needed[-1:]
    return [
        shape | {"C": size, "ABOVE": below}
        for size, below in zip(needed, [-1, *needed], strict=False)
    ]


def _rounded_to(q: Tensor, k: Tensor, v: Tensor) -> str:
    """The precision of products: TF32 will do where y, dq and dv are rounded to half precision."""
    mixed = q.dtype in HALF and v.dtype in HALF and k.dtype not in HALF
    return "tf32" if mixed else _precision(q, k, v)


def _forward_tile(options: dict[str, Any]) -> dict[str, int]:
    return _tile(options, 64)


def _backward_tile(options: dict[str, Any]) -> dict[str, int]:
    narrow = options["C"] == 64 and options["PRECISION"] == "tf32x3"
    return _tile(options, 32 if narrow else 64)


def _tile(options: dict[str, Any], most: int) -> dict[str, int]:
    """At most so many keys and values at a time."""
    few = options["C"] == 16 or (options["C"] == 32 and options["PRECISION"] == "tf32")
    keys, values = _block(options["K"], most), _block(options["V"] - options["ONE"], most)
    return {"BK": keys, "BV": values, "num_warps": 2 if few else 4, "num_stages": 1}
