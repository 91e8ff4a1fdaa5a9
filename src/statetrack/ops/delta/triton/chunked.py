"""Kernels of `delta_product` for long sequences: chunks of matrix products, forward and backward.

Letters: B batch, T time, N micro-steps per token, H heads, K key size, V value size. The rows of a
chunk are its micro-steps, R = 64 of them (63 if N = 3: a chunk holds whole tokens), with keys as
given. Per row r = 1/‖k‖ (1 where keys are taken as they are). Gates: D_ij is the product of those
after row j up to row i, g_i that from the start of the chunk to i, d_j that after j to its end, γ
that of the chunk (all 1 without a gate). With S the state before the chunk, e = v - Sᵀk the error
a row sees when it writes (for unit keys), and M = I + A, A_ij = (k_i·k_j / ‖k_i‖²) D_ij β_j below
the diagonal:

    X = r V - r² g (K S)        e = M⁻¹ X        S' = γ S + Kᵀ (d β e)
    y = ρ (Q S) + P e           P_tj = r_q D_tj β_j (q_t·k_j) for rows j up to the end of token t

with r_q = scale/‖q‖ and ρ = r_q g. Backwards, Z being the gradient of S' and that of y given:

    E = Pᵀ dy + d β (K Z)       λ = M⁻ᵀ E        dS = γ Z + Qᵀ (ρ dy) - Kᵀ (r² g λ)      dV = r λ

Kernels. `_prepare_kernel` makes M⁻¹, P and the vectors of chunks. `_forward_kernel` takes the
state along, `_backward_kernel` its gradient back. Where S and e are saved anyway, y is not made
along the way but by `_outputs_kernel`, over all chunks at once. So does `_gradients_kernel` with
what is left, from the saved S, Z and e; with a gate, `_gate_kernel` comes after it. States are held
transposed, [V, K]: then the state, X, e, E and λ are always the left factor of the next product and
stay in registers, and what comes from memory (K, Q, P, M⁻¹) is the right one.

A program takes 128 values of a state along, or fewer where heads are few, so that there are enough
programs (`CARRY`); with keys longer than 128 it takes 32 at most (`CARRY_LONG`). There is a second
form of the two kernels for that, `_narrow_forward_kernel` and `_narrow_backward_kernel`: the state
lies as it is, [K, V], and is the right factor, in shared memory. High and low part of a number are
two columns of it, and one product makes both. Forward, a long walk goes in spans (`_spans`), and
chunks are prepared and y is made beside it.

A chunk holds tokens of one sequence. Where a row holds P of them (`Packing`), it has places for
⌈T/tokens⌉ + P - 1 chunks (_triton/rows.py), and a walk is that of one sequence, not of a row.

Gates of a chunk are mild if none is tiny and their product is not: then D_ij = g_i / g_j, factors
of rows and columns that there are anyway, and the gradient of a gate is a sum divided by the gate.
In the other chunks D is made of sums of logarithms and kept, and nothing is divided by a gate.

Precision. Rounding an entry of the state to bfloat16 at every chunk would be worth percents of it
at β = 2. Products that feed the state are therefore done with both factors good to 16 bits at
least: bfloat16 inputs are exact as they are, and what was computed goes in as a sum of two bfloat16
numbers, high + low. M⁻¹, and everything with float32 inputs is in three TF32 products (21 bits).
k_i·k_j / ‖k_i‖² is exactly 1 where the keys are equal, because norms are taken from K Kᵀ itself: so
a repeated reflection is one, for ever. Products that end in y or in a gradient of the inputs use
the dtype of the inputs.
"""

import itertools
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._register import empty_grads
from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.beside import Beside
from statetrack.ops._triton.rows import chunk_at, first_chunk, place
from statetrack.ops._triton.runtime import contiguous, on_device_of, power_of_two, triton_dtype
from statetrack.ops.delta.spec import NORM_FLOOR, SPEC, Inputs
from statetrack.ops.packing import in_a_row

__all__ = ["backward", "empty", "forward"]

FLOOR_SQUARED = tl.constexpr(NORM_FLOOR**2)
ROWS = 64  # of a chunk
MULTIPROCESSORS = 132  # of an H200; a smaller chip takes more turns
GATE_OPTIONS = {"num_warps": 4}
OUTPUTS_OPTIONS = {"num_warps": 4}
SPAN = 128  # chunks, at least, that few long sequences are walked along at a time

CARRY: dict[int, tuple[bool, dict[str, int]]] = {
    16: (True, {"num_warps": 4, "num_stages": 3}),
    32: (True, {"num_warps": 4, "num_stages": 3}),
    64: (False, {"num_warps": 4, "num_stages": 2}),
    128: (False, {"num_warps": 8, "num_stages": 2}),
}
"""By the values a program takes along: whether in the narrow form, and the launch options."""
SHORT_KEY = 128
CARRY_LONG: dict[int, tuple[bool, dict[str, int]]] = {
    16: (True, {"num_warps": 4, "num_stages": 2}),
    32: (True, {"num_warps": 8, "num_stages": 2}),
}
"""The same for keys longer than `SHORT_KEY`: more values would not fit into the registers."""

_LEAST_GATE = tl.constexpr(2.0**-40)  # but for zero
_TINY_GATE = tl.constexpr(2.0**-7)  # no gradient is divided by a smaller one
_MILD = tl.constexpr(-80.0)  # the logarithm of the product of mild gates is larger
_ZERO_MARK = tl.constexpr(256)  # more than the rows of a chunk

# Rows of the vectors kept per chunk; from `_UNTIL` on only with a gate.
_R = tl.constexpr(0)  # 1/‖k‖
_READ = tl.constexpr(1)  # g/‖k‖²
_BETA = tl.constexpr(2)
_R_Q = tl.constexpr(3)  # scale/‖q‖, per token
_UNTIL = tl.constexpr(4)  # d
_SINCE = tl.constexpr(5)  # g
_RHO = tl.constexpr(6)  # r_q g, per token
_WRITE = tl.constexpr(7)  # d β
_LEFT = tl.constexpr(8)  # D_ij = left_i right_j where gates are mild, and 0 elsewhere
_RIGHT = tl.constexpr(9)

# Rows of the sums that `_gradients_kernel` leaves for `_gate_kernel`.
_SINCE_Q = tl.constexpr(0)  # the gradient of g as reads see it, per token
_SINCE_K = tl.constexpr(1)  # as writes see it
_ALONG = tl.constexpr(2)  # β_j k_j·(Z e_j), the gradient of d
_OVERLAP = tl.constexpr(3)  # Σ S ∘ Z, the gradient of γ, one number
_READS = tl.constexpr(4)  # Σ_j of D ∘ its gradient as reads see it, per token
_NET = tl.constexpr(5)  # the same as writes see it, less Σ_i of both
_SUMS = tl.constexpr(6)


# ------------------------------------------------------------------------------------- helpers


