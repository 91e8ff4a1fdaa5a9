"""Gradients of linear attention in chunks where heads share q and k, with one gate per head.

The forward and the states are those of scalar.py, whose letters these are. dq and dk are sums over
the heads of a group. What needs all of a head is made beside dv, and dq and dk are left with sums
that a program adds up in registers, head after head:

    values  dv = scale Sᵀ dy + suffix ∘ (K G_n), and da, of one head
    keys    dk = Σ (suffix ∘ v) G_nᵀ + scale Wᵀ Q with W = Σ (dy vᵀ) ∘ D, over heads;
            then dq = scale (Σ (prefix ∘ dy) H_nᵀ + W K)

A program of `keys` has PART heads of a group; the parts are added up outside. In da, what begins
before a chunk or ends after it comes from rows that dv needs, or that are like them:

    k_jᵀ G_n v_j = v_j · (K G_n)_j,    q_iᵀ H_n dy_i = dy_i · (Q H_n)_i,    Σ G_n ∘ H_n
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import piece_at
from statetrack.ops._triton.runtime import on_device_of
from statetrack.ops.linear_attention.triton.chunked import _block, _precision, _product, _rows
from statetrack.ops.linear_attention.triton.scalar import (
    LEAST,
    PROGRAMS,
    _between_transposed,
    _chunk,
    _gates,
    _gates_precision,
    run_states,
)
from statetrack.ops.packing import in_a_row

__all__ = ["backward"]

MOST = 8  # heads of a program


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _values_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dy_ptr,
    decay_ptr,
    states_ptr,
    dstates_ptr,
    dv_ptr,
    ddecay_ptr,
    offsets_ptr,
    T,
    P,
    H,
    chunks,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    SCALE: tl.constexpr,
    START: tl.constexpr,
    END: tl.constexpr,
    PRECISION: tl.constexpr,
    GATES: tl.constexpr,
    GROUP: tl.constexpr,
):
    """dv of a block of values, and its part of da, of a chunk of a head.

    START, END: whether the state a sequence starts with and G at its end were given, or are zero.
    GATES: the precision of the product for da. GROUP: heads that share q and k.
    """
    blocks: tl.constexpr = (V + BV - 1) // BV
    at_chunk = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    values = block * BV + tl.arange(0, BV)
    head = at_chunk // chunks
    chunk = (at_chunk % chunks).to(tl.int32)
    _, index, begin, end = piece_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tl.arange(0, C)
    end -= begin
    r, c = t[:, None], t[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    q_ptr += row // GROUP * K
    k_ptr += row // GROUP * K
    decay_ptr += row
    states_ptr += at_chunk * K * V
    dstates_ptr += at_chunk * K * V
    met = tl.where((index == 0) & (not START), 0, K)  # keys of H and of G that are not zero
    left = tl.where((end <= C) & (not END), 0, K)
    in_v = (values < V)[None, :]

    scores = tl.zeros([C, C], tl.float32)  # K Qᵀ
    kept = tl.zeros([C, BV], tl.float32)  # K G
    read = tl.zeros([C, BV], tl.float32)  # Q H
    through = tl.zeros([BK], tl.float32)
    for first in range(0, K, BK):
        keys = first + tl.arange(0, BK)
        q = _rows(q_ptr, t, end, H // GROUP * K, keys, K, 0.0)
        k = _rows(k_ptr, t, end, H // GROUP * K, keys, K, 0.0)
        at = keys[:, None] * V + values[None, :]
        state = tl.load(states_ptr + at, mask=(keys < met)[:, None] & in_v, other=0.0)
        dstate = tl.load(dstates_ptr + at, mask=(keys < left)[:, None] & in_v, other=0.0)
        scores += _product(k, tl.trans(q), PRECISION)
        kept += _product(k, dstate, PRECISION)
        read += _product(q, state, PRECISION)
        # read here, both are waited for: Triton (to 3.7.1) copies the next states over these,
        # which have a second reader, while the products go on
        kept = tl.where(r < end, kept, 0.0)
        read = tl.where(r < end, read, 0.0)
        through += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 1)
    v = _rows(v_ptr + row * V, t, end, H * V, values, V, 0.0)
    dy = _rows(dy_ptr + row * V, t, end, H * V, values, V, 0.0)
    to_end = tl.sum(v.to(tl.float32) * kept, 1)
    from_start = tl.sum(dy.to(tl.float32) * read, 1)
    a = _gates(decay_ptr, t, end, H)
    # the gates after t to the end of the chunk
    suffix = tl.cumprod(_gates(decay_ptr, t + 1, tl.minimum(end, C), H), 0, reverse=True)
    between = _between_transposed(a, C)
    weights = tl.where(r <= c, scores * between, 0.0)
    out = suffix[:, None] * kept + SCALE * _product(weights, dy, PRECISION)
    at = dv_ptr + (row + r.to(tl.int64) * H) * V + values[None, :]
    tl.store(at, out, mask=(r < end) & in_v)
    # Wᵀ as [j, i], and D_{t-1,j} for j < t as [t, j]; `between` is also D_it as [t, i]
    weights = tl.where(r < c, SCALE * scores * _product(v, tl.trans(dy), PRECISION), 0.0)
    before = _gates(decay_ptr, t - 1, end, H)
    until = tl.where(r > c, tl.cumprod(tl.where(r - 1 > c, before[:, None], 1.0), 0), 0.0)
    around = _product(until, weights, GATES)
    prefix = tl.cumprod(before, 0)
    da = tl.sum(between * (around + prefix[:, None] * (SCALE * from_start)[None, :]), 1)
    da += suffix * (tl.sum(until * to_end[None, :], 1) + prefix * tl.sum(through))
    slab = block.to(tl.int64) * (tl.num_programs(0) // blocks // chunks // H) * T * H
    tl.store(ddecay_ptr + slab + row + t.to(tl.int64) * H, da, mask=t < end)


@triton.jit
@no_type_check
def _keys_kernel(
    x_ptr,
    z_ptr,
    w_ptr,
    decay_ptr,
    states_ptr,
    weights_ptr,
    out_ptr,
    offsets_ptr,
    T,
    P,
    H,
    chunks,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    SCALE: tl.constexpr,
    REVERSE: tl.constexpr,
    GIVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
    PART: tl.constexpr,
):
    """dk of PART heads from x, z, w = v, dy, q and G, or dq from x, w = dy, k and H.

    A block of keys of a chunk. Reversed comes first, and leaves the sum of the weights. `out` has a
    row for each part. GROUP: heads that share w. Unless one was GIVEN, the state at the start of a
    sequence, or G at its end, is zero.
    """
    blocks: tl.constexpr = (K + BK - 1) // BK
    unit = (tl.program_id(0) // blocks).to(tl.int64)  # a chunk of a part
    block = tl.program_id(0) % blocks
    keys = block * BK + tl.arange(0, BK)
    head = unit // chunks * PART  # the first one
    chunk = (unit % chunks).to(tl.int32)
    _, index, begin, end = piece_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tl.arange(0, C)
    end -= begin
    r, c = t[:, None], t[None, :]
    zeros = ((end <= C) if REVERSE else (index == 0)) & (not GIVEN)
    met = tl.where(zeros, 0, K)  # keys of the states that are not zero
    row = (head // H * T + begin) * H + head % H  # of the first token
    x_ptr += row * V
    if REVERSE:
        z_ptr += row * V
    decay_ptr += row
    states_ptr += (head * chunks + chunk) * K * V
    weights_ptr += unit * C * C

    out = tl.zeros([C, BK], tl.float32)
    weights = tl.zeros([C, C], tl.float32)
    for _ in range(PART):
        a = _gates(decay_ptr, t, end, H)
        if REVERSE:
            after = _gates(decay_ptr, t + 1, tl.minimum(end, C), H)
            gates = tl.cumprod(after, 0, reverse=True)
        else:
            gates = tl.cumprod(a, 0)
        pairs = tl.zeros([C, C], tl.float32)
        for first in range(0, V, BV):
            values = first + tl.arange(0, BV)
            x = _rows(x_ptr, t, end, H * V, values, V, 0.0)
            at = keys[None, :] * V + values[:, None]
            inside = (values < V)[:, None] & (keys < met)[None, :]
            state = tl.load(states_ptr + at, mask=inside, other=0.0)
            out += _product(gates[:, None] * x.to(tl.float32), state, PRECISION)
            if REVERSE:
                z = _rows(z_ptr, t, end, H * V, values, V, 0.0)
                pairs += _product(x, tl.trans(z), PRECISION)
                if V > BV:  # as in `values`: x has a second reader
                    pairs = tl.where(r < end, pairs, 0.0)
        x_ptr += V
        if REVERSE:
            weights += tl.where(r <= c, pairs * _between_transposed(a, C), 0.0)
            z_ptr += V
        decay_ptr += 1
        states_ptr += chunks * K * V
    w = _rows(w_ptr + row // GROUP * K, t, end, H // GROUP * K, keys, K, 0.0)
    if REVERSE:
        out += SCALE * _product(weights, w, PRECISION)
        if block == 0:
            tl.store(weights_ptr + r * C + c, weights)
    else:
        out = SCALE * (out + _product(tl.load(weights_ptr + c * C + r), w, PRECISION))
    rows = (row // PART + r.to(tl.int64) * (H // PART)) * K
    tl.store(out_ptr + rows + keys[None, :], out, mask=(r < end) & (keys < K)[None, :])


# ------------------------------------------------------------------------------------- launches


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    scale: float,
    initial_state: Tensor | None,
    offsets: Tensor | None,
    longest: int,
    states: Tensor,
    dy: Tensor,
    dfinal: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    ddecay: Tensor,
    dstart: Tensor,
) -> None:
    """Fills the gradients; `dstart` where there is an initial state."""
    chunk, precision = _chunk(q, k, v), _precision(q, k, v)
    dstates = torch.empty_like(states)
    start, end = initial_state is not None, dfinal is not None
    with on_device_of(q):
        ends = (dfinal, offsets, dstates, dstart if start else None, longest, chunk)
        run_states(q, dy, decay, *ends, scale, reverse=True)
        given = (q, k, v, dy, decay, states, dstates, offsets)
        rest = (start, end, chunk, scale, precision)
        run_values(*given, dv, ddecay, *rest)
        run_keys(*given, dq, dk, *rest)


def run_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
    decay: Tensor,
    states: Tensor,
    dstates: Tensor,
    offsets: Tensor | None,
    dv: Tensor,
    ddecay: Tensor,
    start: bool,
    end: bool,
    chunk: int,
    scale: float,
    precision: str,
) -> None:
    batch, heads, chunks, key, value = states.shape
    keys, values, warps, stages = _values_tile(key, value, precision)
    blocks = triton.cdiv(value, values)
    slabs = ddecay
    if blocks > 1:
        slabs = ddecay.new_empty(blocks, *ddecay.shape, dtype=torch.float32)
    launch(
        _values_kernel,
        (batch * heads * chunks * blocks,),
        q,
        k,
        v,
        dy,
        decay,
        states,
        dstates,
        dv,
        slabs,
        offsets,
        v.shape[1],
        in_a_row(offsets),
        heads,
        chunks,
        K=key,
        V=value,
        C=chunk,
        BK=keys,
        BV=values,
        SCALE=scale,
        START=start,
        END=end,
        PRECISION=precision,
        GATES=_gates_precision(precision),
        GROUP=heads // q.shape[2],
        num_warps=warps,
        num_stages=stages,
    )
    if blocks > 1:
        ddecay.copy_(slabs.sum(0))


def run_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
    decay: Tensor,
    states: Tensor,
    dstates: Tensor,
    offsets: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    start: bool,
    end: bool,
    chunk: int,
    scale: float,
    precision: str,
) -> None:
    batch, heads, chunks, key, value = states.shape
    time, groups = q.shape[1:3]
    keys, values, warps, stages = _keys_tile(key, value, precision)
    programs = batch * heads * chunks * triton.cdiv(key, keys)
    part = _part(heads // groups, programs)
    parts = heads // part
    weights = states.new_empty(batch, parts, chunks, chunk, chunk)
    sums = [x if parts == groups else x.new_empty(batch, time, parts, key) for x in (dq, dk)]
    sizes = (offsets, time, in_a_row(offsets), heads, chunks)
    options: dict[str, Any] = {"K": key, "V": value, "C": chunk, "BK": keys, "BV": values}
    options |= {"SCALE": scale, "PRECISION": precision, "GROUP": heads // groups, "PART": part}
    options |= {"num_warps": warps, "num_stages": stages}
    grid = (programs // part,)
    for_dk = (v, dy, q, decay, dstates, weights, sums[1], *sizes)
    launch(_keys_kernel, grid, *for_dk, REVERSE=True, GIVEN=end, **options)
    for_dq = (dy, None, k, decay, states, weights, sums[0], *sizes)
    launch(_keys_kernel, grid, *for_dq, REVERSE=False, GIVEN=start, **options)
    if parts > groups:
        for grad, x in zip((dq, dk), sums, strict=True):
            torch.sum(x.unflatten(2, (groups, -1)), 3, out=grad)  # in float32 and rounded at last


def _part(group: int, programs: int) -> int:
    """Heads of a group that a program adds up, where `programs` would have one head each."""
    counts = [n for n in range(1, MOST + 1) if group % n == 0 and programs // n >= PROGRAMS]
    return max(counts, default=1)


def _values_tile(key: int, value: int, precision: str) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): keys at a time, value columns."""
    if precision == "tf32x3":
        return _block(key, 32), _block(value, 32), 4, 2
    return _block(key, 64), max(_block(value, 64), LEAST), 4, 2


def _keys_tile(key: int, value: int, precision: str) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): keys, and value columns at a time."""
    if precision == "tf32x3":
        return _block(key, 64), _block(value, 32), 4, 1
    return max(_block(key, 128), LEAST), _block(value, 64), 4, 2
