"""`delta_product` token by token with the state in registers: one kernel forward, one backward.

Letters: B batch, T time, N micro-steps per token, H heads, K key size, V value size. One program
runs one head of one batch row for one block of value columns; the columns of the state never mix,
so a program needs nothing from the others. Where a row holds P sequences (`Packing`), a program
runs one head of one of them, and there are BP sequences. With k as given, not normalised, one
micro-step is

    w = Sᵀ k,    e = r v - r² w,    u = β e,    S ← S + k uᵀ,        r = 1/‖k‖

which is S ← (I - β k̂ k̂ᵀ) S + β k̂ vᵀ for k̂ = r k (and r = 1 where keys are taken as they are).

Precision. At β = 2 an error in r² is an eigenvalue off -1 at every visit of the same key, and grows
with T: r² in float32 is worth up to 0.8 % of the state after 65,536 tokens. So ‖k‖² is summed in
float64 and r² kept as a float32 pair; what is left is the random rounding of single operations.

Memory. The forward saves e, and the state every so many tokens. Without a gate, the backward takes
S back by subtraction: S - k uᵀ. A gate cannot be undone (a = 0), so with one the backward replays
each token from the last saved state, which lies at most 7 tokens back.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import place
from statetrack.ops._triton.runtime import (
    by_token,
    contiguous,
    on_device_of,
    power_of_two,
    triton_dtype,
)
from statetrack.ops.delta.spec import NORM_FLOOR, SPEC, Inputs
from statetrack.ops.packing import in_a_row

__all__ = ["backward", "empty", "forward"]

FLOOR_SQUARED = tl.constexpr(NORM_FLOOR**2)
KEEP_EVERY = 256  # tokens between saved states, without a gate: bounds what subtraction can lose
KEEP_EVERY_GATED = 8


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _square(x):
    """(‖x‖², or 1 if x counts as zero; whether it does not) of each row of x."""
    square = tl.sum(x * x, 1)
    # spelt so that NaN counts as a vector: it must reach what the row touches, and no further
    is_vector = (square <= FLOOR_SQUARED) == 0
    return tl.where(is_vector, square, 1.0), is_vector


@triton.jit
@no_type_check
def _write_coefficients(
    at,
    q_at,
    k_at,
    beta_at,
    T,
    H,
    q_token,
    k_token,
    keys,
    in_k,
    N: tl.constexpr,
    K: tl.constexpr,
    BT: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SCALE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Per token: for each key β, r = 1/‖k‖ and r² as high + low; then scale/‖q‖.

    Done for many tokens at once, so that the sequential loop finds all its scalars ready. Where
    several programs share a head, each writes the same numbers.
    """
    for first in range(0, T, BT):
        rows = (first + tl.arange(0, BT)).to(tl.int64)
        inside = rows < T
        row_at = at + rows * (4 * N + 1)
        tile = inside[:, None] & in_k[None, :]
        q = tl.load(q_at + rows[:, None] * q_token + keys[None, :], mask=tile, other=0.0)
        for j in tl.static_range(N):
            k_row = k_at + j * H * K + rows[:, None] * k_token
            k = tl.load(k_row + keys[None, :], mask=tile, other=0.0)
            beta = tl.load(beta_at + (rows * N + j) * H, mask=inside, other=0.0).to(COMPUTE)
            tl.store(row_at + 4 * j, beta, mask=inside)
            if NORMALIZE:
                square, is_vector = _square(k.to(tl.float64))
                top = square.to(COMPUTE)
                rest = (square - top.to(tl.float64)).to(COMPUTE)
                high = 1.0 / top
                low = (tl.fma(-top, high, 1.0) - rest * high) * high  # one Newton step
                tl.store(row_at + 4 * j + 1, tl.where(is_vector, tl.rsqrt(top), 0.0), mask=inside)
                tl.store(row_at + 4 * j + 2, tl.where(is_vector, high, 0.0), mask=inside)
                tl.store(row_at + 4 * j + 3, tl.where(is_vector, low, 0.0), mask=inside)
        r_q = tl.full([BT], SCALE, COMPUTE)
        if NORMALIZE:
            square, is_vector = _square(q.to(COMPUTE))
            r_q = tl.where(is_vector, SCALE * tl.rsqrt(square), 0.0)
        tl.store(row_at + 4 * N, r_q, mask=inside)
    tl.debug_barrier()