@triton.jit
@no_type_check
def _rounded(x):
    """float32 numbers rounded to 8 bits, the nearest and of two the larger, and still float32.

    By integers: a single conversion to bfloat16 takes eight times as long, two at a time do not.
    """
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def _eleven_bits(x):
    """The same with 11 bits, those that a TF32 product reads."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def _split(x, like):
    """x as high + low in the dtype of `like`, or x and nothing worth adding if that is wide."""
    if like.dtype == tl.bfloat16:
        high = _rounded(x)
        return high.to(like.dtype), (x - high).to(like.dtype)
    else:
        high = x.to(like.dtype)
        return high, (x - high.to(x.dtype)).to(like.dtype)


@triton.jit
@no_type_check
def _product(x, other, into, PRECISION: tl.constexpr):
    """into + x @ other for x of full precision and `other` exact."""
    if other.dtype == tl.bfloat16:
        high, low = _split(x, other)
        into = tl.dot(high, other, into)
        return tl.dot(low, other, into)
    else:
        return tl.dot(x, other, into, input_precision=PRECISION, out_dtype=into.dtype)


@triton.jit
@no_type_check
def _leaf(x, other, into, PRECISION: tl.constexpr):
    """into + x @ other for results that no later token sees."""
    return tl.dot(x.to(other.dtype), other, into, input_precision=PRECISION, out_dtype=into.dtype)


@triton.jit
@no_type_check
def _columns(x, PARTS: tl.constexpr, like):
    """x as the right factor of a product: of two parts, high and low, next to each other."""
    if PARTS == 2:
        high, low = _split(x, like)
        both = tl.permute(tl.join(high, low), [0, 2, 1])
        return tl.reshape(both, [x.shape[0], 2 * x.shape[1]])
    else:
        return x.to(like.dtype)


@triton.jit
@no_type_check
def _sum_of_parts(x, PARTS: tl.constexpr):
    """What a product with `_columns` stands for: the two parts of every column added."""
    if PARTS == 2:
        both = tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2])
        high, low = tl.split(tl.permute(both, [0, 2, 1]))
        return high + low
    else:
        return x


@triton.jit
@no_type_check
def _as_product(x, factor: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr):
    """factor · x, by a product with the identity: in the registers where a product leaves it.

    Sums of it times other products then stay there. `factor` is a power of two or its negative.
    """
    i = tl.arange(0, x.shape[0])
    one = tl.where(i[:, None] == i[None, :], factor, 0.0).to(x.dtype)
    return tl.dot(one, x, input_precision=PRECISION, out_dtype=COMPUTE)


@triton.jit
@no_type_check
def _load(at, rows, stride, columns, row_count, column_count):
    """The tile whose row i begins at at + i·stride; zeros beyond the counts."""
    inside = ((rows >= 0) & (rows < row_count))[:, None] & (columns < column_count)[None, :]
    return tl.load(at + (rows[:, None] * stride + columns[None, :]), mask=inside, other=0.0)


@triton.jit
@no_type_check
def _load_state(at, values, keys, V, K, BY_KEY: tl.constexpr):
    """A tile [values, keys] of a saved state or gradient of one."""
    if BY_KEY:
        return tl.trans(_load(at, keys, V, values, K, V))
    else:
        return _load(at, values, K, keys, V, K)


@triton.jit
@no_type_check
def _store(at, rows, stride, columns, row_count, column_count, x):
    """The counterpart of `_load`."""
    inside = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    to = at + (rows[:, None] * stride + columns[None, :])
    tl.store(to, x.to(at.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _locate(program, H, chunks, begin, count):
    """(batch row, head, chunk, tile) of a program; neighbours share tokens, not heads.

    There are programs for `count` chunks of every head, from chunk `begin` on.
    """
    h = program % H
    rest = program // H
    c = begin + rest % count
    b = rest // count
    return b, h, c, (b * H + h) * chunks + c


@triton.jit
@no_type_check
def _walk(offsets_ptr, head, T, P, chunks, H, begin, count, TOKENS: tl.constexpr):
    """(row, first token in it, tokens, first chunk, chunks, tile of the sequence's first chunk).

    Of the walk along one head of one sequence. Where a row is one sequence, it takes `count` chunks
    from chunk `begin` on; where it holds several, all chunks of its own.
    """
    row, first, length = head // H, 0, T
    tile = head * chunks
    if offsets_ptr is not None:
        sequence, h = head // H, head % H
        row, first, length = place(offsets_ptr, sequence, T, P)
        begin, count = 0, tl.cdiv(length, TOKENS)
        # An empty sequence may have its place behind the last one; nothing of it is used.
        nearest = tl.minimum(first_chunk(first, sequence % P, TOKENS), chunks - 1)
        tile = (row * H + h) * chunks + nearest
    return row, first, length, begin, count, tile


@triton.jit
@no_type_check
def _row_gates(decay_at, rows, count, N: tl.constexpr, H, COMPUTE: tl.constexpr):
    """The gate of each row of a chunk: the token's before its first micro-step, else 1."""
    is_gate = (rows % N == 0) & (rows < count) & (rows >= 0)
    return tl.load(decay_at + (rows // N) * H, mask=is_gate, other=1.0).to(COMPUTE)


@triton.jit
@no_type_check
def _token_gates(decay_at, tokens, count, H, COMPUTE: tl.constexpr):
    return tl.load(decay_at + tokens * H, mask=tokens < count, other=1.0).to(COMPUTE)


@triton.jit
@no_type_check
def _log_gates(gates):
    """Sums from the first gate to each one: of the logarithms, and of marks for signs and zeros.

    A logarithm stays above -40, so that the sums keep their digits; a factor of 2⁻⁴⁰ is worth
    nothing next to what is written after it.
    """
    size = tl.abs(gates)
    size = tl.where(size < _LEAST_GATE, _LEAST_GATE, size)  # NaN stays
    marks = tl.where(gates < 0, 1, 0) + tl.where(gates == 0, _ZERO_MARK, 0)
    return tl.cumsum(tl.log2(size), 0), tl.cumsum(marks, 0)


@triton.jit
@no_type_check
def _product_of_gates(log, marks):
    """The product of the gates between two sums of `_log_gates`, from the differences of these."""
    size = tl.exp2(log)
    return tl.where(marks >= _ZERO_MARK, 0.0, tl.where(marks % 2 == 0, size, -size))


@triton.jit
@no_type_check
def _mildness(gates, log):
    """Whether the gates of a chunk are mild, and the logarithm c with D_ij = (g_i/2ᶜ) (2ᶜ/g_j).

    Mild: none is tiny, and neither factor is so large or so small that a product with it is lost.
    """
    total = tl.min(log, 0)
    mild = (tl.min(tl.where(tl.abs(gates) >= _TINY_GATE, 1, 0), 0) == 1) & (total >= _MILD)
    return mild, tl.floor(total / 2)  # so that powers of two stay exact


@triton.jit
@no_type_check
def _inverse_square(square, NORMALIZE: tl.constexpr):
    """1/‖x‖² as high + low, and 1/‖x‖, from ‖x‖²; zeros where x counts as zero."""
    if NORMALIZE:
        # spelt so that NaN counts as a vector
        is_vector = (square <= FLOOR_SQUARED) == 0
        square = tl.where(is_vector, square, 1.0)
        high = 1.0 / square
        low = tl.fma(-square, high, 1.0) * high  # one Newton step
        r = tl.rsqrt(square)
        return (
            tl.where(is_vector, high, 0.0),
            tl.where(is_vector, low, 0.0),
            tl.where(is_vector, r, 0.0),
        )
    else:
        one = square * 0 + 1.0
        return one, one - one, one


# --------------------------------------------------------------------- what a chunk is made of


@triton.jit
@no_type_check
def _times(x, other, PRECISION: tl.constexpr, COMPUTE: tl.constexpr):
    """x @ other; of float32, good to 21 bits by three TF32 products.

    Triton's own three of them look for infinities and NaN in every factor. These come out as NaN
    here, which is enough: then the state is NaN, and the head is done token by token.
    """
    if PRECISION == "tf32x3":
        x_high, other_high = _eleven_bits(x), _eleven_bits(other)
        into = tl.dot(x - x_high, other_high, input_precision="tf32", out_dtype=COMPUTE)
        into = tl.dot(x_high, other - other_high, into, input_precision="tf32", out_dtype=COMPUTE)
        return tl.dot(x_high, other_high, into, input_precision="tf32", out_dtype=COMPUTE)
    else:
        return tl.dot(x, other, input_precision=PRECISION, out_dtype=COMPUTE)


@triton.jit
@no_type_check
def _invert(at, PRECISION: tl.constexpr, COMPUTE: tl.constexpr):
    """Turns the strictly lower A [64, 64] at `at` into (I + A)⁻¹, but for the zeros above.

    By halves, [[L, 0], [B, M]]⁻¹ = [[L⁻¹, 0], [-M⁻¹ B L⁻¹, M⁻¹]]: blocks of 2, 4, 8 and 16 on the
    diagonal, then of 32 and 64. Every number on the way is part of the inverse of a smaller system,
    so nothing grows that the result does not have; a power series would. Memory that only this
    program sees serves to cut a matrix into blocks.
    """
    blocks = tl.arange(0, 4)[:, None, None]
    i, j = tl.arange(0, 16)[None, :, None], tl.arange(0, 16)[None, None, :]
    here = at + blocks * (16 * 64 + 16) + i * 64 + j
    a = tl.load(here)
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where((i // 2 == j // 2) & (i > j), a, 0.0)
    for level in tl.static_range(1, 4):
        below = (i >> (level + 1) == j >> (level + 1)) & (i >> level > j >> level)
        part = tl.where(below, a, 0.0)
        part = _times(part, inverse, PRECISION, COMPUTE)
        inverse -= _times(inverse, part, PRECISION, COMPUTE)
    tl.store(here, inverse)
    tl.debug_barrier()
    here = at + tl.arange(0, 2)[:, None, None] * (32 * 64 + 32) + i * 64 + j
    part = _times(tl.load(here + 16 * 64), tl.load(here), PRECISION, COMPUTE)
    part = _times(tl.load(here + 16 * 64 + 16), part, PRECISION, COMPUTE)
    tl.store(here + 16 * 64, -part)
    tl.store(here + 16, tl.zeros([2, 16, 16], COMPUTE))
    tl.debug_barrier()
    here = at + tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 32)[None, :]
    part = _times(tl.load(here + 32 * 64), tl.load(here), PRECISION, COMPUTE)
    part = _times(tl.load(here + 32 * 64 + 32), part, PRECISION, COMPUTE)
    tl.store(here + 32 * 64, -part)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["T", "P", "chunks", "begin", "count"])
@no_type_check
def _prepare_kernel(
    q_ptr,
    k_ptr,
    beta_ptr,
    decay_ptr,
    system_ptr,
    inverse_ptr,
    attention_ptr,
    vectors_ptr,
    between_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    begin,
    count,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    FIELDS: tl.constexpr,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    EXACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """M⁻¹ [R, parts, R], P [tokens, R] and the vectors of a chunk of a head.

    Where gates are not mild also D, both ways round; where they are, it is left_i right_j.

    A and its inverse may lie in the same memory: one is read whole before the other is written.
    """
    b, h, c, tile = _locate(tl.program_id(0).to(tl.int64), H, chunks, begin, count)
    first, end = chunk_at(offsets_ptr, b, c, T, P, TOKENS)
    if offsets_ptr is not None:
        if first == end:  # no chunk here, and what is saved in its place is never read
            return
    # As many tokens as rows: fewer than 64 would be multiplied on the slower matrix units.
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, ROWS), tl.arange(0, BK)
    token_count = tl.minimum(end - first, TOKENS)
    row_count = token_count * N
    first_token = (b * T + first) * H + h
    first_row = (b * T + first) * N * H + h
    k = _load(k_ptr + first_row * K, rows, H * K, keys, row_count, K)
    q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)
    beta = tl.load(beta_ptr + first_row + rows * H, mask=rows < row_count, other=0.0).to(COMPUTE)

    gram = tl.dot(k, tl.trans(k), input_precision=PRECISION, out_dtype=COMPUTE)
    square = tl.sum(tl.where(rows[:, None] == rows[None, :], gram, 0.0), 1)
    high, low, r = _inverse_square(square, NORMALIZE)
    wide = q.to(COMPUTE)
    _, _, r_q = _inverse_square(tl.sum(wide * wide, 1), NORMALIZE)
    r_q *= SCALE
    at = vectors_ptr + tile * (FIELDS * ROWS)
    tl.store(at + _R * ROWS + rows, r)
    tl.store(at + _BETA * ROWS + rows, beta)
    tl.store(at + _R_Q * ROWS + tokens, r_q)
    read, right, left_q = high + low, beta, r_q
    if decay_ptr is not None:
        decay_at = decay_ptr + first_token
        gates = _row_gates(decay_at, rows, row_count, N, H, COMPUTE)
        log, marks = _log_gates(gates)
        since = _product_of_gates(log, marks)
        if N == 1:
            log_q, marks_q, since_q = log, marks, since
        else:
            gates_q = _token_gates(decay_at, tokens, token_count, H, COMPUTE)
            log_q, marks_q = _log_gates(gates_q)
            since_q = _product_of_gates(log_q, marks_q)
        last = rows == ROWS - 1
        until = _product_of_gates(
            tl.sum(tl.where(last, log, 0.0), 0) - log, tl.sum(tl.where(last, marks, 0), 0) - marks
        )
        mild, middle = _mildness(gates, log)
        around = tl.where(mild, log - middle, 0.0)
        left, factor = _product_of_gates(around, marks), _product_of_gates(-around, marks)
        tl.store(at + _LEFT * ROWS + rows, tl.where(mild, left, 0.0))
        tl.store(at + _RIGHT * ROWS + rows, factor)
        tl.store(at + _UNTIL * ROWS + rows, until)
        tl.store(at + _SINCE * ROWS + rows, since)
        tl.store(at + _RHO * ROWS + tokens, r_q * since_q)
        tl.store(at + _WRITE * ROWS + rows, beta * until)
        read *= since
        if mild:
            right *= factor
            left_q *= _product_of_gates(log_q - middle, marks_q)
    tl.store(at + _READ * ROWS + rows, read)

    system = tl.fma(gram, high[:, None], gram * low[:, None]) * right[None, :]
    if decay_ptr is not None:
        if mild:
            system *= left[:, None]
        else:
            i, j = rows[:, None], rows[None, :]
            turn = tl.where(i < j, -1, 1)
            between = _product_of_gates(
                (log[:, None] - log[None, :]) * turn, (marks[:, None] - marks[None, :]) * turn
            )
            _store(between_ptr + tile * (ROWS * ROWS), rows, ROWS, rows, ROWS, ROWS, between)
            system *= between
    system_at = system_ptr + tile * (ROWS * ROWS)
    below = rows[:, None] > rows[None, :]
    system = tl.where(below, system, 0.0)
    blocks_below = rows[:, None] // 16 >= rows[None, :] // 16
    tl.store(system_at + rows[:, None] * ROWS + rows[None, :], system, mask=blocks_below)

    attention = tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=COMPUTE)
    attention *= left_q[:, None] * right[None, :]
    seen = rows[None, :] < (tokens[:, None] + 1) * N
    if decay_ptr is not None:
        if mild == 0:
            attention *= _product_of_gates(
                tl.where(seen, log_q[:, None] - log[None, :], 0.0),
                marks_q[:, None] - marks[None, :],
            )
    attention = tl.where(seen, attention, 0.0)
    _store(attention_ptr + tile * (BQ * ROWS), tokens, ROWS, rows, BQ, ROWS, attention)
    tl.debug_barrier()
    _invert(system_at, EXACT, COMPUTE)
    inverse = tl.load(system_at + rows[:, None] * ROWS + rows[None, :])
    inverse = tl.where(rows[:, None] >= rows[None, :], inverse, 0.0)
    tl.debug_barrier()
    inverse_at = inverse_ptr + tile * (ROWS * PARTS * ROWS)
    high, low = _split(inverse, k)
    tl.store(inverse_at + rows[:, None] * (PARTS * ROWS) + rows[None, :], high)
    if PARTS == 2:
        tl.store(inverse_at + ROWS + rows[:, None] * (PARTS * ROWS) + rows[None, :], low)


# ----------------------------------------------------------------------- along the chunks


@triton.jit(do_not_specialize=["T", "P", "chunks", "begin", "count"])
@no_type_check
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    start_ptr,
    inverse_ptr,
    attention_ptr,
    vectors_ptr,
    y_ptr,
    final_ptr,
    states_ptr,
    errors_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    begin,
    count,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    FIELDS: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    SAVE: tl.constexpr,
    OUT: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """y and the last state of one head and block of values; saves the S and e of every chunk.

    It takes `count` chunks from chunk `begin` on.
    """
    program = tl.program_id(0).to(tl.int64)
    block, head = program % NV, program // NV
    h = head % H
    b, first, length, begin, count, first_tile = _walk(
        offsets_ptr, head, T, P, chunks, H, begin, count, TOKENS
    )
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, BQ), tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_state = (values < V)[:, None] & (keys < K)[None, :]
    outside = head * K * V + keys[None, :] * V + values[:, None]  # of a state [K, V]
    state = tl.zeros([BV, BK], COMPUTE)
    if start_ptr is not None:
        state = tl.load(start_ptr + outside, mask=in_state, other=0.0).to(COMPUTE)
    # What Triton does not load ahead by itself is loaded a chunk early.
    next_whole = 1.0
    if GATED:
        next_whole = tl.load(vectors_ptr + ((first_tile + begin) * FIELDS + _SINCE + 1) * ROWS - 1)
    for c in range(begin, begin + count):
        tile = first_tile + c
        whole = next_whole
        if GATED:
            later = tl.minimum(tile + 1, first_tile + begin + count - 1)
            next_whole = tl.load(vectors_ptr + (later * FIELDS + _SINCE + 1) * ROWS - 1)
        token_count = tl.minimum(length - c * TOKENS, TOKENS)
        first_token = (b * T + first + c * TOKENS) * H + h
        first_row = (b * T + first + c * TOKENS) * N * H + h
        k = _load(k_ptr + first_row * K, rows, H * K, keys, token_count * N, K)
        v = _load(v_ptr + first_row * V, rows, H * V, values, token_count * N, V)
        inverse_at = inverse_ptr + tile * (PARTS * ROWS * ROWS)
        at = vectors_ptr + tile * (FIELDS * ROWS)
        r = tl.load(at + _R * ROWS + rows)
        read = tl.load(at + _READ * ROWS + rows)
        write = tl.load(at + (_WRITE if GATED else _BETA) * ROWS + rows)
        if SAVE:
            _store(states_ptr + tile * (K * V), values, K, keys, V, K, state)

        x = _product(state, tl.trans(k), tl.zeros([BV, ROWS], COMPUTE), PRECISION)
        x = tl.trans(v).to(COMPUTE) * r[None, :] - x * read[None, :]
        inverse = _load(inverse_at, rows, PARTS * ROWS, rows, ROWS, ROWS)
        e = _product(x, tl.trans(inverse), tl.zeros([BV, ROWS], COMPUTE), PRECISION)
        if PARTS == 2:
            rest = _load(inverse_at + ROWS, rows, PARTS * ROWS, rows, ROWS, ROWS)
            e = _leaf(x, tl.trans(rest), e, PRECISION)
        if SAVE:
            _store(errors_ptr + tile * (ROWS * V), rows, V, values, ROWS, V, tl.trans(e))
        if OUT:
            q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)
            attention = _load(attention_ptr + tile * (BQ * ROWS), tokens, ROWS, rows, BQ, ROWS)
            rho = tl.load(at + (_RHO if GATED else _R_Q) * ROWS + tokens)
            out = _leaf(state, tl.trans(q), tl.zeros([BV, BQ], COMPUTE), PRECISION) * rho[None, :]
            out = _leaf(e, tl.trans(attention), out, PRECISION)
            y_at = y_ptr + first_token * V
            _store(y_at, tokens, H * V, values, token_count, V, tl.trans(out))
        if GATED:
            state *= whole
        state = _product(e * write[None, :], k, state, PRECISION)
    tl.store(final_ptr + outside, state, mask=in_state)


