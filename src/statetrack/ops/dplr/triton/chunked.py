"""`dplr` for long sequences: chunks of matrix products, forward and backward, gates of either sign.

Letters: B batch, T time, H heads, K key, V value, N chunks of C tokens; H_n is the state before
chunk n, G_n the gradient of the state after it. Readers are q, after its token's gate, and r,
before it; writers are k and l. docs/design/signed_gates.md has the tree that makes, by products of
gates only, the readers as they see the start of the chunk and the writers as its end sees them,

    Q_i = q_i ∘ a_1 ⋯ a_i    R_i = r_i ∘ a_1 ⋯ a_{i-1}    K_j = k_j ∘ a_{j+1} ⋯ a_C    L_j likewise,

and the scores S^k_ij = q_iᵀ Diag(a_{j+1} ⋯ a_i) k_j and S^l for j <= i, and for j < i

    E_ij = r_iᵀ Diag(a_{j+1} ⋯ a_{i-1}) l_j        F_ij = r_iᵀ Diag(a_{j+1} ⋯ a_{i-1}) k_j.

With W the rows w_t = H_{t-1}ᵀ r_t and M = (I - E)⁻¹,

    W = M (F V + R H_n)        y = scale (S^k V + S^l W + Q H_n)
    H_{n+1} = Diag(total) H_n + Lᵀ W + Kᵀ V

and backwards, with dW the gradient of M (F V + R H_n) and λ = Mᵀ dW that of F V + R H_n,

    dW = scale S^lᵀ dy + L G_n    dV = scale S^kᵀ dy + (M F)ᵀ dW + K G_n
    G_{n-1} = Diag(total) G_n + (M R)ᵀ dW + scale Qᵀ dy    dE = λ Wᵀ    dF = λ Vᵀ    dR = λ H_nᵀ.

So both directions have one form, with M R and L, M F and S^lᵀ, K and Q, v and dy in each other's
places. Kernels:

    totals   the products of the gates of all blocks of the tree
    scores   S^k, S^l, E, F and Q, K, L and R: up the tree
    solve    M, M F and, in the place of R, M R
    carry    W and the states, chunk after chunk; reversed: dW and G
    outputs  y; mirrored: dv
    pairs    the gradients of S^k, S^l, E and F
    ends     those of Q, K, L, R and total
    gates    dq, dk, da, dl and dr: up the tree once more and down again

All but `carry` work on all chunks at once. A chunk holds tokens of one sequence: where a row holds
P of them (`Packing`), it has N = ⌈T/C⌉ + P - 1 places for chunks (_triton/rows.py). States lie
transposed, [V, K]: in `carry` the state and W are the left factors, in registers, and what comes
from memory is the right one. No accumulator is transposed.

Precision. The state is float32, and products that make one have factors good to 16 bits at least:
with bfloat16 values, a factor is the sum of two bfloat16 numbers, high + low (PARTS), and three
products of them are added. M and M F are in three TF32 products, 21 bits, and E, of three parts,
has 24: what is wrong with E is wrong with the eigenvalue -1 of a reflection, at every visit of a
key. What ends in y or in a gradient is made of bfloat16 products. With float32 values all products
are three TF32 ones.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import chunk_at, first_chunk, place
from statetrack.ops._triton.runtime import on_device_of, power_of_two
from statetrack.ops.dplr.spec import Inputs
from statetrack.ops.packing import in_a_row

__all__ = ["Saved", "backward", "forward", "saved"]

CHUNK = 32  # tokens
_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
MULTIPROCESSORS = 132  # of an H200; a smaller chip takes more turns


class Saved(NamedTuple):
    """What the forward leaves for the backward, in the dtype of v but for the totals: float32."""

    states: Tensor  # [B, H, N, V, K], one before each chunk
    seen: Tensor  # [B, H, N, C, V]: W
    query: Tensor  # [B, H, N, C, K]: Q
    keys: Tensor  # [B, H, N, C, parts, K]: K
    lefts: Tensor  # [B, H, N, C, parts, K]: L
    rights: Tensor  # [B, H, N, C, parts, K]: M R
    by_key: Tensor  # [B, H, N, C, C]: S^k
    by_left: Tensor  # [B, H, N, C, C]: S^l
    inverse: Tensor  # [B, H, N, C, C]: M
    mixed: Tensor  # [B, H, N, C, parts, C]: M F
    totals: Tensor  # [B, H, N, C, K]: `_totals_kernel` says of what


def saved(inputs: Inputs, offsets: Tensor | None) -> Saved:
    """Empty tensors of the right shapes."""
    k, v = inputs.k, inputs.v
    batch, time, heads, key = k.shape
    value = v.shape[-1]
    lead = (batch, heads, -(-time // CHUNK) + in_a_row(offsets) - 1)
    parts = (CHUNK, _parts(v), key)
    shapes = [(value, key), (CHUNK, value), (CHUNK, key), parts, parts, parts]
    shapes += [(CHUNK, CHUNK)] * 3 + [(CHUNK, _parts(v), CHUNK)]
    kept = [v.new_empty(*lead, *shape) for shape in shapes]
    kept.append(v.new_empty(*lead, CHUNK, key, dtype=torch.float32))
    return Saved(*kept)


# ------------------------------------------------------------------------------------- helpers


@triton.jit
@no_type_check
def _rows(ptr, t, T, stride, index, SIZE: tl.constexpr, OTHER: tl.constexpr):
    """[t, index] of a [T, SIZE] array whose rows are `stride` apart."""
    inside = (t < T)[:, None] & (index < SIZE)[None, :]
    return tl.load(ptr + t[:, None] * stride + index[None, :], mask=inside, other=OTHER)


@triton.jit
@no_type_check
def _store_parts(at, x, mask, step, PARTS: tl.constexpr):
    """x at `at`; of two parts high there and low `step` further."""
    high = x.to(at.dtype.element_ty)
    tl.store(at, high, mask=mask)
    if PARTS == 2:
        tl.store(at + step, (x - high.to(tl.float32)).to(at.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def _leaf(x, y, ELEMENT: tl.constexpr):
    """x @ y for results that no later state is made of."""
    return tl.dot(x.to(ELEMENT), y.to(ELEMENT), input_precision="tf32x3")


@triton.jit
@no_type_check
def _split(x, ELEMENT: tl.constexpr):
    """(high, low) with x = high + low, to twice the bits of ELEMENT."""
    high = x.to(ELEMENT)
    return high, (x - high.to(tl.float32)).to(ELEMENT)


@triton.jit
@no_type_check
def _squares(x, z, ELEMENT: tl.constexpr):
    """x xᵀ good to 8 bits, x zᵀ to 16 and z zᵀ to 24; of float32 numbers to 21 all three."""
    if ELEMENT == tl.float32:
        x_x = tl.dot(x, tl.trans(x), input_precision="tf32x3")
        x_z = tl.dot(x, tl.trans(z), input_precision="tf32x3")
        z_z = tl.dot(z, tl.trans(z), input_precision="tf32x3")
    else:
        x_high, x_low = _split(x, ELEMENT)
        z_high = z.to(ELEMENT)
        z_mid, z_low = _split(z - z_high.to(tl.float32), ELEMENT)
        x_x = tl.dot(x_high, tl.trans(x_high))
        x_z = tl.dot(x_low, tl.trans(z_high))
        x_z = tl.dot(x_high, tl.trans(z_mid), x_z)
        x_z = tl.dot(x_high, tl.trans(z_high), x_z)
        z_z = tl.dot(z_low, tl.trans(z_high))
        z_z = tl.dot(z_high, tl.trans(z_low), z_z)
        z_z = tl.dot(z_mid, tl.trans(z_mid), z_z)
        z_z = tl.dot(z_mid, tl.trans(z_high), z_z)
        z_z = tl.dot(z_high, tl.trans(z_mid), z_z)
        z_z = tl.dot(z_high, tl.trans(z_high), z_z)
    return x_x, x_z, z_z


@triton.jit
@no_type_check
def _onto(x, high, low, into, PARTS: tl.constexpr):
    """into + x @ (high + low), to 16 bits at least; of one part, `high` is all."""
    if PARTS == 2:
        x_high, x_low = _split(x, high.dtype)
        into = tl.dot(x_high, low, into)
        into = tl.dot(x_low, high, into)
        return tl.dot(x_high, high, into)
    else:
        return tl.dot(x, high, into, input_precision="tf32x3")


@triton.jit
@no_type_check
def _exact_onto(x, high, low, into, PARTS: tl.constexpr):
    """The same for an x that has no low part."""
    if PARTS == 2:
        into = tl.dot(x, low, into)
        return tl.dot(x, high, into)
    else:
        return tl.dot(x, high, into, input_precision="tf32x3")


@triton.jit
@no_type_check
def _leaf_onto(x, y, into):
    """into + x @ y, which are of one dtype."""
    return tl.dot(x, y, into, input_precision="tf32x3")


# ------------------------------------------------------------------------- what a chunk is made of


@triton.jit
@no_type_check
def _multiply(x, y):
    return x * y


@triton.jit
@no_type_check
def _totals_kernel(
    decay_ptr,
    totals_ptr,
    offsets_ptr,
    T,
    P,
    H,
    K: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    BK: tl.constexpr,
):
    """The products of the gates of all blocks of 2, 4, ... C tokens of a chunk.

    Blocks of C/n tokens are rows n to 2n - 1, so the whole chunk is row 1, and row 0 means nothing.
    """
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    row = (head // H * T + begin) * H + head % H  # of the first token
    keys = tl.arange(0, BK)
    x = _rows(decay_ptr + row * K, tl.arange(0, C), end - begin, H * K, keys, K, 1.0)
    x = x.to(tl.float32)
    totals_ptr += (head * tl.num_programs(0) + chunk) * (C * K)
    for level in tl.static_range(1, LEVELS + 1):
        x = tl.reduce(tl.reshape(x, [C >> level, 2, BK]), 1, _multiply)
        rows = (C >> level) + tl.arange(0, C >> level)
        tl.store(totals_ptr + rows[:, None] * K + keys[None, :], x, mask=(keys < K)[None, :])


@triton.jit
@no_type_check
def _is_right(i, level):
    """Whether token i of a chunk lies in the right one of two blocks of 2^level tokens."""
    return (i >> level) % 2 == 1


@triton.jit
@no_type_check
def _are_siblings(i, j, level):
    """Whether i lies in one block of 2^level tokens and j in the other one of its pair."""
    return (i ^ j) >> level == 1


@triton.jit
@no_type_check
def _sibling_total(totals_ptr, t, level, keys, K: tl.constexpr, C: tl.constexpr):
    """For each token the product of all gates of the sibling of its block, from level 1 on."""
    return _rows(totals_ptr, (C >> level) + ((t >> level) ^ 1), C, K, keys, K, 1.0)


@triton.jit
@no_type_check
def _scores_kernel(
    q_ptr,
    k_ptr,
    decay_ptr,
    left_ptr,
    right_ptr,
    by_key_ptr,
    by_left_ptr,
    system_ptr,
    query_ptr,
    key_ptr,
    lefts_ptr,
    rights_ptr,
    totals_ptr,
    offsets_ptr,
    T,
    P,
    H,
    K: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """`system` holds E and F, of which only what lies below the diagonal is written."""
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tokens = tl.arange(0, C)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:
            return
    t = tokens
    end -= begin
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * tl.num_programs(0) + chunk
    q_ptr += row * K
    k_ptr += row * K
    decay_ptr += row * K
    left_ptr += row * K
    right_ptr += row * K
    totals_ptr += at_chunk * (C * K)

    # below the diagonal S^k and S^l, above it E and F, transposed
    first = tl.zeros([C, C], tl.float32)
    second = tl.zeros([C, C], tl.float32)
    for block in range(0, K, BK):
        keys = block + tl.arange(0, BK)
        q = _rows(q_ptr, t, end, H * K, keys, K, 0.0).to(tl.float32)
        k = _rows(k_ptr, t, end, H * K, keys, K, 0.0).to(tl.float32)
        a = _rows(decay_ptr, t, end, H * K, keys, K, 1.0).to(tl.float32)
        left = _rows(left_ptr, t, end, H * K, keys, K, 0.0).to(tl.float32)
        right = _rows(right_ptr, t, end, H * K, keys, K, 0.0).to(tl.float32)
        first += tl.where(r == c, tl.sum(q * k, 1)[:, None], 0.0)
        second += tl.where(r == c, tl.sum(q * left, 1)[:, None], 0.0)
        q *= a
        before = tl.full([C, BK], 1.0, tl.float32)  # the gates of its block before a token
        after = tl.full([C, BK], 1.0, tl.float32)
        other = _rows(decay_ptr, t ^ 1, end, H * K, keys, K, 1.0).to(tl.float32)
        for level in range(LEVELS):
            is_reader = _is_right(r, level)
            x = tl.where(is_reader, q * before, k * after)
            z = tl.where(is_reader, right * before, left * after)
            siblings = _are_siblings(r, c, level)
            x_x, x_z, z_z = _squares(x, z, ELEMENT)
            first += tl.where(siblings, tl.where(r > c, x_x, z_z), 0.0)
            second += tl.where(siblings, x_z, 0.0)
            before = tl.where(is_reader, before * other, before)
            after = tl.where(is_reader, after, after * other)
            other = _sibling_total(totals_ptr, t, level + 1, keys, K, C)
        inside = (keys < K)[None, :] & (r < C)
        tl.store(query_ptr + at_chunk * (C * K) + (r * K + keys[None, :]), q * before, mask=inside)
        at = at_chunk * (C * PARTS * K)
        here = r * (PARTS * K) + keys[None, :]
        _store_parts(key_ptr + at + here, k * after, inside, K, PARTS)
        _store_parts(lefts_ptr + at + here, left * after, inside, K, PARTS)
        _store_parts(rights_ptr + at + here, right * before, inside, K, PARTS)
    at = at_chunk * (C * C)
    tl.store(by_key_ptr + at + (r * C + c), tl.where(r >= c, first, 0.0))
    tl.store(by_left_ptr + at + (r * C + c), tl.where(r >= c, second, 0.0))
    system_ptr += at_chunk * (2 * C * C)
    tl.store(system_ptr + (c * C + r), first, mask=r < c)
    tl.store(system_ptr + C * C + (c * C + r), second, mask=r < c)


@triton.jit
@no_type_check
def _solve_kernel(
    system_ptr,
    rights_ptr,
    inverse_ptr,
    mixed_ptr,
    offsets_ptr,
    T,
    P,
    H,
    K: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """M, M F, and M R in the place of R.

    The inverse is built by halves, [[A, 0], [-B, D]]⁻¹ = [[A⁻¹, 0], [D⁻¹ B A⁻¹, D⁻¹]], with blocks
    of 2, 4, ... tokens: every number on the way is part of the inverse of a smaller system.
    """
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:
            return
    tokens = tl.arange(0, C)
    i, j = tokens[:, None], tokens[None, :]
    at_chunk = head * tl.num_programs(0) + chunk
    system_ptr += at_chunk * (2 * C * C)
    e = tl.load(system_ptr + (i * C + j), mask=i > j, other=0.0)
    inverse = tl.where(i == j, 1.0, 0.0) + tl.where(i // 2 == j // 2, e, 0.0)
    for level in tl.static_range(1, LEVELS):
        part = tl.where(_are_siblings(i, j, level), e, 0.0)
        part = tl.dot(part, inverse, input_precision="tf32x3")
        inverse += tl.dot(inverse, part, input_precision="tf32x3")
    tl.store(inverse_ptr + at_chunk * (C * C) + (i * C + j), inverse)
    f = tl.load(system_ptr + C * C + (i * C + j), mask=i > j, other=0.0)
    mixed = tl.dot(inverse, f, input_precision="tf32x3")
    mixed_ptr += at_chunk * (C * PARTS * C)
    _store_parts(mixed_ptr + (i * (PARTS * C) + j), mixed, i < C, C, PARTS)
    rights_ptr += at_chunk * (C * PARTS * K)
    for block in range(0, K, BK):
        keys = block + tl.arange(0, BK)
        here = rights_ptr + (i * (PARTS * K) + keys[None, :])
        inside = (keys < K)[None, :] & (i < C)
        high = tl.load(here, mask=inside, other=0.0)
        low = high
        if PARTS == 2:
            low = tl.load(here + K, mask=inside, other=0.0)
        rights = _onto(inverse, high, low, tl.zeros([C, BK], tl.float32), PARTS)
        tl.debug_barrier()  # what is overwritten has been read
        _store_parts(here, rights, inside, K, PARTS)


# ----------------------------------------------------------------------- along the chunks


@triton.jit
@no_type_check
def _carry_kernel(
    x_ptr,
    reads_ptr,
    writes_ptr,
    direct_ptr,
    mix_ptr,
    totals_ptr,
    start_ptr,
    states_ptr,
    seen_ptr,
    last_ptr,
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
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    REVERSE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """W = scale mix x + reads state; state ← Diag(total) state + writesᵀ W + scale directᵀ x.

    Along the chunks of one head of a sequence and a block of values; `states` keeps what each chunk
    met. In reverse x is dy, `mix` S^lᵀ, and it and `direct` have one part.
    """
    program = tl.program_id(0).to(tl.int64)
    head, block = program // NV, (program % NV).to(tl.int32)
    b, begin, length = place(offsets_ptr, head // H, T, P)
    lowest = (b * H + head % H) * chunks + first_chunk(begin, head // H - b * P, C)
    tokens, keys = tl.arange(0, C), tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    in_k, in_v = keys < K, values < V
    inside = in_v[:, None] & in_k[None, :]
    within = keys[None, :] * V + values[:, None]  # of a state [K, V]
    x_ptr += ((b * T + begin) * H + head % H) * V
    count = tl.cdiv(length, C)
    both: tl.constexpr = PARTS * K
    own: tl.constexpr = 1 if REVERSE else PARTS

    state = tl.zeros([BV, BK], tl.float32)
    if start_ptr is not None:
        state += tl.load(start_ptr + head * K * V + within, mask=inside, other=0.0).to(tl.float32)
    for step in range(count):
        chunk = count - 1 - step if REVERSE else step
        at_chunk = lowest + chunk
        # what differs between chunks is added to the pointer, so that the rest stays 32 bits
        begins = (chunk * C).to(tl.int64)
        x = _rows(x_ptr + begins * (H * V), tokens, length - begins, H * V, values, V, 0.0)
        at = at_chunk * (C * both)
        here = tokens[:, None] * both + keys[None, :]
        reads = tl.load(reads_ptr + at + here, mask=in_k[None, :], other=0.0)
        writes = tl.load(writes_ptr + at + here, mask=in_k[None, :], other=0.0)
        reads_low, writes_low = reads, writes
        if PARTS == 2:
            reads_low = tl.load(reads_ptr + at + K + here, mask=in_k[None, :], other=0.0)
            writes_low = tl.load(writes_ptr + at + K + here, mask=in_k[None, :], other=0.0)
        direct_at = direct_ptr + at_chunk * (C * own * K)
        here = tokens[:, None] * (own * K) + keys[None, :]
        direct = tl.load(direct_at + here, mask=in_k[None, :], other=0.0)
        mix_at = mix_ptr + at_chunk * (C * own * C)
        pair = tokens[:, None] * (own * C) + tokens[None, :]
        mix = tl.load(mix_at + pair)
        total = tl.load(totals_ptr + at_chunk * (C * K) + K + keys, mask=in_k, other=0.0)
        state_at = states_ptr + at_chunk * (K * V)
        tl.store(state_at + (values[:, None] * K + keys[None, :]), state, mask=inside)

        x = tl.trans(x)
        seen = tl.zeros([BV, C], tl.float32)
        if REVERSE:
            seen = SCALE * _leaf_onto(x, mix, seen)
        else:
            mix_low = mix
            if PARTS == 2:
                mix_low = tl.load(mix_at + C + pair)
            seen = _exact_onto(x, tl.trans(mix), tl.trans(mix_low), seen, PARTS)
        seen = _onto(state, tl.trans(reads), tl.trans(reads_low), seen, PARTS)
        seen_at = seen_ptr + at_chunk * (C * V)
        tl.store(seen_at + (tokens[None, :] * V + values[:, None]), seen, mask=in_v[:, None])
        state *= total[None, :]
        if REVERSE:
            state += SCALE * _leaf_onto(x, direct, tl.zeros([BV, BK], tl.float32))
        else:
            direct_low = direct
            if PARTS == 2:
                direct_low = tl.load(direct_at + K + here, mask=in_k[None, :], other=0.0)
            state = _exact_onto(x, direct, direct_low, state, PARTS)
        state = _onto(seen, writes, writes_low, state, PARTS)
    if last_ptr is not None:
        tl.store(last_ptr + head * K * V + within, state, mask=inside)


# ----------------------------------------------------------------------- outputs and gradients


@triton.jit
@no_type_check
def _outputs_kernel(
    x_ptr,
    seen_ptr,
    reads_ptr,
    own_ptr,
    mix_ptr,
    states_ptr,
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
    PARTS: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """y = scale (S^k v + S^l W + Q H), or dv = scale S^kᵀ dy + (M F)ᵀ dW + K G, of one chunk.

    `own` is S^k, `mix` S^l or M F, `reads` Q or K; the last two have parts in reverse.
    """
    head = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (V + BV - 1) // BV
    chunk = tl.program_id(0) // blocks
    values = tl.program_id(0) % blocks * BV + tl.arange(0, BV)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:
            return
    end -= begin
    tokens = tl.arange(0, C)
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * chunks + chunk
    parts: tl.constexpr = PARTS if REVERSE else 1
    in_v = values < V

    reads_ptr += at_chunk * (C * parts * K)
    states_ptr += at_chunk * (K * V)
    mix_ptr += at_chunk * (C * parts * C)
    own_ptr += at_chunk * (C * C)
    out = tl.zeros([C, BV], tl.float32)
    for block in range(0, K, BK):
        keys = block + tl.arange(0, BK)
        here = r * (parts * K) + keys[None, :]
        reads = tl.load(reads_ptr + here, mask=(keys < K)[None, :], other=0.0)
        here = values[:, None] * K + keys[None, :]
        inside = in_v[:, None] & (keys < K)[None, :]
        state = tl.load(states_ptr + here, mask=inside, other=0.0)
        out += _leaf(reads, tl.trans(state), ELEMENT)
    x = _rows(x_ptr + row * V, tokens, end, H * V, values, V, 0.0)
    seen_at = seen_ptr + at_chunk * (C * V)
    seen = tl.load(seen_at + (r * V + values[None, :]), mask=in_v[None, :], other=0.0)
    if REVERSE:
        mix = tl.load(mix_ptr + (c * (parts * C) + r))
        own = tl.load(own_ptr + (c * C + r))
        out += _leaf(mix, seen, ELEMENT)
        out += SCALE * _leaf(own, x, ELEMENT)
    else:
        mix = tl.load(mix_ptr + (r * C + c))
        own = tl.load(own_ptr + (r * C + c))
        out += _leaf(mix, seen, ELEMENT)
        out += _leaf(own, x, ELEMENT)
        out *= SCALE
    inside = (tokens < end)[:, None] & in_v[None, :]
    tl.store(out_ptr + row * V + (r * (H * V) + values[None, :]), out, mask=inside)


@triton.jit
@no_type_check
def _pairs_kernel(
    v_ptr,
    dy_ptr,
    seen_ptr,
    dseen_ptr,
    inverse_ptr,
    pairs_ptr,
    offsets_ptr,
    T,
    P,
    H,
    V: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
    SCALE: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """The gradients of S^k, S^l, E and F of one chunk, [4, C, C]; the upper halves mean nothing."""
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:
            return
    end -= begin
    tokens = tl.arange(0, C)
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * tl.num_programs(0) + chunk
    transposed = tl.load(inverse_ptr + at_chunk * (C * C) + (c * C + r))
    seen_ptr += at_chunk * (C * V)
    dseen_ptr += at_chunk * (C * V)
    dby_key = tl.zeros([C, C], tl.float32)
    dby_left = tl.zeros([C, C], tl.float32)
    de = tl.zeros([C, C], tl.float32)
    df = tl.zeros([C, C], tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        in_v = (values < V)[None, :]
        v = _rows(v_ptr + row * V, tokens, end, H * V, values, V, 0.0)
        dy = _rows(dy_ptr + row * V, tokens, end, H * V, values, V, 0.0)
        at = r * V + values[None, :]
        seen = tl.load(seen_ptr + at, mask=in_v, other=0.0)
        dseen = _leaf(transposed, tl.load(dseen_ptr + at, mask=in_v, other=0.0), ELEMENT)
        dby_key += _leaf(dy, tl.trans(v), ELEMENT)
        dby_left += _leaf(dy, tl.trans(seen), ELEMENT)
        de += _leaf(dseen, tl.trans(seen), ELEMENT)
        df += _leaf(dseen, tl.trans(v), ELEMENT)
    at = pairs_ptr + at_chunk * (4 * C * C) + (r * C + c)
    tl.store(at, SCALE * dby_key)
    tl.store(at + C * C, SCALE * dby_left)
    tl.store(at + 2 * C * C, de)
    tl.store(at + 3 * C * C, df)


@triton.jit
@no_type_check
def _ends_kernel(
    v_ptr,
    dy_ptr,
    seen_ptr,
    dseen_ptr,
    inverse_ptr,
    states_ptr,
    dstates_ptr,
    dvectors_ptr,
    dtotal_ptr,
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
    ELEMENT: tl.constexpr,
):
    """The gradients of Q, K, L and R of a block of keys in one chunk, [4, C, K], and of total."""
    head = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (K + BK - 1) // BK
    chunk = tl.program_id(0) // blocks
    keys = tl.program_id(0) % blocks * BK + tl.arange(0, BK)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:
            return
    end -= begin
    tokens = tl.arange(0, C)
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * chunks + chunk
    transposed = tl.load(inverse_ptr + at_chunk * (C * C) + (c * C + r))
    seen_ptr += at_chunk * (C * V)
    dseen_ptr += at_chunk * (C * V)
    states_ptr += at_chunk * (K * V)
    dstates_ptr += at_chunk * (K * V)
    dquery = tl.zeros([C, BK], tl.float32)
    dkey = tl.zeros([C, BK], tl.float32)
    dleft = tl.zeros([C, BK], tl.float32)
    dright = tl.zeros([C, BK], tl.float32)
    dtotal = tl.zeros([BK], tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        in_v = (values < V)[None, :]
        v = _rows(v_ptr + row * V, tokens, end, H * V, values, V, 0.0)
        dy = _rows(dy_ptr + row * V, tokens, end, H * V, values, V, 0.0)
        at = r * V + values[None, :]
        seen = tl.load(seen_ptr + at, mask=in_v, other=0.0)
        dseen = _leaf(transposed, tl.load(dseen_ptr + at, mask=in_v, other=0.0), ELEMENT)
        at = values[:, None] * K + keys[None, :]
        inside = (values < V)[:, None] & (keys < K)[None, :]
        state = tl.load(states_ptr + at, mask=inside, other=0.0)
        dstate = tl.load(dstates_ptr + at, mask=inside, other=0.0)
        dquery += _leaf(dy, state, ELEMENT)
        dright += _leaf(dseen, state, ELEMENT)
        dkey += _leaf(v, dstate, ELEMENT)
        dleft += _leaf(seen, dstate, ELEMENT)
        dtotal += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 0)
    at = dvectors_ptr + at_chunk * (4 * C * K) + (r * K + keys[None, :])
    inside = (keys < K)[None, :] & (r < C)
    tl.store(at, SCALE * dquery, mask=inside)
    tl.store(at + C * K, dkey, mask=inside)
    tl.store(at + 2 * C * K, dleft, mask=inside)
    tl.store(at + 3 * C * K, dright, mask=inside)
    tl.store(dtotal_ptr + at_chunk * K + keys, dtotal, mask=keys < K)


@triton.jit
@no_type_check
def _gates_kernel(
    q_ptr,
    k_ptr,
    decay_ptr,
    left_ptr,
    right_ptr,
    pairs_ptr,
    dvectors_ptr,
    totals_ptr,
    dtotal_ptr,
    dq_ptr,
    dk_ptr,
    ddecay_ptr,
    dleft_ptr,
    dright_ptr,
    offsets_ptr,
    T,
    P,
    H,
    chunks,
    K: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    BK: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """dq, dk, da, dl and dr of a block of keys in one chunk of one head."""
    head = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (K + BK - 1) // BK
    chunk = tl.program_id(0) // blocks
    keys = tl.program_id(0) % blocks * BK + tl.arange(0, BK)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:
            return
    end -= begin
    tokens = tl.arange(0, C)
    t = tokens
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * chunks + chunk

    decay_ptr += row * K
    totals_ptr += at_chunk * (C * K)
    q = _rows(q_ptr + row * K, t, end, H * K, keys, K, 0.0).to(tl.float32)
    k = _rows(k_ptr + row * K, t, end, H * K, keys, K, 0.0).to(tl.float32)
    a = _rows(decay_ptr, t, end, H * K, keys, K, 1.0).to(tl.float32)
    left = _rows(left_ptr + row * K, t, end, H * K, keys, K, 0.0).to(tl.float32)
    right = _rows(right_ptr + row * K, t, end, H * K, keys, K, 0.0).to(tl.float32)
    neighbour = _rows(decay_ptr, t ^ 1, end, H * K, keys, K, 1.0).to(tl.float32)

    # down the tree; dtotal is the gradient of the total of the block a token lies in
    in_k = (keys < K)[None, :] & (r < C)
    at = dvectors_ptr + at_chunk * (4 * C * K) + (r * K + keys[None, :])
    dquery = tl.load(at, mask=in_k, other=0.0).to(tl.float32)
    dkey = tl.load(at + C * K, mask=in_k, other=0.0).to(tl.float32)
    dleft = tl.load(at + 2 * C * K, mask=in_k, other=0.0).to(tl.float32)
    dright = tl.load(at + 3 * C * K, mask=in_k, other=0.0).to(tl.float32)
    dtotal = tl.load(dtotal_ptr + at_chunk * K + keys[None, :] + 0 * r, mask=in_k, other=0.0)
    # row i reads what came before it, row j wrote for what came after it
    pairs_ptr += at_chunk * (4 * C * C)
    lower = tl.maximum(r, c) * C + tl.minimum(r, c)
    by_key = tl.load(pairs_ptr + lower)
    of_e = tl.load(pairs_ptr + 2 * C * C + lower)
    mixed = tl.load(pairs_ptr + tl.where(r >= c, C * C, 3 * C * C) + lower)
    mixed_t = tl.load(pairs_ptr + tl.where(r > c, 3 * C * C, C * C) + lower)
    own_key = tl.load(pairs_ptr + tokens * C + tokens)[:, None].to(tl.float32)
    own_left = tl.load(pairs_ptr + C * C + tokens * C + tokens)[:, None].to(tl.float32)
    for step in range(LEVELS):
        level = LEVELS - 1 - step
        is_reader = _is_right(r, level)
        siblings = _are_siblings(r, c, level)
        # the gates from the start of its block to a reader, from a writer to the end
        gates = tl.where((level > 0) & (_is_right(r, 0) == is_reader), neighbour, 1.0)
        for below in range(1, level):
            other = _sibling_total(totals_ptr, t, below, keys, K, C)
            gates = tl.where(_is_right(r, below) == is_reader, gates * other, gates)
        other = neighbour
        if level > 0:
            other = _sibling_total(totals_ptr, t, level, keys, K, C)
        x = tl.where(is_reader, q * a, k) * gates
        z = tl.where(is_reader, right, left) * gates
        through = tl.where(is_reader, dquery, dkey) * x + tl.where(is_reader, dright, dleft) * z
        ones = tl.where(siblings, 1.0, 0.0)
        dtotal = _leaf(ones, through, ELEMENT) + dtotal * other
        direct = _leaf(tl.where(siblings, by_key, 0.0), x, ELEMENT)
        direct += _leaf(tl.where(siblings, mixed, 0.0), z, ELEMENT)
        dquery = tl.where(is_reader, dquery * other + direct, dquery)
        dkey = tl.where(is_reader, dkey, dkey * other + direct)
        direct = _leaf(tl.where(siblings, of_e, 0.0), z, ELEMENT)
        direct += _leaf(tl.where(siblings, mixed_t, 0.0), x, ELEMENT)
        dright = tl.where(is_reader, dright * other + direct, dright)
        dleft = tl.where(is_reader, dleft, dleft * other + direct)

    # the leaves: Q = q ∘ a, R = r, K = k, L = l, total = a, and each token's own writes
    at = r * (H * K) + keys[None, :]
    inside = (t < end)[:, None] & in_k
    tl.store(ddecay_ptr + row * K + at, dtotal + dquery * q, mask=inside)
    tl.store(dq_ptr + row * K + at, dquery * a + own_key * k + own_left * left, mask=inside)
    tl.store(dk_ptr + row * K + at, dkey + own_key * q, mask=inside)
    tl.store(dleft_ptr + row * K + at, dleft + own_left * q, mask=inside)
    tl.store(dright_ptr + row * K + at, dright, mask=inside)


# ------------------------------------------------------------------------------------- launches


def forward(inputs: Inputs, offsets: Tensor | None, y: Tensor, state: Tensor, kept: Saved) -> None:
    """Fills y, the final states and what is kept for the backward; tensors in one piece each."""
    q, k, v, decay, left, right, scale, initial_state = inputs
    batch, time, heads, key = k.shape
    value = v.shape[-1]
    chunks = kept.totals.shape[2]
    system = kept.totals.new_empty(*kept.totals.shape[:3], 2, CHUNK, CHUNK)
    where = (offsets, time, in_a_row(offsets), heads)
    grid = (chunks, batch * heads)
    tree = {"K": key, "C": CHUNK, "LEVELS": CHUNK.bit_length() - 1, "PARTS": _parts(v)}
    with on_device_of(q):
        launch(
            _totals_kernel,
            grid,
            *(decay, kept.totals),
            *where,
            K=key,
            C=CHUNK,
            LEVELS=CHUNK.bit_length() - 1,
            **_totals_tile(key),
        )
        launch(
            _scores_kernel,
            grid,
            *(q, k, decay, left, right),
            *(kept.by_key, kept.by_left, system),
            *(kept.query, kept.keys, kept.lefts, kept.rights, kept.totals),
            *where,
            ELEMENT=_element(v),
            **tree,
            **_scores_tile(key),
        )
        launch(
            _solve_kernel,
            grid,
            *(system, kept.rights, kept.inverse, kept.mixed),
            *where,
            **tree,
            **_solve_tile(key),
        )
        _carry(
            *(v, kept.rights, kept.lefts, kept.keys, kept.mixed, kept.totals, initial_state),
            *(kept.states, kept.seen, state, offsets, 1.0),
            reverse=False,
        )
        tile = _outputs_tile(key, value)
        launch(
            _outputs_kernel,
            (chunks * triton.cdiv(value, tile["BV"]), batch * heads),
            *(v, kept.seen, kept.query, kept.by_key, kept.by_left, kept.states, y),
            *where,
            chunks,
            K=key,
            V=value,
            C=CHUNK,
            SCALE=scale,
            REVERSE=False,
            PARTS=_parts(v),
            ELEMENT=_element(v),
            **tile,
        )


def backward(
    inputs: Inputs,
    offsets: Tensor | None,
    kept: Saved,
    dy: Tensor,
    dstate: Tensor | None,
    grads: tuple[Tensor, ...],
) -> None:
    """Fills the gradients; that of the initial state where there is one."""
    q, k, v, decay, left, right, scale, initial_state = inputs
    dq, dk, dv, ddecay, dleft, dright, dstart, *_ = grads
    batch, time, heads, key = k.shape
    value = v.shape[-1]
    chunks = kept.totals.shape[2]
    lead = kept.totals.shape[:3]
    dstates, dseen = torch.empty_like(kept.states), torch.empty_like(kept.seen)
    pairs = v.new_empty(*lead, 4, CHUNK, CHUNK)
    dvectors = v.new_empty(*lead, 4, CHUNK, key)
    dtotal = kept.totals.new_empty(*lead, key)
    where = (offsets, time, in_a_row(offsets), heads)
    grid = (chunks, batch * heads)
    element = {"ELEMENT": _element(v)}
    sizes = {"K": key, "V": value, "C": CHUNK, "SCALE": scale} | element
    tree = {"K": key, "C": CHUNK, "LEVELS": CHUNK.bit_length() - 1} | element
    with on_device_of(q):
        _carry(
            *(dy, kept.lefts, kept.rights, kept.query, kept.by_left, kept.totals, dstate),
            *(dstates, dseen, None if initial_state is None else dstart, offsets, scale),
            reverse=True,
        )
        tile = _outputs_tile(key, value)
        launch(
            _outputs_kernel,
            (chunks * triton.cdiv(value, tile["BV"]), batch * heads),
            *(dy, dseen, kept.keys, kept.by_key, kept.mixed, dstates, dv),
            *where,
            chunks,
            REVERSE=True,
            PARTS=_parts(v),
            **sizes,
            **tile,
        )
        given = (v, dy, kept.seen, dseen, kept.inverse)
        own = {"V": value, "C": CHUNK, "SCALE": scale} | element
        launch(_pairs_kernel, grid, *given, pairs, *where, **own, **_pairs_tile(value))
        tile = _ends_tile(key, value)
        launch(
            _ends_kernel,
            (chunks * triton.cdiv(key, tile["BK"]), batch * heads),
            *(*given, kept.states, dstates, dvectors, dtotal),
            *where,
            chunks,
            **sizes,
            **tile,
        )
        tile = _gates_tile(key)
        launch(
            _gates_kernel,
            (chunks * triton.cdiv(key, tile["BK"]), batch * heads),
            *(q, k, decay, left, right, pairs, dvectors, kept.totals, dtotal),
            *(dq, dk, ddecay, dleft, dright),
            *where,
            chunks,
            **tree,
            **tile,
        )


def _carry(
    x: Tensor,
    reads: Tensor,
    writes: Tensor,
    direct: Tensor,
    mix: Tensor,
    totals: Tensor,
    start: Tensor | None,
    states: Tensor,
    seen: Tensor,
    last: Tensor | None,
    offsets: Tensor | None,
    scale: float,
    *,
    reverse: bool,
) -> None:
    batch, heads, chunks, value, key = states.shape
    sequences = batch * int(in_a_row(offsets))
    tile = _carry_tile(sequences * heads, key, value)
    blocks = triton.cdiv(value, tile["BV"])
    launch(
        _carry_kernel,
        (sequences * heads * blocks,),
        *(x, reads, writes, direct, mix, totals, start, states, seen, last, offsets),
        x.shape[1],
        in_a_row(offsets),
        heads,
        chunks,
        K=key,
        V=value,
        C=CHUNK,
        NV=blocks,
        SCALE=scale,
        REVERSE=reverse,
        PARTS=_parts(x),
        **tile,
    )


def _element(v: Tensor) -> tl.dtype:
    """What factors are made of: bfloat16 where the values are."""
    return _ELEMENTS[v.dtype]


def _parts(v: Tensor) -> int:
    """Numbers that a factor of other products is kept as."""
    return 1 if v.dtype == torch.float32 else 2


def _totals_tile(key: int) -> dict[str, Any]:
    """All keys."""
    return {"BK": _block(key, 256), "num_warps": 4, "num_stages": 1}


def _scores_tile(key: int) -> dict[str, Any]:
    """Keys at a time."""
    return {"BK": _block(key, 32), "num_warps": 2, "num_stages": 1}


def _solve_tile(key: int) -> dict[str, Any]:
    """Keys at a time."""
    return {"BK": _block(key, 128), "num_warps": 2, "num_stages": 1}


def _carry_tile(heads: int, key: int, value: int) -> dict[str, Any]:
    """All keys, and so many values that there is about one program for each multiprocessor."""
    keys = _block(key, 128)
    wide = keys == 128 and value >= 128 and 2 * heads * triton.cdiv(value, 128) > MULTIPROCESSORS
    narrow = keys == 128 and 2 * heads * triton.cdiv(value, 32) <= MULTIPROCESSORS
    if wide:
        return {"BK": keys, "BV": 128, "num_warps": 8, "num_stages": 3}
    if narrow:
        return {"BK": keys, "BV": 16, "num_warps": 4, "num_stages": 2}
    return {"BK": keys, "BV": 32, "num_warps": 8, "num_stages": 2}


def _outputs_tile(key: int, value: int) -> dict[str, Any]:
    """Keys at a time, and values."""
    return {"BK": _block(key, 64), "BV": _block(value, 128), "num_warps": 4, "num_stages": 2}


def _pairs_tile(value: int) -> dict[str, Any]:
    """Values at a time."""
    return {"BV": _block(value, 64), "num_warps": 2, "num_stages": 2}


def _ends_tile(key: int, value: int) -> dict[str, Any]:
    """Keys, and values at a time."""
    return {"BK": _block(key, 64), "BV": _block(value, 128), "num_warps": 4, "num_stages": 2}


def _gates_tile(key: int) -> dict[str, Any]:
    """Keys; few registers, so that two programs share a multiprocessor."""
    return {"BK": _block(key, 64), "num_warps": 8, "num_stages": 1, "maxnreg": 128}


def _block(size: int, most: int) -> int:
    """A power of two that products accept, at most `most`."""
    return min(max(power_of_two(size), 16), most)