@triton.jit
@no_type_check
def _load_coefficients(at, j, NORMALIZE: tl.constexpr, COMPUTE: tl.constexpr):
    """(β, r, high, low) of a token's j-th key."""
    beta = tl.load(at + 4 * j)
    if NORMALIZE:
        return beta, tl.load(at + 4 * j + 1), tl.load(at + 4 * j + 2), tl.load(at + 4 * j + 3)
    else:
        one = tl.full([], 1.0, COMPUTE)
        return beta, one, one, tl.full([], 0.0, COMPUTE)


@triton.jit
@no_type_check
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    beta_ptr,
    decay_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    e_ptr,
    kept_ptr,
    coef_ptr,
    offsets_ptr,
    T,
    H,
    P,
    kept,
    q_token,
    k_token,
    v_token,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    BT: tl.constexpr,
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SAVE: tl.constexpr,
    EVERY: tl.constexpr,
    REPAIR: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """y, the final state and, with SAVE, what the backward needs, of one head and block of values.

    `q_token`, `k_token` and `v_token` are the numbers from one token to the next.

    With REPAIR only where the final state that is already there has a NaN or an infinity.
    """
    program = tl.program_id(0).to(tl.int64)
    block, head = program % NV, program // NV
    h = head % H
    b, first_token, length = place(offsets_ptr, head // H, T, P)
    token = b * T + first_token
    keys = tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_k, in_v = keys < K, values < V
    at = keys[:, None] * V + values[None, :]
    in_state = in_k[:, None] & in_v[None, :]

    if REPAIR:
        found = tl.load(final_ptr + head * K * V + at, mask=in_state, other=0.0)
        if tl.sum(tl.where(tl.abs(found) < float("inf"), 0, 1)) == 0:
            return

    if offsets_ptr is not None:
        if length == 0:
            nothing = tl.zeros([BK, BV], COMPUTE)
            if start_ptr is not None:
                nothing += tl.load(start_ptr + head * K * V + at, mask=in_state, other=0.0)
            tl.store(final_ptr + head * K * V + at, nothing, mask=in_state)
            return

    row = token * H + h  # of a tensor [B, T, H]; one token on is H rows on
    micro = token * N * H + h  # of a tensor [B, T, N, H]
    q_ptr += token * q_token + h * K
    k_ptr += token * k_token + h * K
    q_at = q_ptr + keys
    k_at = k_ptr + keys
    v_at = v_ptr + token * v_token + h * V + values
    k_turn = k_token - (N - 1) * H * K  # from a token's last key to the next token's first
    v_turn = v_token - (N - 1) * H * V
    e_at = e_ptr + micro * V + values
    y_at = y_ptr + row * V + values
    PER_TOKEN: tl.constexpr = 4 * N + 1
    coef_at = coef_ptr + ((b * H + h) * T + first_token) * PER_TOKEN
    kept_at = kept_ptr + head * kept * K * V + at
    _write_coefficients(
        coef_at,
        q_ptr,
        k_ptr,
        beta_ptr + micro,
        length,
        H,
        q_token,
        k_token,
        keys,
        in_k,
        N,
        K,
        BT,
        NORMALIZE,
        SCALE,
        COMPUTE,
    )
    if start_ptr is not None:
        state = tl.load(start_ptr + head * K * V + at, mask=in_state, other=0.0).to(COMPUTE)
    else:
        state = tl.zeros([BK, BV], COMPUTE)

    # What a micro-step needs is loaded while the one before computes; v, which comes from far
    # away, two micro-steps before. The last token looks at itself again.
    k = tl.load(k_at, mask=in_k, other=0.0).to(COMPUTE)
    v = tl.load(v_at, mask=in_v, other=0.0).to(COMPUTE)
    v_at += tl.where(length * N > 1, v_turn if N == 1 else H * V, 0)
    v_next = tl.load(v_at, mask=in_v, other=0.0).to(COMPUTE)
    q = tl.load(q_at, mask=in_k, other=0.0).to(COMPUTE)
    beta, r, high, low = _load_coefficients(coef_at, 0, NORMALIZE, COMPUTE)
    r_q = tl.load(coef_at + 4 * N)
    for first in range(0, length, EVERY):
        if SAVE:
            if first > 0:
                tl.store(kept_at, state, mask=in_state)
                kept_at += K * V
        for t in range(first, tl.minimum(first + EVERY, length)):
            if decay_ptr is not None:
                state *= tl.load(decay_ptr + row + t * H).to(COMPUTE)
            more = t + 1 < length
            q_at += tl.where(more, q_token, 0)
            coef_next = coef_at + tl.where(more, PER_TOKEN, 0)
            q_next = tl.load(q_at, mask=in_k, other=0.0).to(COMPUTE)
            for j in tl.static_range(N):
                v_step = v_turn if (j + 2) % N == 0 else H * V
                v_at += tl.where(t * N + j + 2 < length * N, v_step, 0)
                v_later = tl.load(v_at, mask=in_v, other=0.0).to(COMPUTE)
                if j + 1 < N:
                    k_at += H * K
                    later = _load_coefficients(coef_at, j + 1, NORMALIZE, COMPUTE)
                else:
                    k_at += tl.where(more, k_turn, 0)
                    later = _load_coefficients(coef_next, 0, NORMALIZE, COMPUTE)
                k_next = tl.load(k_at, mask=in_k, other=0.0).to(COMPUTE)
                w = tl.sum(state * k[:, None], 0)
                e = (r * v - high * w) - low * w
                u = beta * e
                state += k[:, None] * u[None, :]
                if SAVE:
                    tl.store(e_at, e, mask=in_v)
                    e_at += H * V
                k, v, v_next = k_next, v_next, v_later
                beta, r, high, low = later
            tl.store(y_at, r_q * tl.sum(state * q[:, None], 0), mask=in_v)
            r_q = tl.load(coef_next + 4 * N)
            q = q_next
            coef_at = coef_next
            y_at += H * V
    tl.store(final_ptr + head * K * V + at, state, mask=in_state)


@triton.jit
@no_type_check
def _rewrite(
    state,
    k_at,
    e_ptr,
    beta_ptr,
    row,
    H,
    values,
    in_k,
    in_v,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The state after a token's writes k uᵀ, whose u = β e are known from the forward."""
    for j in tl.static_range(N):
        at = row + j * H
        k = tl.load(k_at + j * H * K, mask=in_k, other=0.0).to(COMPUTE)
        u = tl.load(e_ptr + at * V + values, mask=in_v, other=0.0)
        u *= tl.load(beta_ptr + at).to(COMPUTE)
        state += k[:, None] * u[None, :]
    return state


@triton.jit
@no_type_check
def _backward_kernel(
    q_ptr,
    k_ptr,
    beta_ptr,
    decay_ptr,
    start_ptr,
    final_ptr,
    e_ptr,
    kept_ptr,
    coef_ptr,
    dy_ptr,
    dfinal_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    dbeta_ptr,
    ddecay_ptr,
    dstart_ptr,
    offsets_ptr,
    B,
    T,
    H,
    P,
    kept,
    q_token,
    k_token,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    EVERY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients of one head. dq, dk, dβ and da sum over value columns: one slab per value block."""
    program = tl.program_id(0).to(tl.int64)
    block, head = program % NV, program // NV
    h = head % H
    b, first_token, length = place(offsets_ptr, head // H, T, P)
    token = b * T + first_token
    keys = tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_k, in_v = keys < K, values < V
    at = keys[:, None] * V + values[None, :]
    in_state = in_k[:, None] & in_v[None, :]
    if offsets_ptr is not None:
        if length == 0:
            if dstart_ptr is not None:
                nothing = tl.zeros([BK, BV], COMPUTE)
                if dfinal_ptr is not None:
                    nothing += tl.load(dfinal_ptr + head * K * V + at, mask=in_state, other=0.0)
                tl.store(dstart_ptr + head * K * V + at, nothing, mask=in_state)
            return
    first_row = token * H + h
    slab = block * B * T * H  # rows of [B, T, H] before this block's part of a partial sum

    # Inputs are loaded one micro-step ahead, from the last token to the first.
    row = first_row + (length - 1) * H
    micro = (token + length) * N * H - H + h
    q_at = q_ptr + (token + length - 1) * q_token + h * K + keys
    dy_at = dy_ptr + row * V + values
    PER_TOKEN: tl.constexpr = 4 * N + 1
    coef_at = coef_ptr + ((b * H + h) * T + first_token + length - 1) * PER_TOKEN
    k_ptr += token * k_token + h * K + keys  # the first key of the row's first token
    k_turn = (
        k_token - (N - 1) * H * K
    )  # from a token's first key back to the last of the one before
    k_at = k_ptr + (length - 1) * k_token + (N - 1) * H * K
    e_at = e_ptr + micro * V + values
    q = tl.load(q_at, mask=in_k, other=0.0).to(COMPUTE)
    dy = tl.load(dy_at, mask=in_v, other=0.0).to(COMPUTE)
    r_q = tl.load(coef_at + 4 * N)
    k = tl.load(k_at, mask=in_k, other=0.0).to(COMPUTE)
    e = tl.load(e_at, mask=in_v, other=0.0)
    beta, r, high, low = _load_coefficients(coef_at, N - 1, NORMALIZE, COMPUTE)

    if dfinal_ptr is not None:
        dstate = tl.load(dfinal_ptr + head * K * V + at, mask=in_state, other=0.0).to(COMPUTE)
    else:  # zeros laid out as what is loaded: tl.zeros is laid out in 168 registers, not 128
        dstate = tl.load(final_ptr + at, mask=in_state & (length < 0), other=0.0).to(COMPUTE)
    segments = (length - 1) // EVERY  # as many states were saved
    for segment in range(segments, -1, -1):
        first = segment * EVERY
        last = tl.minimum(first + EVERY, length)
        if decay_ptr is None:  # the state after the segment
            if segment == segments:
                source = final_ptr + head * K * V
            else:
                source = kept_ptr + (head * kept + segment) * K * V
            state = tl.load(source + at, mask=in_state, other=0.0).to(COMPUTE)
        for t in range(last - 1, first - 1, -1):
            row = first_row + t * H
            micro = (token + t) * N * H + h
            if decay_ptr is not None:
                state = tl.zeros([BK, BV], COMPUTE)  # the state before the segment
                if segment > 0:
                    saved = kept_ptr + (head * kept + segment - 1) * K * V
                    state = tl.load(saved + at, mask=in_state, other=0.0).to(COMPUTE)
                elif start_ptr is not None:
                    start = start_ptr + head * K * V  # of a type of its own
                    state = tl.load(start + at, mask=in_state, other=0.0).to(COMPUTE)
                for s in range(first, t):
                    state *= tl.load(decay_ptr + first_row + s * H).to(COMPUTE)
                    state = _rewrite(
                        state,
                        k_ptr + s * k_token,
                        e_ptr,
                        beta_ptr,
                        (token + s) * N * H + h,
                        H,
                        values,
                        in_k,
                        in_v,
                        N,
                        K,
                        V,
                        COMPUTE,
                    )
                before = state
                decay = tl.load(decay_ptr + row).to(COMPUTE)
                state *= decay
                state = _rewrite(
                    state,
                    k_ptr + t * k_token,
                    e_ptr,
                    beta_ptr,
                    micro,
                    H,
                    values,
                    in_k,
                    in_v,
                    N,
                    K,
                    V,
                    COMPUTE,
                )

            step = tl.where(t > 0, H, 0)  # the first token looks at itself again
            q_at -= tl.where(t > 0, q_token, 0)
            q_next = tl.load(q_at, mask=in_k, other=0.0).to(COMPUTE)
            dy_next = tl.load(dy_at - step * V, mask=in_v, other=0.0).to(COMPUTE)
            back = tl.where(t > 0, PER_TOKEN, 0)
            r_q_next = tl.load(coef_at - back + 4 * N)
            dy *= r_q
            dq = tl.sum(state * dy[None, :], 1)
            dstate += q[:, None] * dy[None, :]
            if NORMALIZE:
                r_unit = r_q * (1.0 / SCALE if SCALE != 0 else 0.0)
                dq -= q * (tl.sum(q * dq) * r_unit * r_unit)
            tl.store(dq_ptr + (slab + row) * K + keys, dq, mask=in_k)
            dy_at -= step * V

            for i in tl.static_range(N):
                at_j = micro + (N - 1 - i) * H
                if i + 1 < N:
                    k_at -= H * K
                    e_at -= H * V
                    later = _load_coefficients(coef_at, N - 2 - i, NORMALIZE, COMPUTE)
                else:
                    k_at -= tl.where(t > 0, k_turn, 0)
                    e_at -= step * V
                    coef_at -= back
                    later = _load_coefficients(coef_at, N - 1, NORMALIZE, COMPUTE)
                k_next = tl.load(k_at, mask=in_k, other=0.0).to(COMPUTE)
                e_next = tl.load(e_at, mask=in_v, other=0.0)
                u = beta * e
                state -= k[:, None] * u[None, :]  # before this micro-step
                du = tl.sum(dstate * k[:, None], 0)
                dw = -beta * (high * du + low * du)
                dk = tl.sum(
                    tl.reshape(tl.join(dstate * u[None, :], state * dw[None, :]), [BK, 2 * BV]), 1
                )
                dstate += k[:, None] * dw[None, :]
                if NORMALIZE:
                    dk -= k * (tl.sum(k * dk) * high)
                tl.store(dk_ptr + (slab * N + at_j) * K + keys, dk, mask=in_k)
                tl.store(dv_ptr + at_j * V + values, beta * r * du, mask=in_v)
                tl.store(dbeta_ptr + slab * N + at_j, tl.sum(du * e))
                k, e = k_next, e_next
                beta, r, high, low = later
            q, dy, r_q = q_next, dy_next, r_q_next
            if decay_ptr is not None:
                tl.store(ddecay_ptr + slab + row, tl.sum(dstate * before))
                dstate *= decay
    if dstart_ptr is not None:
        tl.store(dstart_ptr + head * K * V + at, dstate, mask=in_state)


# ------------------------------------------------------------------------------------- launches


def _forward_tile(key: int, value: int) -> tuple[int, int, int]:
    """(BK, BV, warps) of a forward program."""
    keys, values = power_of_two(key), power_of_two(value)
    values = min(values, max(4096 // keys, 4))
    return keys, values, max(1, keys * values // 2048)


def _backward_tile(key: int, value: int) -> tuple[int, int, int]:
    """(BK, BV, warps) of a backward program, which holds the state and its gradient."""
    keys, values = power_of_two(key), power_of_two(value)
    values = min(values, max(16384 // keys, 4))
    return keys, values, max(1, min(8, keys * values // 2048))


def _registers(warps: int, offsets: Tensor | None) -> int | None:
    """At most so many for a thread of a backward program; None leaves it to the compiler.

    Where sequences begin is loaded, so every address is a register of its own: with 32 x 32 states
    168 instead of 128, which is four of 16 programs fewer on a multiprocessor. 128 are enough, too.
    """
    return 128 if offsets is not None and warps == 1 else None


def _coefficient_rows(keys: int) -> int:
    """Tokens whose coefficients are computed at once."""
    return max(1, 512 // keys)


def _kept(time: int | torch.SymInt, gated: bool) -> int | torch.SymInt:
    """How many states the forward saves: one before every so many tokens, none before the first."""
    return (time - 1) // (KEEP_EVERY_GATED if gated else KEEP_EVERY)


def forward(
    inputs: Inputs,
    results: tuple[Tensor, ...],
    save: bool,
    offsets: Tensor | None,
    longest: int,
    repair: bool,
) -> None:
    """Fills `results`, those of `empty`; with `repair` only where the state is not finite."""
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    y, state, e, kept, coef = results
    _, time, micro, heads, key = k.shape
    value = v.shape[-1]
    keys, values, warps = _forward_tile(key, value)
    blocks = triton.cdiv(value, values)
    (q, q_token), (k, k_token), (v, v_token) = by_token(q), by_token(k), by_token(v)
    launch(
        _forward_kernel,
        (len(state) * heads * blocks,),
        q,
        k,
        v,
        beta.contiguous(),
        contiguous(decay),
        contiguous(initial_state),
        y,
        state,
        e,
        kept,
        coef,
        contiguous(offsets),
        time,
        heads,
        in_a_row(offsets),
        _kept(longest, decay is not None),
        q_token,
        k_token,
        v_token,
        N=micro,
        K=key,
        V=value,
        BK=keys,
        BV=values,
        BT=_coefficient_rows(keys),
        NV=blocks,
        SCALE=scale,
        NORMALIZE=normalize,
        SAVE=save,
        EVERY=KEEP_EVERY if decay is None else KEEP_EVERY_GATED,
        REPAIR=repair,
        COMPUTE=triton_dtype(state.dtype),
        num_warps=warps,
    )


def empty(inputs: Inputs, save: bool, offsets: Tensor | None, longest: int) -> tuple[Tensor, ...]:
    """The results; saved: e [B,T,N,H,V], states [BP,H,kept,K,V], coefficients [B,H,T,4N+1]."""
    y, state = SPEC.empty(inputs, in_a_row(offsets))
    batch, time, micro, heads, _ = inputs.k.shape
    coef = state.new_empty(batch, heads, time, 4 * micro + 1)
    if not save:
        return y, state, state.new_empty(0), state.new_empty(0), coef
    e = state.new_empty(inputs.v.shape)
    slots = _kept(longest, inputs.decay is not None)
    return y, state, e, state.new_empty(len(state), heads, slots, *state.shape[2:]), coef


def backward(
    inputs: Inputs,
    offsets: Tensor | None,
    longest: int,
    state: Tensor,
    e: Tensor,
    kept: Tensor,
    coef: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
    grads: tuple[Tensor, ...],
) -> None:
    """Fills `grads`, from what the forward saved."""
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    dq, dk, dv, dbeta, ddecay, dstart, _ = grads
    batch, time, micro, heads, key = k.shape
    value = v.shape[-1]
    keys, values, warps = _backward_tile(key, value)
    blocks = triton.cdiv(value, values)
    sums = [dq, dk, dbeta, ddecay]
    slabs = sums
    if blocks > 1:
        slabs = [state.new_empty(blocks, *grad.shape) for grad in sums]
    (q, q_token), (k, k_token) = by_token(q), by_token(k)
    with on_device_of(q):
        launch(
            _backward_kernel,
            (len(state) * heads * blocks,),
            q,
            k,
            beta.contiguous(),
            contiguous(decay),
            contiguous(initial_state),
            state,
            e,
            kept,
            coef,
            dy.contiguous(),
            contiguous(dstate),
            slabs[0],
            slabs[1],
            dv,
            slabs[2],
            slabs[3],
            None if initial_state is None else dstart,
            contiguous(offsets),
            batch,
            time,
            heads,
            in_a_row(offsets),
            _kept(longest, decay is not None),
            q_token,
            k_token,
            N=micro,
            K=key,
            V=value,
            BK=keys,
            BV=values,
            NV=blocks,
            SCALE=scale,
            NORMALIZE=normalize,
            EVERY=KEEP_EVERY if decay is None else KEEP_EVERY_GATED,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=warps,
            maxnreg=_registers(warps, offsets),
        )
    if blocks > 1:
        for grad, slab in zip(sums, slabs, strict=True):
            grad.copy_(slab.sum(0))
