"""`dplr` token by token with the state in registers: one kernel forward, one backward.

Letters: B batch, T time, H heads, K key size, V value size. One program runs one head of one
sequence for one block of value columns, which never mix. Where a row holds P sequences (`Packing`),
there are BP sequences. A token is

    w = Hᵀ r,    H ← Diag(a) H + l wᵀ + k vᵀ,    y = scale · Hᵀ q.

Two tokens are loaded while two are computed. The forward saves w, and the state every eight
tokens. A gate may be 0, so H_{t-1} cannot be had from H_t: the backward takes four tokens at a
time, from the last to the first, replays them from the saved state, keeps their states in
registers, and walks back. With G_t the gradient of H_t, G ← G + scale · q dyᵀ and then

    dq = scale · H_t dy    dk = G v    dv = Gᵀ k    dl = G w    dw = Gᵀ l
    dr = H_{t-1} dw        da = Σ_value G ∘ H_{t-1}             G ← Diag(a) G + r dwᵀ.

Nothing is divided by a gate, and nothing multiplies a token with an earlier one, so zeros, signs
and NaN need no care.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import place
from statetrack.ops._triton.runtime import contiguous, on_device_of, power_of_two, triton_dtype
from statetrack.ops.dplr.spec import SPEC, Inputs
from statetrack.ops.packing import in_a_row

__all__ = ["backward", "empty", "forward"]

AHEAD = 2  # tokens that the forward loads while as many are computed; divides KEEP_EVERY
KEEP_EVERY = 8  # tokens between saved states; the backward spells out two groups of four


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _row(ptr, t, T, stride, index, SIZE: tl.constexpr, OTHER: tl.constexpr, COMPUTE: tl.constexpr):
    """Row t of a [T, SIZE] array whose rows are `stride` apart; OTHER from T on and beyond SIZE."""
    limit = tl.where(t < T, SIZE, 0)
    return tl.load(ptr + t * stride + index, mask=index < limit, other=OTHER).to(COMPUTE)


@triton.jit
@no_type_check
def _four(ptr, t, T, stride, index, SIZE: tl.constexpr, OTHER: tl.constexpr, COMPUTE: tl.constexpr):
    """[index, 4]: rows t to t+3; OTHER from T on and beyond SIZE. One load for four rows."""
    rows = t + tl.arange(0, 4)
    inside = (index < SIZE)[:, None] & (rows < T)[None, :]
    x = tl.load(ptr + rows[None, :] * stride + index[:, None], mask=inside, other=OTHER)
    return x.to(COMPUTE)


@triton.jit
@no_type_check
def _each(x):
    """The four columns of x."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def _next_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    left_ptr,
    right_ptr,
    t,
    T,
    H,
    keys,
    values,
    K: tl.constexpr,
    V: tl.constexpr,
    AHEAD: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """q, k, v, a, l and r of AHEAD tokens from t on, as many vectors each."""
    q, k, v, a, left, right = (), (), (), (), (), ()
    for i in tl.static_range(AHEAD):
        q = q + (_row(q_ptr, t + i, T, H * K, keys, K, 0.0, COMPUTE),)
        k = k + (_row(k_ptr, t + i, T, H * K, keys, K, 0.0, COMPUTE),)
        v = v + (_row(v_ptr, t + i, T, H * V, values, V, 0.0, COMPUTE),)
        a = a + (_row(decay_ptr, t + i, T, H * K, keys, K, 1.0, COMPUTE),)
        left = left + (_row(left_ptr, t + i, T, H * K, keys, K, 0.0, COMPUTE),)
        right = right + (_row(right_ptr, t + i, T, H * K, keys, K, 0.0, COMPUTE),)
    return q, k, v, a, left, right


@triton.jit
@no_type_check
def _write(state, k, v, a, left, seen):
    """Diag(a) H + l wᵀ + k vᵀ."""
    return a[:, None] * state + left[:, None] * seen[None, :] + k[:, None] * v[None, :]