@triton.jit(do_not_specialize=["T", "P", "chunks"])
@no_type_check
def _backward_kernel(
    q_ptr,
    k_ptr,
    inverse_ptr,
    attention_ptr,
    vectors_ptr,
    dy_ptr,
    dfinal_ptr,
    dv_ptr,
    dstart_ptr,
    dstates_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    FIELDS: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """dV and the gradient of the start of one head and block of values; saves Z of every chunk."""
    program = tl.program_id(0).to(tl.int64)
    block, head = program % NV, program // NV
    h = head % H
    b, first, length, _, count, first_tile = _walk(
        offsets_ptr, head, T, P, chunks, H, 0, chunks, TOKENS
    )
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, BQ), tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_state = (values < V)[:, None] & (keys < K)[None, :]
    outside = head * K * V + keys[None, :] * V + values[:, None]  # of a state [K, V]
    dstate = tl.load(dfinal_ptr + outside, mask=in_state, other=0.0).to(COMPUTE)
    for step in range(count):
        c = count - 1 - step
        tile = first_tile + c
        token_count = tl.minimum(length - c * TOKENS, TOKENS)
        first_token = (b * T + first + c * TOKENS) * H + h
        first_row = (b * T + first + c * TOKENS) * N * H + h
        k = _load(k_ptr + first_row * K, rows, H * K, keys, token_count * N, K)
        dy = _load(dy_ptr + first_token * V, tokens, H * V, values, token_count, V)
        q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)
        inverse_at = inverse_ptr + tile * (PARTS * ROWS * ROWS)
        attention = _load(attention_ptr + tile * (BQ * ROWS), tokens, ROWS, rows, BQ, ROWS)
        at = vectors_ptr + tile * (FIELDS * ROWS)
        r = tl.load(at + _R * ROWS + rows)
        read = tl.load(at + _READ * ROWS + rows)
        write = tl.load(at + (_WRITE if GATED else _BETA) * ROWS + rows)
        rho = tl.load(at + (_RHO if GATED else _R_Q) * ROWS + tokens)
        if GATED:
            whole = tl.load(at + _SINCE * ROWS + ROWS - 1)
        _store(dstates_ptr + tile * (K * V), values, K, keys, V, K, dstate)

        de = _product(dstate, tl.trans(k), tl.zeros([BV, ROWS], COMPUTE), PRECISION)
        de *= write[None, :]
        dy_t = tl.trans(dy)
        de = _leaf(dy_t, attention, de, PRECISION)
        inverse = _load(inverse_at, rows, PARTS * ROWS, rows, ROWS, ROWS)
        dx = _product(de, inverse, tl.zeros([BV, ROWS], COMPUTE), PRECISION)
        if PARTS == 2:
            rest = _load(inverse_at + ROWS, rows, PARTS * ROWS, rows, ROWS, ROWS)
            dx = _leaf(de, rest, dx, PRECISION)
        dv_at = dv_ptr + first_row * V
        _store(dv_at, rows, H * V, values, token_count * N, V, tl.trans(dx * r[None, :]))
        if GATED:
            dstate *= whole
        dstate = _leaf(dy_t.to(COMPUTE) * rho[None, :], q, dstate, PRECISION)
        dstate = _product(dx * -read[None, :], k, dstate, PRECISION)
    if dstart_ptr is not None:
        tl.store(dstart_ptr + outside, dstate, mask=in_state)


