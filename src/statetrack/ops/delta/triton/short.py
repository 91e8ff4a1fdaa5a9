"""The short delta rule in chunks of 16 tokens, for bfloat16 inputs and small heads.

One program has one head of one sequence and goes through its chunks, all as products on the matrix
units; one write a token, no gate. Letters as in recurrent.py; k as it is given, not normalised;
r = 1/‖k‖, r_q = scale/‖q‖, u = β e. Forward, with S the state before the chunk:

    e = (I + A)⁻¹ (r V - r² K S)    A_ij = β_j k_i·k_j / ‖k_i‖², i > j
    y = r_q (Q S + P u)             P_tj = q_t·k_j, t ≥ j;    S ← S + Kᵀ u

Backward, from the last chunk to the first, with S the state after it and Z its gradient:

    duᵀ = (Zᵀ Kᵀ + dyᵀ P) (I + L)⁻¹    P_tj = r_q,t q_t·k_j, t ≥ j;  L_ij = r_i² β_i k_i·k_j, i > j
    dβ = du·e,   dV = r β du
    dQ = r_q [dy Sᵀ - D K]              D_tj = dy_t·u_j, j > t
    dK = u Zᵀ + E Q - F K - r [dV Sᵀ - C K]
         E_jt = r_q,t u_j·dy_t, t ≥ j;  F_ji = r_i u_j·dV_i, i > j;  C_ji = dV_j·u_i, i ≥ j
    Zᵀ ← Zᵀ + dyᵀ (r_q Q) - (r² β du)ᵀ K,   Sᵀ ← Sᵀ - uᵀ K

Everything is read from the state after the chunk, so every triangle is the upper one and no product
is made twice for its transpose. States lie transposed, [V, K]: an accumulator is only ever a left
factor. dV, which is needed both ways round, goes to memory, as it has to, and is read again.

Sums of what is carried on (Z, S, du) and D, whose terms cancel, have factors good to 16 bits: two
bfloat16 numbers each. The inverse is good to 11 (float16), or to 16 for keys that are not
normalised, whose products float16 may not hold. Forward it is good to 21: float16, and one Newton
step Y + (I - Y M) Y, whose remainder is exact because Y is a float16 number. Norms are the diagonal
of K Kᵀ, so that equal keys have a quotient of exactly 1.

A product with the zeros of a triangle shows a NaN to tokens of its chunk that came before. So where
the final state is not finite the head is run again, a token at a time.
"""

from typing import Any, no_type_check

import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import fetch, place
from statetrack.ops.delta.spec import NORM_FLOOR
from statetrack.ops.packing import in_a_row

__all__ = ["backward", "forward"]

FLOOR_SQUARED = tl.constexpr(NORM_FLOOR**2)
ROWS = 16


@triton.jit
@no_type_check
def _narrow(x, ASM: tl.constexpr):
    """x in bfloat16. With ASM it is rounded before it changes its layout, not after."""
    if ASM:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=False, pack=2
        )
    else:
        return x.to(tl.bfloat16)