@triton.jit
@no_type_check
def _writes(
    k_ptr,
    v_ptr,
    decay_ptr,
    left_ptr,
    seen_ptr,
    t,
    T,
    H,
    keys,
    values,
    K: tl.constexpr,
    V: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """k, v, a, l and w of tokens t to t+3, four vectors each; none before the first token."""
    t = tl.where(t < 0, T, t)
    k = _each(_four(k_ptr, t, T, H * K, keys, K, 0.0, COMPUTE))
    v = _each(_four(v_ptr, t, T, H * V, values, V, 0.0, COMPUTE))
    a = _each(_four(decay_ptr, t, T, H * K, keys, K, 1.0, COMPUTE))
    left = _each(_four(left_ptr, t, T, H * K, keys, K, 0.0, COMPUTE))
    seen = _each(_four(seen_ptr, t, T, H * V, values, V, 0.0, COMPUTE))
    return k, v, a, left, seen


# The compiler does not know that `zero` is 0. It would otherwise run the recurrence a second time,
# in a layout that suits wide stores of the state; so it stores the state as the lanes hold it.
@triton.jit(do_not_specialize=["zero"])
@no_type_check
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    left_ptr,
    right_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    seen_ptr,
    kept_ptr,
    offsets_ptr,
    T,
    H,
    P,
    kept,
    zero,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    SAVE: tl.constexpr,
    EVERY: tl.constexpr,
    AHEAD: tl.constexpr,
    REPAIR: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """y and the final state of one head and block of values; with SAVE, w and states.

    With REPAIR only where the final state that is already there has a NaN or an infinity.
    """
    program = tl.program_id(0).to(tl.int64)
    head = program // NV
    block = (program % NV).to(tl.int32)
    b, first_token, length = place(offsets_ptr, head // H, T, P)
    row = (b * T + first_token) * H + head % H  # of a tensor [B, T, H]
    keys = tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    at = keys.to(tl.int64)[:, None] * V + values[None, :]
    inside = (keys < K)[:, None] & (values < V)[None, :]
    q_ptr += row * K
    k_ptr += row * K
    v_ptr += row * V
    y_ptr += row * V
    decay_ptr += row * K
    left_ptr += row * K
    right_ptr += row * K
    seen_ptr += row * V
    kept_ptr += zero + (head * kept - 1) * K * V
    final_ptr += zero + head * K * V

    if REPAIR:
        found = tl.load(final_ptr + at, mask=inside, other=0.0)
        if tl.sum(tl.where(tl.abs(found) < float("inf"), 0, 1)) == 0:
            return

    state = tl.zeros([BK, BV], COMPUTE)
    if start_ptr is not None:
        state += tl.load(start_ptr + head * K * V + at, mask=inside, other=0.0).to(COMPUTE)
    q, k, v, a, left, right = _next_rows(
        q_ptr, k_ptr, v_ptr, decay_ptr, left_ptr, right_ptr, 0, length, H, keys, values, K, V,
        AHEAD, COMPUTE,
    )  # fmt: skip
    for t in range(0, length, AHEAD):
        if SAVE:
            if (t > 0) & (t % EVERY == 0):
                tl.store(kept_ptr + t // EVERY * (K * V) + at, state, mask=inside)
        later = _next_rows(
            q_ptr, k_ptr, v_ptr, decay_ptr, left_ptr, right_ptr, t + AHEAD, length, H, keys,
            values, K, V, AHEAD, COMPUTE,
        )  # fmt: skip
        for i in tl.static_range(AHEAD):
            seen = tl.sum(state * right[i][:, None], 0)
            state = _write(state, k[i], v[i], a[i], left[i], seen)
            y = SCALE * tl.sum(state * q[i][:, None], 0)
            in_v = values < tl.where(t + i < length, V, 0)
            tl.store(y_ptr + (t + i) * H * V + values, y, mask=in_v)
            if SAVE:
                tl.store(seen_ptr + (t + i) * H * V + values, seen, mask=in_v)
        q, k, v, a, left, right = later
    tl.store(final_ptr + at, state, mask=inside)


@triton.jit
@no_type_check
def _backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    left_ptr,
    right_ptr,
    start_ptr,
    seen_ptr,
    kept_ptr,
    dy_ptr,
    dfinal_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    ddecay_ptr,
    dleft_ptr,
    dright_ptr,
    dstart_ptr,
    offsets_ptr,
    B,
    T,
    H,
    P,
    kept,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients of one head. All but dv sum over value columns: one slab per value block."""
    program = tl.program_id(0).to(tl.int64)
    head = program // NV
    block = (program % NV).to(tl.int32)
    b, first_token, length = place(offsets_ptr, head // H, T, P)
    row = (b * T + first_token) * H + head % H
    keys = tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    at = keys[:, None] * V + values[None, :]
    inside = (keys < K)[:, None] & (values < V)[None, :]
    slab = program % NV * B * T * H + row  # rows of [B, T, H] before this program's part of a sum
    q_ptr += row * K
    k_ptr += row * K
    v_ptr += row * V
    decay_ptr += row * K
    left_ptr += row * K
    right_ptr += row * K
    seen_ptr += row * V
    dy_ptr += row * V
    dv_ptr += row * V
    dq_ptr += slab * K
    dk_ptr += slab * K
    ddecay_ptr += slab * K
    dleft_ptr += slab * K
    dright_ptr += slab * K

    dstate = tl.load(dfinal_ptr + head * K * V + at, mask=inside, other=0.0).to(COMPUTE)
    last = (length + 3) // 4 * 4 - 4  # where the last four tokens begin
    for step in range(0, length, 4):
        first = last - step
        segment = first // 8
        state = tl.zeros([BK, BV], COMPUTE)
        if segment > 0:
            source = kept_ptr + (head * kept + segment - 1) * K * V + at
            state += tl.load(source, mask=inside, other=0.0)
        elif start_ptr is not None:
            state += tl.load(start_ptr + head * K * V + at, mask=inside, other=0.0).to(COMPUTE)
        if first % 8 == 4:
            k, v, a, left, seen = _writes(
                k_ptr, v_ptr, decay_ptr, left_ptr, seen_ptr, first - 4, length, H, keys, values, K,
                V, COMPUTE,
            )  # fmt: skip
            for i in tl.static_range(4):
                state = _write(state, k[i], v[i], a[i], left[i], seen[i])
        k, v, a, left, seen = _writes(
            k_ptr, v_ptr, decay_ptr, left_ptr, seen_ptr, first, length, H, keys, values, K, V,
            COMPUTE,
        )  # fmt: skip
        q = _each(_four(q_ptr, first, length, H * K, keys, K, 0.0, COMPUTE))
        right = _each(_four(right_ptr, first, length, H * K, keys, K, 0.0, COMPUTE))
        dy = _each(_four(dy_ptr, first, length, H * V, values, V, 0.0, COMPUTE))
        states = ()
        for i in tl.static_range(4):
            states = states + (state,)
            state = _write(state, k[i], v[i], a[i], left[i], seen[i])
            dq = SCALE * tl.sum(state * dy[i][None, :], 1)
            in_k = keys < tl.where(first + i < length, K, 0)
            tl.store(dq_ptr + (first + i) * H * K + keys, dq, mask=in_k)
        for i in tl.static_range(3, -1, -1):
            t = first + i
            in_k = keys < tl.where(t < length, K, 0)
            in_v = values < tl.where(t < length, V, 0)
            at_k = t * H * K + keys
            dstate += q[i][:, None] * (SCALE * dy[i])[None, :]
            dseen = tl.sum(dstate * left[i][:, None], 0)
            tl.store(dv_ptr + t * H * V + values, tl.sum(dstate * k[i][:, None], 0), mask=in_v)
            tl.store(dk_ptr + at_k, tl.sum(dstate * v[i][None, :], 1), mask=in_k)
            tl.store(dleft_ptr + at_k, tl.sum(dstate * seen[i][None, :], 1), mask=in_k)
            tl.store(ddecay_ptr + at_k, tl.sum(dstate * states[i], 1), mask=in_k)
            tl.store(dright_ptr + at_k, tl.sum(states[i] * dseen[None, :], 1), mask=in_k)
            dstate = a[i][:, None] * dstate + right[i][:, None] * dseen[None, :]
    if dstart_ptr is not None:
        tl.store(dstart_ptr + head * K * V + at, dstate, mask=inside)


# ------------------------------------------------------------------------------------- launches


def _forward_tile(key: int, value: int) -> tuple[int, int, int]:
    """(BK, BV, warps) of a forward program: 32 keys of one value column a lane."""
    keys = max(power_of_two(key), 32)
    return keys, min(power_of_two(value), 32), min(keys // 32, 8)


def _backward_tile(key: int, value: int) -> tuple[int, int, int]:
    """(BK, BV, warps) of a backward program: four states and a gradient at a time."""
    keys = power_of_two(key)
    values = min(power_of_two(value), 16 if keys == 64 else max(4096 // keys, 4))
    return keys, values, max(1, keys * values // 512)


def _kept(longest: int | torch.SymInt) -> int | torch.SymInt:
    """How many states the forward saves: one before every eighth token, none before the first."""
    return (longest - 1) // KEEP_EVERY


def empty(inputs: Inputs, save: bool, offsets: Tensor | None, longest: int) -> tuple[Tensor, ...]:
    """The results; saved: w [B,T,H,V] and states [BP,H,kept,K,V]."""
    y, state = SPEC.empty(inputs, in_a_row(offsets))
    if not save:
        return y, state, state.new_empty(0), state.new_empty(0)
    sequences, heads, key, value = state.shape
    kept = state.new_empty(sequences, heads, _kept(longest), key, value)
    return y, state, state.new_empty(inputs.v.shape), kept


def forward(
    inputs: Inputs,
    results: tuple[Tensor, ...],
    save: bool,
    offsets: Tensor | None,
    longest: int,
    *,
    repair: bool,
) -> None:
    """Fills `results`, those of `empty`; with `repair` only where the state is not finite."""
    y, state, seen, kept = results
    _, time, heads, key = inputs.k.shape
    value = inputs.v.shape[-1]
    keys, values, warps = _forward_tile(key, value)
    blocks = triton.cdiv(value, values)
    with on_device_of(y):
        launch(
            _forward_kernel,
            (len(state) * heads * blocks,),
            *(x.contiguous() for x in inputs[:6]),
            contiguous(inputs.initial_state),
            y,
            state,
            seen,
            kept,
            contiguous(offsets),
            time,
            heads,
            in_a_row(offsets),
            _kept(longest),
            0,
            K=key,
            V=value,
            BK=keys,
            BV=values,
            NV=blocks,
            SCALE=inputs.scale,
            SAVE=save,
            EVERY=KEEP_EVERY,
            AHEAD=AHEAD,
            REPAIR=repair,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=warps,
        )


def backward(
    inputs: Inputs,
    offsets: Tensor | None,
    longest: int,
    seen: Tensor,
    kept: Tensor,
    dy: Tensor,
    dstate: Tensor,
    grads: tuple[Tensor, ...],
) -> None:
    """Fills `grads`, from what the forward saved."""
    dq, dk, dv, ddecay, dleft, dright, dstart, _ = grads
    batch, time, heads, key = inputs.k.shape
    value = inputs.v.shape[-1]
    keys, values, warps = _backward_tile(key, value)
    blocks = triton.cdiv(value, values)
    sums = [dq, dk, ddecay, dleft, dright]
    slabs = sums if blocks == 1 else [dstate.new_empty(blocks, *grad.shape) for grad in sums]
    with on_device_of(dy):
        launch(
            _backward_kernel,
            (len(dstate) * heads * blocks,),
            *(x.contiguous() for x in inputs[:6]),
            contiguous(inputs.initial_state),
            seen,
            kept,
            dy.contiguous(),
            dstate.contiguous(),
            slabs[0],
            slabs[1],
            dv,
            slabs[2],
            slabs[3],
            slabs[4],
            None if inputs.initial_state is None else dstart,
            contiguous(offsets),
            batch,
            time,
            heads,
            in_a_row(offsets),
            _kept(longest),
            K=key,
            V=value,
            BK=keys,
            BV=values,
            NV=blocks,
            SCALE=inputs.scale,
            COMPUTE=triton_dtype(dstate.dtype),
            num_warps=warps,
        )
    if blocks > 1:
        for grad, slab in zip(sums, slabs, strict=True):
            grad.copy_(slab.sum(0))