@triton.jit(do_not_specialize=["T", "P", "chunks", "begin", "count"])
@no_type_check
def _narrow_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    start_ptr,
    inverse_ptr,
    attention_ptr,
    vectors_ptr,
    y_ptr,
    final_ptr,
    states_ptr,
    errors_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    begin,
    count,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    FIELDS: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    SAVE: tl.constexpr,
    OUT: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`_forward_kernel` for few values a program."""
    program = tl.program_id(0).to(tl.int64)
    block, head = program % NV, program // NV
    h = head % H
    b, first, length, begin, count, first_tile = _walk(
        offsets_ptr, head, T, P, chunks, H, begin, count, TOKENS
    )
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, ROWS), tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_state = (keys < K)[:, None] & (values < V)[None, :]
    outside = head * K * V + keys[:, None] * V + values[None, :]  # of a state [K, V]
    state = tl.zeros([BK, BV], COMPUTE)
    if start_ptr is not None:
        state = tl.load(start_ptr + outside, mask=in_state, other=0.0).to(COMPUTE)
    # What Triton does not load ahead by itself is loaded a chunk early.
    field: tl.constexpr = _RHO if GATED else _R_Q
    at = vectors_ptr + (first_tile + begin) * (FIELDS * ROWS)
    next_rho = 1.0
    if OUT:
        next_rho = tl.load(at + field * ROWS + tokens)
    next_whole = 1.0
    if GATED:
        next_whole = tl.load(at + _SINCE * ROWS + ROWS - 1)
    for c in range(begin, begin + count):
        tile = first_tile + c
        rho, whole = next_rho, next_whole
        last = first_tile + begin + count - 1
        at = vectors_ptr + tl.minimum(tile + 1, last) * (FIELDS * ROWS)
        if OUT:
            next_rho = tl.load(at + field * ROWS + tokens)
        if GATED:
            next_whole = tl.load(at + _SINCE * ROWS + ROWS - 1)
        token_count = tl.minimum(length - c * TOKENS, TOKENS)
        first_token = (b * T + first + c * TOKENS) * H + h
        first_row = (b * T + first + c * TOKENS) * N * H + h
        k = _load(k_ptr + first_row * K, rows, H * K, keys, token_count * N, K)
        v = _load(v_ptr + first_row * V, rows, H * V, values, token_count * N, V)
        inverse_at = inverse_ptr + tile * (PARTS * ROWS * ROWS)
        inverse = _load(inverse_at, rows, PARTS * ROWS, rows, ROWS, ROWS)
        if PARTS == 2:
            rest = _load(inverse_at + ROWS, rows, PARTS * ROWS, rows, ROWS, ROWS)
        at = vectors_ptr + tile * (FIELDS * ROWS)
        r = tl.load(at + _R * ROWS + rows)
        read = tl.load(at + _READ * ROWS + rows)
        write = tl.load(at + (_WRITE if GATED else _BETA) * ROWS + rows)
        if SAVE:
            _store(states_ptr + tile * (K * V), keys, V, values, K, V, state)

        columns = _columns(state, PARTS, k)
        x = tl.dot(k, columns, input_precision=PRECISION, out_dtype=COMPUTE)
        x = v.to(COMPUTE) * r[:, None] - _sum_of_parts(x, PARTS) * read[:, None]
        x = _columns(x, PARTS, k)
        e = tl.dot(inverse, x, input_precision=PRECISION, out_dtype=COMPUTE)
        if PARTS == 2:
            e = tl.dot(rest, x, e, input_precision=PRECISION, out_dtype=COMPUTE)
        e = _sum_of_parts(e, PARTS)
        written = _columns(e * write[:, None], PARTS, k)
        change = tl.dot(tl.trans(k), written, input_precision=PRECISION, out_dtype=COMPUTE)
        if SAVE:
            _store(errors_ptr + tile * (ROWS * V), rows, V, values, ROWS, V, e)
        if OUT:
            q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)
            attention = _load(attention_ptr + tile * (BQ * ROWS), tokens, ROWS, rows, BQ, ROWS)
            out = tl.dot(q, columns, input_precision=PRECISION, out_dtype=COMPUTE) * rho[:, None]
            e = _columns(e, PARTS, k)
            out = tl.dot(attention, e, out, input_precision=PRECISION, out_dtype=COMPUTE)
            y_at = y_ptr + first_token * V
            _store(y_at, tokens, H * V, values, token_count, V, _sum_of_parts(out, PARTS))
        if GATED:
            state *= whole
        state += _sum_of_parts(change, PARTS)
    tl.store(final_ptr + outside, state, mask=in_state)


@triton.jit(do_not_specialize=["T", "P", "chunks"])
@no_type_check
def _narrow_backward_kernel(
    q_ptr,
    k_ptr,
    inverse_ptr,
    attention_ptr,
    vectors_ptr,
    dy_ptr,
    dfinal_ptr,
    dv_ptr,
    dstart_ptr,
    dstates_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    FIELDS: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`_backward_kernel` for few values a program."""
    program = tl.program_id(0).to(tl.int64)
    block, head = program % NV, program // NV
    h = head % H
    b, first, length, _, count, first_tile = _walk(
        offsets_ptr, head, T, P, chunks, H, 0, chunks, TOKENS
    )
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, ROWS), tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_state = (keys < K)[:, None] & (values < V)[None, :]
    outside = head * K * V + keys[:, None] * V + values[None, :]  # of a state [K, V]
    dstate = tl.load(dfinal_ptr + outside, mask=in_state, other=0.0).to(COMPUTE)
    # What Triton does not load ahead by itself is loaded a chunk early.
    last = count - 1
    if offsets_ptr is not None:
        last = tl.maximum(last, 0)
    at = vectors_ptr + (first_tile + last) * (FIELDS * ROWS)
    next_r = tl.load(at + _R * ROWS + rows)
    next_write = tl.load(at + (_WRITE if GATED else _BETA) * ROWS + rows)
    next_whole = 1.0
    if GATED:
        next_whole = tl.load(at + _SINCE * ROWS + ROWS - 1)
    for step in range(count):
        c = count - 1 - step
        tile = first_tile + c
        r, write, whole = next_r, next_write, next_whole
        at = vectors_ptr + tl.maximum(tile - 1, first_tile) * (FIELDS * ROWS)
        next_r = tl.load(at + _R * ROWS + rows)
        next_write = tl.load(at + (_WRITE if GATED else _BETA) * ROWS + rows)
        if GATED:
            next_whole = tl.load(at + _SINCE * ROWS + ROWS - 1)
        token_count = tl.minimum(length - c * TOKENS, TOKENS)
        first_token = (b * T + first + c * TOKENS) * H + h
        first_row = (b * T + first + c * TOKENS) * N * H + h
        k = _load(k_ptr + first_row * K, rows, H * K, keys, token_count * N, K)
        q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)
        dy = _load(dy_ptr + first_token * V, tokens, H * V, values, token_count, V)
        attention = _load(attention_ptr + tile * (BQ * ROWS), tokens, ROWS, rows, BQ, ROWS)
        inverse_at = inverse_ptr + tile * (PARTS * ROWS * ROWS)
        inverse = _load(inverse_at, rows, PARTS * ROWS, rows, ROWS, ROWS)
        if PARTS == 2:
            rest = _load(inverse_at + ROWS, rows, PARTS * ROWS, rows, ROWS, ROWS)
        at = vectors_ptr + tile * (FIELDS * ROWS)
        read = tl.load(at + _READ * ROWS + rows)
        rho = tl.load(at + (_RHO if GATED else _R_Q) * ROWS + tokens)
        _store(dstates_ptr + tile * (K * V), keys, V, values, K, V, dstate)

        columns = _columns(dstate, PARTS, k)
        de = tl.dot(k, columns, input_precision=PRECISION, out_dtype=COMPUTE)
        de = _sum_of_parts(de, PARTS) * write[:, None]
        de = tl.dot(tl.trans(attention), dy, de, input_precision=PRECISION, out_dtype=COMPUTE)
        de = _columns(de, PARTS, k)
        dx = tl.dot(tl.trans(inverse), de, input_precision=PRECISION, out_dtype=COMPUTE)
        if PARTS == 2:
            dx = tl.dot(tl.trans(rest), de, dx, input_precision=PRECISION, out_dtype=COMPUTE)
        dx = _sum_of_parts(dx, PARTS)
        dv_at = dv_ptr + first_row * V
        _store(dv_at, rows, H * V, values, token_count * N, V, dx * r[:, None])
        given = (dy.to(COMPUTE) * rho[:, None]).to(k.dtype)
        seen = _columns(dx * -read[:, None], PARTS, k)
        if GATED:
            dstate *= whole
        dstate = tl.dot(tl.trans(q), given, dstate, input_precision=PRECISION, out_dtype=COMPUTE)
        change = tl.dot(tl.trans(k), seen, input_precision=PRECISION, out_dtype=COMPUTE)
        dstate += _sum_of_parts(change, PARTS)
    if dstart_ptr is not None:
        tl.store(dstart_ptr + outside, dstate, mask=in_state)