@triton.jit
@no_type_check
def _split(x, ASM: tl.constexpr):
    """(high, low) in bfloat16 with high + low = x to 16 bits; two numbers at a time with ASM."""
    if ASM:
        high, low = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 first, second;
            .reg .f32 rest, other;
            cvt.rn.bf16x2.f32 $0, $3, $2;
            shl.b32 first, $0, 16;
            and.b32 second, $0, 0xffff0000;
            sub.f32 rest, $2, first;
            sub.f32 other, $3, second;
            cvt.rn.bf16x2.f32 $1, other, rest;
            }
            """,
            "=&r,=&r,r,r",
            [x],
            (tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
        return high, low
    else:
        high = x.to(tl.bfloat16)
        return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
@no_type_check
def _product(x, other, into, ASM: tl.constexpr):
    """into + x @ other, x to 16 bits."""
    high, low = _split(x, ASM)
    return tl.dot(low, other, tl.dot(high, other, into))


@triton.jit
@no_type_check
def _wide(x, other, ASM: tl.constexpr):
    """x @ other, both to 16 bits."""
    high, low = _split(x, ASM)
    other_high, other_low = _split(other, ASM)
    result = tl.dot(low, other_high)
    result = tl.dot(high, other_low, result)
    return tl.dot(high, other_high, result)


# ------------------------------------------------------------------------------------- forward


@triton.jit
@no_type_check
def _inverse_upper(system):
    """(I - system)⁻¹ of a strictly upper [16, 16]: by halves, and a Newton step."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    eye = tl.where(i == j, 1.0, 0.0)
    inverse = eye + tl.where(i // 2 == j // 2, system, 0.0)
    high = system.to(tl.float16)
    low = (system - high.to(tl.float32)).to(tl.float16)
    zero = high * 0.0
    narrow = inverse.to(tl.float16)
    for level in tl.static_range(1, 4):
        above = (i >> (level + 1) == j >> (level + 1)) & (i >> level < j >> level)
        part = tl.dot(narrow, tl.where(above, high, zero)).to(tl.float16)
        inverse = tl.dot(part, narrow, inverse)
        narrow = inverse.to(tl.float16)
    rough = narrow.to(tl.float32)
    rest = tl.dot(narrow, high, tl.dot(narrow, low, eye - rough))
    return tl.dot(rest.to(tl.float16), narrow, rough)


@triton.jit
@no_type_check
def _inverse_square(square):
    """1/‖x‖² as high + low, and 1/‖x‖; zeros where x is."""
    is_vector = (square <= FLOOR_SQUARED) == 0  # spelt so that NaN counts as a vector
    square = tl.where(is_vector, square, 1.0)
    r = tl.rsqrt(square)
    high = r * r
    low = tl.fma(-square, high, 1.0) * high  # one Newton step
    zero = square * 0.0
    return (
        tl.where(is_vector, high, zero),
        tl.where(is_vector, low, zero),
        tl.where(is_vector, r, zero),
    )


@triton.jit
@no_type_check
def _diagonal(x):
    """The diagonal of [16, 16]."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    return tl.sum(tl.where(i == j, x, 0.0), 1)


@triton.jit(do_not_specialize=["T"])
@no_type_check
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    beta_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    e_ptr,
    coef_ptr,
    offsets_ptr,
    T,
    H,
    P,
    q_token,
    k_token,
    v_token,
    K: tl.constexpr,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SAVE: tl.constexpr,
    ASM: tl.constexpr,
):
    """y and the final state of one head of one sequence; saves e and the coefficients."""
    head = tl.program_id(0).to(tl.int64)
    h = head % H
    b, first_token, length = place(offsets_ptr, head // H, T, P)
    rows, keys, values = tl.arange(0, ROWS), tl.arange(0, K), tl.arange(0, V)
    outside = keys[None, :] * V + values[:, None]  # of a state [K, V], read as [V, K]
    final_ptr += head * (K * V)
    if offsets_ptr is not None:
        if length == 0:
            nothing = tl.zeros([V, K], tl.float32)
            if start_ptr is not None:
                nothing += tl.load(start_ptr + head * (K * V) + outside)
            tl.store(final_ptr + outside, nothing)
            return
    token = b * T + first_token
    i, j = rows[:, None], rows[None, :]
    q_ptr += token * q_token + h * K
    k_ptr += token * k_token + h * K
    v_ptr += token * v_token + h * V
    y_ptr += (token * H + h) * V
    e_ptr += (token * H + h) * V
    beta_ptr += token * H + h
    coef_ptr += ((b * H + h) * T + first_token) * 5
    k_tile = (rows * k_token)[:, None] + keys[None, :]
    q_tile = (rows * q_token)[:, None] + keys[None, :]
    v_tile = (rows * v_token)[:, None] + values[None, :]
    y_tile = (rows * (H * V))[:, None] + values[None, :]

    if ASM:  # 64 tokens at once: chunk by chunk each load would wait for memory
        ahead = tl.minimum(tl.arange(0, 64), length - 1)
        fetch(k_ptr + ahead * k_token)
        fetch(q_ptr + ahead * q_token)
        fetch(v_ptr + ahead * v_token)
        fetch(beta_ptr + ahead * H)
    state = tl.zeros([V, K], tl.float32)
    if start_ptr is not None:
        start_ptr += head * (K * V)
        state = tl.load(start_ptr + outside).to(tl.float32)

    # The tiles of a chunk are loaded while the one before is computed.
    inside = rows < length
    k_next = tl.load(k_ptr + k_tile, mask=inside[:, None], other=0.0)
    q_next = tl.load(q_ptr + q_tile, mask=inside[:, None], other=0.0)
    v_next = tl.load(v_ptr + v_tile, mask=inside[:, None], other=0.0)
    beta_next = tl.load(beta_ptr + rows * H, mask=inside, other=0.0).to(tl.float32)
    first = 0
    while first < length:  # in a `for`, Triton carries the state in several layouts
        inside = rows < length - first
        k, q, v, beta = k_next, q_next, v_next, beta_next
        later = first + ROWS
        follows = rows < length - later
        beta_next = tl.load(beta_ptr + (later + rows) * H, mask=follows, other=0.0).to(tl.float32)
        k_next = tl.load(k_ptr + later * k_token + k_tile, mask=follows[:, None], other=0.0)
        q_next = tl.load(q_ptr + later * q_token + q_tile, mask=follows[:, None], other=0.0)
        v_next = tl.load(v_ptr + later * v_token + v_tile, mask=follows[:, None], other=0.0)
        k_t, q_t = tl.trans(k), tl.trans(q)
        ratio = tl.dot(k, k_t)
        if NORMALIZE:
            high, low, r = _inverse_square(_diagonal(ratio))
            ratio = tl.fma(ratio, high[None, :], ratio * low[None, :])
            _, _, r_q = _inverse_square(_diagonal(tl.dot(q, q_t)))
            r_q *= SCALE
        else:
            r_q = tl.full([ROWS], SCALE, tl.float32)
        inverse = _inverse_upper(tl.where(i < j, ratio * -beta[:, None], 0.0))

        # e, transposed: a product with the unit matrix leaves v where accumulators are
        state_high, state_low = _split(state, ASM)
        read = tl.dot(state_low, k_t, tl.dot(state_high, k_t))
        x = tl.dot(tl.trans(v), tl.where(i == j, 1.0, 0.0).to(tl.bfloat16))
        if NORMALIZE:
            x = x * r[None, :] - read * (high + low)[None, :]
        else:
            x -= read
        e = _wide(x, inverse, ASM)
        u_high, u_low = _split(e * beta[None, :], ASM)

        scores = tl.where(i <= j, tl.dot(k, q_t), 0.0)
        scores_high, scores_low = _split(scores, ASM)
        y = tl.dot(state_low, q_t, tl.dot(state_high, q_t))
        y = tl.dot(u_high, scores_low, y)
        y = tl.dot(u_low, scores_high, y)
        y = tl.dot(u_high, scores_high, y)
        state = tl.dot(u_low, k, tl.dot(u_high, k, state))
        y = tl.trans(_narrow(y * r_q[None, :], ASM))
        tl.store(y_ptr + first * (H * V) + y_tile, y, mask=inside[:, None])
        if SAVE:
            tl.store(e_ptr + first * (H * V) + y_tile, tl.trans(e), mask=inside[:, None])
            at = coef_ptr + (first + rows) * 5
            tl.store(at, beta, mask=inside)
            if NORMALIZE:
                tl.store(at + 1, r, mask=inside)
                tl.store(at + 2, high, mask=inside)
                tl.store(at + 3, low, mask=inside)
            tl.store(at + 4, r_q, mask=inside)
        first = later
    tl.store(final_ptr + outside, state)
    if (tl.abs(tl.sum(state)) < float("inf")) == 0:
        tl.debug_barrier()  # what is stored above is stored again
        _token_by_token(
            q_ptr, k_ptr, v_ptr, beta_ptr, start_ptr, y_ptr, final_ptr, e_ptr, coef_ptr,
            length, H, q_token, k_token, v_token, K, V, SCALE, NORMALIZE, SAVE,
        )  # fmt: skip


@triton.jit
@no_type_check
def _token_by_token(
    q_ptr,
    k_ptr,
    v_ptr,
    beta_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    e_ptr,
    coef_ptr,
    length,
    H,
    q_token,
    k_token,
    v_token,
    K: tl.constexpr,
    V: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SAVE: tl.constexpr,
):
    """The whole head again: nothing can reach a token that came before."""
    keys, values = tl.arange(0, K), tl.arange(0, V)
    at = keys[:, None] * V + values[None, :]
    state = tl.zeros([K, V], tl.float32)
    if start_ptr is not None:
        state = tl.load(start_ptr + at).to(tl.float32)
    t = 0
    while t < length:
        k = tl.load(k_ptr + t * k_token + keys).to(tl.float32)
        q = tl.load(q_ptr + t * q_token + keys).to(tl.float32)
        v = tl.load(v_ptr + t * v_token + values).to(tl.float32)
        beta = tl.load(beta_ptr + t * H).to(tl.float32)
        read = tl.sum(state * k[:, None], 0)
        r_q = SCALE
        if NORMALIZE:
            high, low, r = _inverse_square(tl.sum(k * k, 0))
            _, _, r_q = _inverse_square(tl.sum(q * q, 0))
            r_q *= SCALE
            e = (r * v - high * read) - low * read
        else:
            e = v - read
        state += k[:, None] * (beta * e)[None, :]
        tl.store(y_ptr + t * (H * V) + values, r_q * tl.sum(state * q[:, None], 0))
        if SAVE:
            tl.store(e_ptr + t * (H * V) + values, e)
            tl.store(coef_ptr + t * 5, beta)
            if NORMALIZE:
                tl.store(coef_ptr + t * 5 + 1, r)
                tl.store(coef_ptr + t * 5 + 2, high)
                tl.store(coef_ptr + t * 5 + 3, low)
            tl.store(coef_ptr + t * 5 + 4, r_q)
        t += 1
    tl.store(final_ptr + at, state)


# ------------------------------------------------------------------------------------ backward


@triton.jit
@no_type_check
def _inverse(system, NORMALIZE: tl.constexpr, ASM: tl.constexpr):
    """(I + system)⁻¹ of a strictly lower [16, 16], by halves, so that nothing grows on the way."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, system, 0.0)
    for level in tl.static_range(1, 4):
        below = (i >> (level + 1) == j >> (level + 1)) & (i >> level > j >> level)
        part = tl.where(below, system, 0.0)
        if NORMALIZE:
            part = tl.dot(part.to(tl.float16), inverse.to(tl.float16))
            inverse -= tl.dot(inverse.to(tl.float16), part.to(tl.float16))
        else:
            part = _wide(part, inverse, ASM)
            inverse -= _wide(inverse, part, ASM)
    return inverse


@triton.jit(do_not_specialize=["T"])
@no_type_check
def _backward_kernel(
    q_ptr,
    k_ptr,
    final_ptr,
    e_ptr,
    coef_ptr,
    dy_ptr,
    dfinal_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    dbeta_ptr,
    dstart_ptr,
    offsets_ptr,
    T,
    H,
    P,
    q_token,
    k_token,
    K: tl.constexpr,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    ASM: tl.constexpr,
):
    """All gradients of one head of one sequence."""
    head = tl.program_id(0).to(tl.int64)
    h = head % H
    b, first_token, length = place(offsets_ptr, head // H, T, P)
    if offsets_ptr is not None:
        if length == 0:
            if dstart_ptr is not None:
                at = head * (K * V) + tl.arange(0, K)[None, :] * V + tl.arange(0, V)[:, None]
                nothing = tl.zeros([V, K], tl.float32)
                if dfinal_ptr is not None:
                    nothing += tl.load(dfinal_ptr + at)
                tl.store(dstart_ptr + at, nothing)
            return
    token = b * T + first_token
    rows, keys, values = tl.arange(0, ROWS), tl.arange(0, K), tl.arange(0, V)
    outside = keys[None, :] * V + values[:, None]  # of a state [K, V], read as [V, K]
    i, j = rows[:, None], rows[None, :]
    q_ptr += token * q_token + h * K
    k_ptr += token * k_token + h * K
    dq_ptr += (token * H + h) * K
    dk_ptr += (token * H + h) * K
    e_ptr += (token * H + h) * V
    dy_ptr += (token * H + h) * V
    dv_ptr += (token * H + h) * V
    dbeta_ptr += token * H + h
    coef_ptr += ((b * H + h) * T + first_token) * 5

    if ASM:  # 64 tokens at once: chunk by chunk each load would wait for memory
        ahead = tl.minimum(tl.arange(0, 64), length - 1)
        fetch(k_ptr + ahead * k_token)
        fetch(q_ptr + ahead * q_token)
        fetch(dy_ptr + ahead * (H * V))
        fetch(e_ptr + ahead * (H * V))
        if V > 16:
            fetch(e_ptr + ahead * (H * V) + 16)
        fetch(coef_ptr + tl.minimum(tl.arange(0, 32) * 16, length * 5 - 1))
    state = -tl.load(final_ptr + head * (K * V) + outside)  # -Sᵀ: products are only ever added
    dstate = tl.zeros([V, K], tl.float32)
    if dfinal_ptr is not None:
        dstate = tl.load(dfinal_ptr + head * (K * V) + outside)

    c = (length + ROWS - 1) // ROWS - 1
    while c >= 0:  # in a `for`, Triton carries a state in three layouts
        first = c * ROWS
        inside = rows < length - first
        tile = inside[:, None]
        row_k = ((first + rows) * (H * K))[:, None] + keys[None, :]
        row_v = ((first + rows) * (H * V))[:, None] + values[None, :]
        at = coef_ptr + (first + rows) * 5
        more = (c > 0) or (dstart_ptr is not None)
        beta = tl.load(at, mask=inside, other=0.0)
        if NORMALIZE:
            r = tl.load(at + 1, mask=inside, other=0.0)
            square = tl.load(at + 2, mask=inside, other=0.0)
        else:
            r = beta * 0.0 + 1.0
            square = r

        # du, and with it dβ, dv and the gradient of the state before
        k = tl.load(
            k_ptr + ((first + rows) * k_token)[:, None] + keys[None, :], mask=tile, other=0.0
        )
        k_t = tl.trans(k)
        system = tl.where(i > j, tl.dot(k, k_t) * (square * beta)[:, None], 0.0)
        inverse = _inverse(system, NORMALIZE, ASM)
        q = tl.load(
            q_ptr + ((first + rows) * q_token)[:, None] + keys[None, :], mask=tile, other=0.0
        )
        r_q = tl.load(at + 4, mask=inside, other=0.0)
        scaled = _narrow(q.to(tl.float32) * r_q[:, None], ASM)
        scores = tl.where(i >= j, tl.dot(scaled, k_t), 0.0).to(tl.bfloat16)
        dy = tl.load(dy_ptr + row_v, mask=tile, other=0.0)
        dy_t = tl.trans(dy)
        du_t = _product(dstate, k_t, tl.zeros([V, ROWS], tl.float32), ASM)
        du_t = _wide(tl.dot(dy_t, scores, du_t), inverse, ASM)
        e = tl.load(e_ptr + row_v, mask=tile, other=0.0)
        u = e * beta[:, None]
        u_high = _narrow(u, ASM)
        u_t = tl.trans(u_high)
        u_low_t = tl.trans(_narrow(u - u_high.to(tl.float32), ASM))
        dk = tl.dot(u_high, dstate.to(tl.bfloat16))
        if more:
            dstate = tl.dot(dy_t, scaled, dstate)
            dstate = _product(du_t * -(square * beta)[None, :], k, dstate, ASM)
        du = tl.trans(du_t)
        tl.store(dbeta_ptr + (first + rows) * H, tl.sum(du * e, 1), mask=inside)
        tl.store(dv_ptr + row_v, du * (r * beta)[:, None], mask=tile)
        tl.debug_barrier()

        dv = tl.load(dv_ptr + row_v, mask=tile, other=0.0)
        part = tl.where(i < j, tl.dot(u_high, tl.trans(dv)) * -r[None, :], 0.0)
        dk = tl.dot(part.to(tl.bfloat16), k, dk)
        part = tl.where(i <= j, tl.dot(u_high, dy_t), 0.0)
        dk = tl.dot(part.to(tl.bfloat16), scaled, dk)
        state_now = state.to(tl.bfloat16)
        part = tl.where(i <= j, tl.dot(dv, u_t), 0.0)
        dk += tl.dot(part.to(tl.bfloat16), k, tl.dot(dv, state_now)) * r[:, None]
        if NORMALIZE:
            wide = k.to(tl.float32)
            dk -= wide * (tl.sum(wide * dk, 1) * square)[:, None]
        tl.store(dk_ptr + row_k, dk, mask=tile)

        part = tl.where(i < j, tl.dot(dy, u_low_t, tl.dot(dy, u_t)), 0.0)
        dq = _product(part, k, tl.dot(dy, state_now), ASM) * -r_q[:, None]
        if NORMALIZE:
            r_unit = r_q * (1.0 / SCALE if SCALE != 0 else 0.0)
            wide = q.to(tl.float32)
            dq -= wide * (tl.sum(wide * dq, 1) * r_unit * r_unit)[:, None]
        tl.store(dq_ptr + row_k, dq, mask=tile)

        if more:  # the state before
            state = tl.dot(u_low_t, k, tl.dot(u_t, k, state))
        c -= 1
    if dstart_ptr is not None:
        tl.store(dstart_ptr + head * (K * V) + outside, dstate)


def _constants(state: Tensor, normalize: bool, scale: float) -> dict[str, Any]:
    """What both kernels are compiled for."""
    return {
        "K": state.shape[2],
        "V": state.shape[3],
        "ROWS": ROWS,
        "SCALE": scale,
        "NORMALIZE": normalize,
        "ASM": not triton.knobs.runtime.interpret,
        "num_warps": 1,
        "num_stages": 1,
    }


def forward(
    q: tuple[Tensor, int],
    k: tuple[Tensor, int],
    v: tuple[Tensor, int],
    beta: Tensor,
    normalize: bool,
    scale: float,
    initial_state: Tensor | None,
    save: bool,
    offsets: Tensor | None,
    y: Tensor,
    state: Tensor,
    e: Tensor,
    coef: Tensor,
) -> None:
    """Fills y, the final state and, to save, e and the coefficients; q, k, v as in `backward`."""
    _, time, heads, _ = y.shape
    launch(
        _forward_kernel,
        (len(state) * heads,),
        q[0],
        k[0],
        v[0],
        beta,
        initial_state,
        y,
        state,
        e,
        coef,
        offsets,
        time,
        heads,
        in_a_row(offsets),
        q[1],
        k[1],
        v[1],
        SAVE=save,
        **_constants(state, normalize, scale),
    )


def backward(
    q: tuple[Tensor, int],
    k: tuple[Tensor, int],
    normalize: bool,
    scale: float,
    offsets: Tensor | None,
    state: Tensor,
    e: Tensor,
    coef: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dbeta: Tensor,
    dstart: Tensor | None,
) -> None:
    """Fills the gradients; q and k with the numbers from one token to the next."""
    _, time, heads, _ = dy.shape
    launch(
        _backward_kernel,
        (len(state) * heads,),
        q[0],
        k[0],
        state,
        e,
        coef,
        dy,
        dstate,
        dq,
        dk,
        dv,
        dbeta,
        dstart,
        offsets,
        time,
        heads,
        in_a_row(offsets),
        q[1],
        k[1],
        **_constants(state, normalize, scale),
    )