@triton.jit(do_not_specialize=["T", "P", "chunks", "begin", "count"])
@no_type_check
def _outputs_kernel(
    q_ptr,
    attention_ptr,
    vectors_ptr,
    states_ptr,
    errors_ptr,
    y_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    begin,
    count,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    FIELDS: tl.constexpr,
    GATED: tl.constexpr,
    BY_KEY: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """y of one chunk of one head and a block of values, from its S and e."""
    program = tl.program_id(0).to(tl.int64)
    b, h, c, tile = _locate(program // NV, H, chunks, begin, count)
    first, end = chunk_at(offsets_ptr, b, c, T, P, TOKENS)
    if offsets_ptr is not None:
        if first == end:
            return
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, BQ), tl.arange(0, BK)
    values = (program % NV) * BV + tl.arange(0, BV)
    token_count = tl.minimum(end - first, TOKENS)
    first_token = (b * T + first) * H + h
    q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)
    state = _load_state(states_ptr + tile * (K * V), values, keys, V, K, BY_KEY)
    attention = _load(attention_ptr + tile * (BQ * ROWS), tokens, ROWS, rows, BQ, ROWS)
    e = _load(errors_ptr + tile * (ROWS * V), rows, V, values, ROWS, V)
    at = vectors_ptr + tile * (FIELDS * ROWS)
    rho = tl.load(at + (_RHO if GATED else _R_Q) * ROWS + tokens)
    out = tl.dot(q, tl.trans(state), input_precision=PRECISION, out_dtype=COMPUTE)
    out = tl.dot(attention, e, out * rho[:, None], input_precision=PRECISION, out_dtype=COMPUTE)
    _store(y_ptr + first_token * V, tokens, H * V, values, token_count, V, out)


# ------------------------------------------------------------------- gradients of q, k, β and a


@triton.jit(do_not_specialize=["T", "P", "chunks"])
@no_type_check
def _gradients_kernel(
    q_ptr,
    k_ptr,
    between_ptr,
    vectors_ptr,
    states_ptr,
    errors_ptr,
    dy_ptr,
    dv_ptr,
    dstates_ptr,
    dq_ptr,
    dk_ptr,
    dbeta_ptr,
    changes_ptr,
    sums_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    H: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    FIELDS: tl.constexpr,
    SCALE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    MILD: tl.constexpr,
    BY_KEY: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients of one chunk of one head, from its S, Z, e and dV = r λ.

    dq = ρ (dy Sᵀ) + B K           B_tj = r_q D_tj β_j (dy_t·e_j)
    dk = d β (e Zᵀ) - r g (dV Sᵀ) + Bᵀ Q - (C + Cᵀ) K      C_ij = r_i D_ij β_j (dV_i·e_j), j < i
    dβ_j = Σ_t r_q D_tj (q_t·k_j) (dy_t·e_j) + d_j k_j·(Z e_j) - Σ_i r_i D_ij (k_i·k_j) (dV_i·e_j)

    with r fixed; the change of r only takes the part along q or k away. B and Bᵀ, C and Cᵀ are both
    products: no accumulator is ever transposed. With a gate, the gradients of D, g, d and γ are
    left for `_gate_kernel`: those of D as sums along its rows and columns, and where gates are not
    mild as two matrices, one for reads and one for writes. These sums also add up to q·dq and k·dk.

    Four warps (eight with long keys) and few numbers at a time, so that two programs share a
    multiprocessor (one with long keys): three loops over the values, vectors loaded after each, and
    what is needed of the first later on is rounded.

    Products of 64 rows go on while the program does. Triton (to 3.7.1) keeps one buffer for a tile
    that such a product and something else reads, and has the next tile copied into it, or zeros,
    without waiting for the product. It waits for a product whose result is read in the loop: so
    sums of such products are masked there, by the rows that there are.
    """
    b, h, c, tile = _locate(tl.program_id(0).to(tl.int64), H, chunks, 0, chunks)
    first, end = chunk_at(offsets_ptr, b, c, T, P, TOKENS)
    if offsets_ptr is not None:
        if first == end:
            return
    at = vectors_ptr + tile * (FIELDS * ROWS)
    if between_ptr is not None:
        if (tl.load(at + _LEFT * ROWS) != 0) != MILD:
            return
    rows, tokens, keys = tl.arange(0, ROWS), tl.arange(0, BQ), tl.arange(0, BK)
    token_count = tl.minimum(end - first, TOKENS).to(tl.int32)
    row_count = token_count * N
    first_token = (b * T + first) * H + h
    first_row = (b * T + first) * N * H + h

    k = _load(k_ptr + first_row * K, rows, H * K, keys, row_count, K)
    q = _load(q_ptr + first_token * K, tokens, H * K, keys, token_count, K)

    # What comes through y: dq, and what dk and dβ have of it.
    from_state = tl.zeros([BQ, BK], COMPUTE)  # dy Sᵀ
    dp = tl.zeros([BQ, ROWS], COMPUTE)  # dy_t·e_j
    dp_t = tl.zeros([ROWS, BQ], COMPUTE)
    for block in range(0, V, BV):
        values = block + tl.arange(0, BV)
        dy = _load(dy_ptr + first_token * V, tokens, H * V, values, token_count, V)
        e = _load(errors_ptr + tile * (ROWS * V), rows, V, values, ROWS, V)
        state = _load_state(states_ptr + tile * (K * V), values, keys, V, K, BY_KEY)
        dp = _leaf(dy, tl.trans(e), dp, PRECISION)
        dp_t = _leaf(e, tl.trans(dy), dp_t, PRECISION)
        if BQ < ROWS:  # dy and e are also read by the smaller products
            dp_t = tl.where(rows[:, None] < row_count, dp_t, 0.0)
        from_state = _leaf(dy, state, from_state, PRECISION)
    beta = tl.load(at + _BETA * ROWS + rows)
    r_q = tl.load(at + _R_Q * ROWS + tokens)
    left_q, right, factor = r_q, beta, 1.0
    ends = tokens * N + N - 1  # a token is read after its last micro-step
    if MILD:  # D_ij = left_i right_j
        left_q *= tl.load(at + _LEFT * ROWS + ends, mask=ends < ROWS, other=0.0)
        factor = tl.load(at + _RIGHT * ROWS + rows)
        right *= factor
    seen = rows[:, None] < (tokens[None, :] + 1) * N
    dp_t = tl.where(seen, dp_t * left_q[None, :], 0.0)
    rho = r_q
    if between_ptr is not None:
        between_at = between_ptr + tile * (ROWS * ROWS)
        changes_at = changes_ptr + tile * ((BQ + ROWS) * ROWS)
        sums_at = sums_ptr + tile * (_SUMS * ROWS)
        rho = tl.load(at + _RHO * ROWS + tokens)
        if not MILD:
            dp_t *= _load(between_at, rows, ROWS, ends, ROWS, ROWS).to(COMPUTE)
    scores = tl.dot(k, tl.trans(q), input_precision=PRECISION, out_dtype=COMPUTE)
    dbeta = tl.sum(dp_t * scores, 1) * factor
    read_by = (dp_t * right[:, None]).to(q.dtype)

    seen = rows[None, :] < (tokens[:, None] + 1) * N
    dp = tl.where(seen, dp * left_q[:, None], 0.0)
    if between_ptr is not None:
        change = tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=COMPUTE) * dp
        if not MILD:
            _store(changes_at, tokens, ROWS, rows, BQ, ROWS, change * beta[None, :])
            gates = _load(between_at, ends, ROWS, rows, ROWS, ROWS).to(COMPUTE)
            change *= gates
            dp *= gates
        reads = tl.sum(change * right[None, :], 1)
        tl.store(sums_at + _READS * ROWS + tokens, reads)
    dp = (dp * right[None, :]).to(k.dtype)
    wide = _as_product(q, 1.0, PRECISION, COMPUTE)
    if between_ptr is not None:
        since = tl.sum(from_state * wide, 1)
        tl.store(sums_at + _SINCE_Q * ROWS + tokens, r_q * since)
        dq = _leaf(dp, k, from_state * rho[:, None], PRECISION)
        along = rho * since + reads  # q·dq
    else:
        dq = _leaf(dp, k, from_state * rho[:, None], PRECISION)
        along = tl.sum(wide * dq, 1)
    if NORMALIZE:
        r_unit = r_q * (1.0 / SCALE if SCALE != 0 else 0.0)
        dq -= wide * (along * r_unit * r_unit)[:, None]
    _store(dq_ptr + first_token * K, tokens, H * K, keys, token_count, K, dq)

    # What comes through the state before the chunk and the other rows' errors.
    from_state = tl.zeros([ROWS, BK], COMPUTE)  # dV Sᵀ
    dm = tl.zeros([ROWS, ROWS], COMPUTE)  # dV_i·e_j
    dm_t = tl.zeros([ROWS, ROWS], COMPUTE)
    for block in range(0, V, BV):
        values = block + tl.arange(0, BV)
        dv = _load(dv_ptr + first_row * V, rows, H * V, values, row_count, V)
        e = _load(errors_ptr + tile * (ROWS * V), rows, V, values, ROWS, V)
        state = _load_state(states_ptr + tile * (K * V), values, keys, V, K, BY_KEY)
        dm = _leaf(dv, tl.trans(e), dm, PRECISION)
        dm_t = _leaf(e, tl.trans(dv), dm_t, PRECISION)
        from_state = _leaf(dv, state, from_state, PRECISION)
    r = tl.load(at + _R * ROWS + rows)
    beta = tl.load(at + _BETA * ROWS + rows)
    left, right = r, beta
    if MILD:
        left *= tl.load(at + _LEFT * ROWS + rows)
        factor = tl.load(at + _RIGHT * ROWS + rows)
        right *= factor
    dm = tl.where(rows[:, None] > rows[None, :], dm * left[:, None], 0.0)
    dm_t = tl.where(rows[:, None] < rows[None, :], dm_t * left[None, :], 0.0)
    gram = tl.dot(k, tl.trans(k), input_precision=PRECISION, out_dtype=COMPUTE)
    read = r
    if between_ptr is not None:
        if not MILD:
            change = -dm * gram * beta[None, :]
            _store(changes_at + BQ * ROWS, rows, ROWS, rows, ROWS, ROWS, change)
            gates = _load(between_at, rows, ROWS, rows, ROWS, ROWS).to(COMPUTE)
            dm *= gates
            dm_t *= gates
        dbeta -= tl.sum(dm_t * gram, 1) * factor
        along = beta * dbeta - tl.sum(dm * gram * right[None, :], 1)
        tl.store(sums_at + _NET * ROWS + rows, along - 2 * beta * dbeta)
        wide = _as_product(k, 1.0, PRECISION, COMPUTE)
        since = tl.sum(from_state * wide, 1)
        tl.store(sums_at + _SINCE_K * ROWS + rows, -r * since)
        read = r * tl.load(at + _SINCE * ROWS + rows)
        along -= read * since  # k·dk, as far as dk is known here
    else:
        dbeta -= tl.sum(dm_t * gram, 1)
    dk = from_state * -read[:, None]
    dk = _leaf(read_by, q, dk, PRECISION)
    dk = _leaf(-(dm * right[None, :] + dm_t * right[:, None]), k, dk, PRECISION)

    # What comes through the state after it.
    to_state = tl.zeros([ROWS, BK], COMPUTE)  # e Zᵀ
    overlap = tl.zeros([BV * BK // 8], COMPUTE)  # Σ S ∘ Z
    for block in range(0, V, BV):
        values = block + tl.arange(0, BV)
        e = _load(errors_ptr + tile * (ROWS * V), rows, V, values, ROWS, V)
        dstate = _load_state(dstates_ptr + tile * (K * V), values, keys, V, K, BY_KEY)
        to_state = _leaf(e, dstate, to_state, PRECISION)
        if between_ptr is not None:
            to_state = tl.where(rows[:, None] < row_count, to_state, 0.0)  # Z is read once more
            state = _load_state(states_ptr + tile * (K * V), values, keys, V, K, BY_KEY)
            both = state.to(COMPUTE) * dstate.to(COMPUTE)
            overlap += tl.sum(tl.reshape(tl.trans(both) if BY_KEY else both, [BV * BK // 8, 8]), 1)
    wide = _as_product(k, -1.0, PRECISION, COMPUTE)
    to_write = -tl.sum(to_state * wide, 1)  # k_j·(Z e_j)
    write = beta
    if between_ptr is not None:
        until = tl.load(at + _UNTIL * ROWS + rows)
        tl.store(sums_at + _ALONG * ROWS + rows, beta * to_write)
        tl.store(sums_at + _OVERLAP * ROWS, tl.sum(overlap, 0))
        write = beta * until
        dbeta += until * to_write
    else:
        along = -tl.sum(wide * dk, 1)
        dbeta += to_write
    dbeta = dbeta.to(dbeta_ptr.dtype.element_ty)
    tl.store(dbeta_ptr + first_row + rows * H, dbeta, mask=rows < row_count)
    dk += to_state * write[:, None]
    if NORMALIZE:
        dk += wide * ((along + write * to_write) * r * r)[:, None]
    _store(dk_ptr + first_row * K, rows, H * K, keys, row_count, K, dk)


@triton.jit
@no_type_check
def _gate_by_products(
    between_at,
    changes_at,
    sums_at,
    at,
    until,
    along,
    overlap,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    rows, tokens = tl.arange(0, ROWS), tl.arange(0, BQ)
    ends = tokens * N + N - 1  # a token is read after its last micro-step
    gates = _load(between_at, rows, ROWS, ends, ROWS, ROWS)
    gates = tl.where(rows[:, None] < (tokens[None, :] + 1) * N, gates, 0.0)
    change = _load(changes_at, tokens, ROWS, rows, BQ, ROWS)
    back = tl.dot(gates, change, input_precision=PRECISION, out_dtype=COMPUTE)
    since = tl.load(sums_at + _SINCE_Q * ROWS + tokens)
    f = tl.sum(gates.to(COMPUTE) * since[None, :], 1)

    gates = _load(between_at, rows, ROWS, rows, ROWS, ROWS)
    gates = tl.where(rows[:, None] <= rows[None, :], gates, 0.0)
    change = _load(changes_at + BQ * ROWS, rows, ROWS, rows, ROWS, ROWS)
    back = tl.dot(gates, change, back, input_precision=PRECISION, out_dtype=COMPUTE)
    since = tl.load(sums_at + _SINCE_K * ROWS + rows)
    f += tl.sum(gates.to(COMPUTE) * since[None, :], 1)

    back += until[:, None] * along[None, :]
    f += until * overlap
    before = _load(between_at, rows - 1, ROWS, rows, ROWS, ROWS).to(COMPUTE)
    d_decay = tl.sum(tl.where(rows[:, None] > rows[None, :], back * before, 0.0), 1)
    return d_decay + f * tl.load(at + _SINCE * ROWS + rows - 1, mask=rows > 0, other=1.0)


@triton.jit(do_not_specialize=["T", "P", "chunks"])
@no_type_check
def _gate_kernel(
    decay_ptr,
    between_ptr,
    vectors_ptr,
    changes_ptr,
    sums_ptr,
    ddecay_ptr,
    offsets_ptr,
    T,
    P,
    chunks,
    H: tl.constexpr,
    N: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BQ: tl.constexpr,
    FIELDS: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The gradient of the gates of one chunk of one head.

    a_s da_s = Σ_{i≥s>j} D_ij dD_ij + Σ_{i≥s} g_i dg_i + Σ_{j<s} d_j dd_j + γ dγ, and the first sum
    is that over all rows from s on less that over all columns from s on. No sum is larger than what
    it is made of, so this is good where gates are mild. Elsewhere

    da_s = Σ_{j<s} F_sj D_{s-1,j} + g_{s-1} f_s, with F and f the gradients of D and g that come
    back to s through the gates after it. Nothing is divided by a gate, which may be 0.
    """
    b, h, c, tile = _locate(tl.program_id(0).to(tl.int64), H, chunks, 0, chunks)
    first, end = chunk_at(offsets_ptr, b, c, T, P, TOKENS)
    if offsets_ptr is not None:
        if first == end:
            return
    rows = tl.arange(0, ROWS)
    row_count = tl.minimum(end - first, TOKENS) * N
    first_token = (b * T + first) * H + h
    at = vectors_ptr + tile * (FIELDS * ROWS)
    sums_at = sums_ptr + tile * (_SUMS * ROWS)
    until = tl.load(at + _UNTIL * ROWS + rows)
    along = tl.load(sums_at + _ALONG * ROWS + rows)
    overlap = tl.load(sums_at + _OVERLAP * ROWS)
    row_gates = _row_gates(decay_ptr + first_token, rows, row_count, N, H, COMPUTE)
    if tl.load(at + _LEFT * ROWS) == 0:
        d_decay = _gate_by_products(
            between_ptr + tile * (ROWS * ROWS),
            changes_ptr + tile * ((BQ + ROWS) * ROWS),
            sums_at,
            at,
            until,
            along,
            overlap,
            N,
            ROWS,
            BQ,
            PRECISION,
            COMPUTE,
        )
    else:
        since = tl.load(at + _SINCE * ROWS + rows)
        from_row = tl.load(sums_at + _NET * ROWS + rows)
        from_row += since * tl.load(sums_at + _SINCE_K * ROWS + rows)
        leads = rows % N == 0  # a token, which is read after its last micro-step
        since = tl.load(at + _SINCE * ROWS + rows + N - 1, mask=leads, other=0.0)
        read = tl.load(sums_at + _SINCE_Q * ROWS + rows // N, mask=leads, other=0.0)
        from_row += since * read
        from_row += tl.load(sums_at + _READS * ROWS + rows // N, mask=leads, other=0.0)
        along *= until
        whole = tl.load(at + _SINCE * ROWS + ROWS - 1)
        until_row = tl.sum(from_row, 0) - tl.cumsum(from_row, 0) + from_row
        d_decay = until_row + tl.cumsum(along, 0) - along + whole * overlap
        d_decay /= row_gates
    tl.store(
        ddecay_ptr + first_token + (rows // N) * H,
        d_decay.to(ddecay_ptr.dtype.element_ty),
        mask=(rows < row_count) & (rows % N == 0),
    )


# ------------------------------------------------------------------------------------- launches


def _cut(k: Tensor) -> tuple[int, int]:
    """(tokens per chunk, tokens in a tile of queries) of keys [B, T, N, H, K]."""
    tokens = ROWS // int(k.shape[2])  # a compiler may leave the length open, not N
    return tokens, max(16, power_of_two(tokens))


def _room(k: Tensor, offsets: Tensor | None) -> int | torch.SymInt:
    """Chunks that there is room for in a row."""
    return -(-k.shape[1] // _cut(k)[0]) + in_a_row(offsets) - 1


def _element(q: Tensor, k: Tensor, v: Tensor, compute: torch.dtype) -> torch.dtype:
    """What products are made of: bfloat16 if that is all the inputs are, else full precision."""
    narrow = q.dtype == k.dtype == v.dtype == torch.bfloat16 and compute == torch.float32
    return torch.bfloat16 if narrow else compute


def _precision(element: torch.dtype) -> str:
    """Of products whose factors are not bfloat16."""
    return {torch.bfloat16: "tf32", torch.float32: "tf32x3", torch.float64: "ieee"}[element]


def _constants(q: Tensor, k: Tensor, v: Tensor, gated: bool, dtype: torch.dtype) -> dict[str, Any]:
    """What every kernel is compiled for."""
    _, _, micro, heads, key = k.shape
    tokens, queries = _cut(k)
    return {
        "H": heads,
        "N": micro,
        "K": key,
        "TOKENS": tokens,
        "ROWS": ROWS,
        "BQ": queries,
        "BK": max(16, power_of_two(key)),
        "FIELDS": _fields(gated),
        "PRECISION": _precision(_element(q, k, v, dtype)),
        "COMPUTE": triton_dtype(dtype),
    }


def _fields(gated: bool) -> int:
    return 10 if gated else 4


def _parts(element: torch.dtype) -> int:
    return 2 if element == torch.bfloat16 else 1


def _widths(key: int) -> dict[int, tuple[bool, dict[str, int]]]:
    """`CARRY` for keys of this size."""
    return CARRY if key <= SHORT_KEY else CARRY_LONG


def _carry_values(heads: int, key: int, value: int) -> int:
    """Values a program takes along, where so many heads in all have states of `value` values.

    A program goes through all chunks of its head. So where heads are few, the values of a state are
    cut, as far as `CARRY` goes, until there is about one program for each multiprocessor.
    """
    fewest, most = min(_widths(key)), max(_widths(key))
    values = min(most, max(fewest, power_of_two(value)))
    while values > fewest and 2 * heads * triton.cdiv(value, values) <= MULTIPROCESSORS:
        values //= 2
    return values


def _spans(
    chunks: int | torch.SymInt, values: int, packed: bool = False
) -> list[tuple[int | torch.SymInt, int | torch.SymInt]]:
    """(first chunk, chunks) of the spans of a walk: several if it is long, of the narrowest states.

    These leave room on every multiprocessor. So the chunks of a span are prepared while the one
    before is walked, and y of a span is made while the next is. Walks of sequences that share a row
    begin anywhere in it, and have one span.
    """
    count = max(1, chunks // SPAN) if values == min(CARRY) and not packed else 1
    ends = [chunks * i // count for i in range(count + 1)]
    return [(begin, end - begin) for begin, end in itertools.pairwise(ends)]


def _forward_values(values: int, apart: bool) -> int:
    """Values a program takes along forward, where `values` are taken back.

    Without y on the way, 64 need so little memory on the chip that two programs share it, and one
    works while the other waits.
    """
    return 64 if apart and values > 64 else values


def _apart(values: int, save: bool) -> bool:
    """Whether y is made after the walk, from S and e: where these are saved, or few are narrow.

    The walk is shorter then. But S and e go through memory, which pays only if they do anyway, or
    if there are so few heads that the walk is most of the time.
    """
    return save or values == min(CARRY)


def _prepare_options(key: int) -> dict[str, int]:
    """So that four programs share a multiprocessor, two with long keys; few numbers are spilled."""
    return {"num_warps": 4 if key <= SHORT_KEY else 8, "maxnreg": 128}


def _outputs_tile(key: int, value: int) -> dict[str, int]:
    most = 128 if key <= SHORT_KEY else 64  # a state's tile must leave room for a second program
    values = min(most, max(16, power_of_two(value)))
    return {"BV": values, "NV": triton.cdiv(value, values)}


def _gradient_tile(key: int, value: int) -> tuple[int, dict[str, int]]:
    """(values at a time, launch options) where the gradients of a chunk are made."""
    warps = 4 if key <= SHORT_KEY else 8
    return min(64, max(16, power_of_two(value))), {"num_warps": warps, "num_stages": 2}


def forward(inputs: Inputs, save: bool, offsets: Tensor | None = None) -> tuple[Tensor, ...]:
    """What `empty` lists."""
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    results = empty(inputs, save, offsets)
    y, state, inverse, attention, vectors, between, states, errors = results
    if state.numel() == 0:
        return results
    gated, dtype = decay is not None, state.dtype
    if not save:
        inverse, attention, vectors, between = _chunk_parts(q, k, v, gated, dtype, offsets)
    batch, time, _, heads, key = k.shape
    value, walks = v.shape[-1], len(state) * heads
    chunks = _room(k, offsets)
    where = (contiguous(offsets), time, None if offsets is None else in_a_row(offsets), chunks)
    constants = _constants(q, k, v, gated, dtype) | {"PARTS": _parts(inverse.dtype)}
    q, k, v = (x.to(inverse.dtype).contiguous() for x in (q, k, v))
    values = _carry_values(walks, key, value)
    spans = _spans(chunks, values, offsets is not None)
    apart = _apart(values, save)
    values = _forward_values(values, apart)
    narrow, options = _widths(key)[values]
    blocks = triton.cdiv(value, values)
    if apart and not save:
        states, errors = _along_chunks(q, k, v, dtype, offsets)
    prepare = (
        q,
        k,
        beta.contiguous(),
        contiguous(decay),
        inverse.view(dtype),  # A lies where its inverse will
        inverse,
        attention,
        vectors,
        between,
        *where,
    )
    start = contiguous(initial_state)
    if len(spans) > 1:  # each goes on from what the one before has left in `state`
        start = state.zero_() if start is None else state.copy_(start)
    carry = (
        q,
        k,
        v,
        start,
        inverse,
        attention,
        vectors,
        y,
        state,
        states,
        errors,
        *where,
    )
    outputs = (q, attention, vectors, states, errors, y, *where)
    own = {"SCALE": scale, "NORMALIZE": normalize, "EXACT": _precision(dtype)}
    taken = {"V": value, "BV": values, "NV": blocks, "GATED": gated}
    kept = {"SAVE": save or apart, "OUT": not apart}
    kernel = _narrow_forward_kernel if narrow else _forward_kernel
    with on_device_of(q), Beside(q, len(spans) > 1) as beside:
        for span in spans:
            programs = (batch * heads * span[1],)
            launch(
                _prepare_kernel, programs, *prepare, *span, **constants, **own,
                **_prepare_options(key),
            )  # fmt: skip
            with beside():
                programs = (walks * blocks,)
                launch(kernel, programs, *carry, *span, **constants, **taken, **kept, **options)
        if apart:
            del constants["PARTS"]
            taken |= _outputs_tile(key, value) | {"BY_KEY": narrow}
            for span in spans:
                beside.wait()
                programs = (batch * heads * span[1] * taken["NV"],)
                launch(
                    _outputs_kernel, programs, *outputs, *span, **constants, **taken,
                    **OUTPUTS_OPTIONS,
                )  # fmt: skip
    return results


def empty(inputs: Inputs, save: bool, offsets: Tensor | None) -> tuple[Tensor, ...]:
    """The results; saved: M⁻¹, P, vectors, D, S before chunks and e [.., R, V]."""
    y, state = SPEC.empty(inputs, in_a_row(offsets))
    if not save:
        return y, state, *(state.new_empty(0) for _ in range(6))
    q, k, v, dtype = inputs.q, inputs.k, inputs.v, state.dtype
    *parts, between = _chunk_parts(q, k, v, inputs.decay is not None, dtype, offsets)
    between.zero_()  # it stays so in chunks of mild gates
    return y, state, *parts, between, *_along_chunks(q, k, v, dtype, offsets)


def _chunk_parts(
    q: Tensor, k: Tensor, v: Tensor, gated: bool, dtype: torch.dtype, offsets: Tensor | None
) -> tuple[Tensor, ...]:
    """Room for M⁻¹, P, the vectors and D of every chunk."""
    queries, element = _cut(k)[1], _element(q, k, v, dtype)
    tiles = (k.shape[0], k.shape[3], _room(k, offsets))
    return (
        k.new_empty(*tiles, ROWS, _parts(element), ROWS, dtype=element),
        k.new_empty(*tiles, queries, ROWS, dtype=element),
        k.new_empty(*tiles, _fields(gated), ROWS, dtype=dtype),
        k.new_empty(*tiles, ROWS if gated else 0, ROWS, dtype=element),
    )


def _along_chunks(
    q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Room for S before every chunk, [V, K] or, from narrow states, [K, V], and for e."""
    tiles = (k.shape[0], k.shape[3], _room(k, offsets))
    key, value, element = k.shape[4], v.shape[4], _element(q, k, v, dtype)
    states = k.new_empty(*tiles, value, key, dtype=element)
    return states, k.new_empty(*tiles, ROWS, value, dtype=element)


def backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    y: Tensor,
    state: Tensor,
    inverse: Tensor,
    attention: Tensor,
    vectors: Tensor,
    between: Tensor,
    states: Tensor,
    errors: Tensor,
    dy: Tensor,
    dstate: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v, β, the gates and the initial state, and none of the offsets."""
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    grads = empty_grads(*inputs, offsets)
    if state.numel() == 0:
        return grads
    dq, dk, dv, dbeta, ddecay, dstart, of_offsets = grads
    dv = dv.to(states.dtype)  # also an input of the last kernel
    gated, element = decay is not None, states.dtype
    batch, time, _, heads, key = k.shape
    value, walks = v.shape[-1], len(state) * heads
    chunks = _room(k, offsets)
    where = (contiguous(offsets), time, None if offsets is None else in_a_row(offsets), chunks)
    constants = _constants(q, k, v, gated, state.dtype)
    q, k, dy = (x.to(element).contiguous() for x in (q, k, dy))
    dstates = torch.empty_like(states)
    changes = sums = None
    if gated:
        tiles = states.shape[:3]
        changes = states.new_empty(*tiles, constants["BQ"] + ROWS, ROWS)
        sums = vectors.new_empty(*tiles, _SUMS.value, ROWS)
    values = _carry_values(walks, key, value)
    narrow, options = _widths(key)[values]
    blocks = triton.cdiv(value, values)
    carry = (
        q,
        k,
        inverse,
        attention,
        vectors,
        dy,
        dstate.contiguous(),
        dv,
        None if initial_state is None else dstart,
        dstates,
        *where,
    )
    taken = {"V": value, "BV": values, "NV": blocks, "PARTS": _parts(element), "GATED": gated}
    with on_device_of(q):
        programs = (walks * blocks,)
        kernel = _narrow_backward_kernel if narrow else _backward_kernel
        launch(kernel, programs, *carry, **constants, **taken, **options)
    values, options = _gradient_tile(key, value)
    gradients = (
        q,
        k,
        between if gated else None,
        vectors,
        states,
        errors,
        dy,
        dv,
        dstates,
        dq,
        dk,
        dbeta,
        changes,
        sums,
        *where,
    )
    own = {"V": value, "BV": values, "SCALE": scale, "NORMALIZE": normalize, "BY_KEY": narrow}
    with on_device_of(q):
        programs = (batch * heads * chunks,)
        for mild in (True, False) if gated else (False,):  # each leaves the other's chunks alone
            own["MILD"] = mild
            launch(_gradients_kernel, programs, *gradients, **constants, **own, **options)
        if gated:
            del constants["K"], constants["BK"]
            gate = (contiguous(decay), between, vectors, changes, sums, ddecay, *where)
            launch(_gate_kernel, programs, *gate, **constants, **GATE_OPTIONS)
    return dq, dk, dv.to(v.dtype), dbeta, ddecay, dstart, of_offsets
