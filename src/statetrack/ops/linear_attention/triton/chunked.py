"""Linear attention for long sequences with one gate per key: chunks, gates of either sign.

docs/design/signed_gates.md derives the form: a chunk is halved again and again, and each product of
gates is split where two tokens part, so that only products of gates appear and no quotient.
Letters: B batch, T time, H heads, K key, V value, N chunks of C tokens; H_n is the state before
chunk n, G_n the gradient of the state after it. Inside a chunk, at blocks of `width` tokens,

    prefix_i = the gates from the start of its block to i, both included    Q_i = q_i ∘ prefix_i
    suffix_j = the gates after j to the end of its block                    K_j = k_j ∘ suffix_j

and on the level above, the prefix of a right block is multiplied with the product of all gates of
the block to its left, the suffix of a left block with that of the block to its right. Kernels:

    scores   S_ij = q_iᵀ Diag(a_{j+1} ⋯ a_i) k_j for j <= i, and Q, K and the total of each chunk
    states   H_{n+1} = Diag(total) H_n + Kᵀ v, chunk after chunk; reversed: G from Q and dy
    outputs  y = scale (S v + Q H_n); mirrored: dv = scale Sᵀ dy + K G_n
    pairs    dS = scale dy vᵀ
    ends     dQ = scale dy H_nᵀ, dK = v G_nᵀ and dtotal = Σ_value G_n ∘ H_n
    gates    dq, dk and da: up the tree once more and down again

All but `states` work on all chunks at once; few long sequences are cut into segments for it
(_triton/segments.py). A chunk holds tokens of one sequence: where a row holds P of them
(`Packing`), it has N = ⌈T/C⌉ + P - 1 places for chunks (_triton/rows.py).

Precision. The state is float32 wherever a later state is made of it, and products that make one
have both factors good to 16 bits at least; so does everything for float32 inputs (three TF32
products). With bfloat16 inputs, what ends in a result without passing through a state is made of
bfloat16 products, and copies of states that serve no other end are kept in bfloat16; with float16
it is TF32.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import chunk_at, first_chunk, place
from statetrack.ops._triton.runtime import on_device_of, power_of_two
from statetrack.ops._triton.segments import join, places, segment_at, segment_length
from statetrack.ops.packing import in_a_row

__all__ = ["Saved", "backward", "forward", "saved"]

CHUNK = 32  # tokens
ENOUGH = 256  # programs for states that are not worth cutting in time
PROGRAMS = 2 * 132  # wanted of those that are
SHORTEST = 8  # chunks of a segment


class Saved(NamedTuple):
    """What the forward leaves for the backward; the last two float32, the others as `_kept_in`."""

    states: Tensor  # [B, H, N, K, V], one before each chunk
    scores: Tensor  # [B, H, N, C, C]
    query: Tensor  # [B, H, N, C, K]
    key: Tensor  # [B, H, N, C, K]
    total: Tensor  # [B, H, N, K]


def saved(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None) -> Saved:
    """Empty tensors of the right shapes."""
    batch, time, heads, key = k.shape
    lead = (batch, heads, -(-time // CHUNK) + in_a_row(offsets) - 1)
    half, full = _kept_in(q, k, v), torch.float32
    shapes = [(key, v.shape[-1]), (CHUNK, CHUNK), (CHUNK, key), (CHUNK, key), (key,)]
    dtypes = [half, half, half, full, full]
    return Saved(*(k.new_empty(*lead, *s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)))


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _rows(ptr, t, T, stride, index, SIZE: tl.constexpr, OTHER: tl.constexpr):
    """[t, index] of a [T, SIZE] array whose rows are `stride` apart."""
    inside = (t < T)[:, None] & (index < SIZE)[None, :]
    return tl.load(ptr + t[:, None] * stride + index[None, :], mask=inside, other=OTHER)


@triton.jit
@no_type_check
def _product(x, y, PRECISION: tl.constexpr):
    """x @ y in float32; PRECISION is "bf16", or what Triton calls the precision of its input."""
    if PRECISION == "bf16":
        return tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    else:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)


@triton.jit
@no_type_check
def _is_right(i, W: tl.constexpr):
    """Whether token i of a chunk lies in the right one of two neighbouring blocks of W tokens."""
    return i % (2 * W) >= W


@triton.jit
@no_type_check
def _are_siblings(i, j, W: tl.constexpr):
    """Whether i lies in one block of W tokens and j in the other one of its pair."""
    return (i // (2 * W) == j // (2 * W)) & (_is_right(i, W) != _is_right(j, W))


@triton.jit
@no_type_check
def _sibling_total(prefix, tokens, W: tl.constexpr, C: tl.constexpr, BK: tl.constexpr):
    """For each token the product of all gates of its block's sibling: the prefix at its end."""
    end = tokens // (2 * W) * (2 * W) + tl.where(_is_right(tokens, W), W - 1, 2 * W - 1)
    return tl.gather(prefix, tl.broadcast_to(end[:, None], [C, BK]), 0)


@triton.jit
@no_type_check
def _scores_kernel(
    q_ptr,
    k_ptr,
    decay_ptr,
    scores_ptr,
    query_ptr,
    key_ptr,
    total_ptr,
    offsets_ptr,
    T,
    P,
    H,
    K: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tokens = tl.arange(0, C)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tokens
    end -= begin
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * tl.num_programs(0) + chunk
    q_ptr += row * K
    k_ptr += row * K
    decay_ptr += row * K

    scores = tl.zeros([C, C], tl.float32)
    for block in range(0, K, BK):
        keys = block + tl.arange(0, BK)
        q = _rows(q_ptr, t, end, H * K, keys, K, 0.0).to(tl.float32)
        k = _rows(k_ptr, t, end, H * K, keys, K, 0.0).to(tl.float32)
        prefix = _rows(decay_ptr, t, end, H * K, keys, K, 1.0).to(tl.float32)
        suffix = tl.full([C, BK], 1.0, tl.float32)
        own = _product(q, tl.trans(k), PRECISION)
        scores += tl.where(r == c, own, 0.0)
        for level in tl.static_range(LEVELS):
            right = _is_right(r, 2**level)
            reader_or_writer = tl.where(right, q * prefix, k * suffix)
            part = _product(reader_or_writer, tl.trans(reader_or_writer), PRECISION)
            scores += tl.where(_are_siblings(r, c, 2**level) & (r > c), part, 0.0)
            other = _sibling_total(prefix, tokens, 2**level, C, BK)
            prefix = tl.where(right, prefix * other, prefix)
            suffix = tl.where(right, suffix, suffix * other)
        inside = (keys < K)[None, :]
        at = (at_chunk * C + r) * K + keys[None, :]
        tl.store(query_ptr + at, q * prefix, mask=inside)
        tl.store(key_ptr + at, k * suffix, mask=inside)
        last = total_ptr + at_chunk * K + keys[None, :] + 0 * r
        tl.store(last, prefix, mask=inside & (r == C - 1))
    tl.store(scores_ptr + (at_chunk * C + r) * C + c, scores)


@triton.jit
@no_type_check
def span(offsets_ptr, unit, T, P, H, chunks, places, segment, C: tl.constexpr, REVERSE):
    """Where a program for states walks: along a head of a sequence, or of a segment of one.

    (head of the sequence, first token of the head, number of tokens, place of the first chunk,
    whether it comes last in its direction). `places` are those for segments in a row.
    """
    if segment is None:
        head = unit
        h = unit % H
        row, begin, length = place(offsets_ptr, unit // H, T, P)
        lowest = (row * H + h) * chunks + first_chunk(begin, unit // H - row * P, C)
        end = True
    else:
        h = unit // places % H
        at = unit // places // H * places + unit % places
        row, sequence, index, begin, length, end = segment_at(
            offsets_ptr, at, T, P, places, segment
        )
        head = sequence * H + h
        lowest = (row * H + h) * chunks + index * segment // C
        lowest += first_chunk(begin - index * segment, sequence - row * P, C)
        if REVERSE:
            end = index == 0
    return head, (row * T + begin) * H + h, length, lowest, end


@triton.jit(do_not_specialize=["places", "segment"])
@no_type_check
def _states_kernel(
    x_ptr,
    w_ptr,
    total_ptr,
    start_ptr,
    states_ptr,
    product_ptr,
    last_ptr,
    offsets_ptr,
    T,
    P,
    H,
    chunks,
    places,
    segment,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    SCALE: tl.constexpr,
    REVERSE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """State ← Diag(total) state + scale · xᵀ w over the chunks; `states` keeps what each chunk met.

    Of a sequence, or of a segment where `segment` is not None: `start` has a state for each of
    them, `last` for each sequence. Without `states`, the map of each segment: `product`, `last`.
    SPLIT: w is bfloat16, and x, if it is not, goes in as the sum of two bfloat16 numbers.
    """
    blocks: tl.constexpr = (V + BV - 1) // BV
    tiles: tl.constexpr = (K + BK - 1) // BK * blocks
    unit = (tl.program_id(0) // tiles).to(tl.int64)  # a head of a sequence, or of a segment
    tile = tl.program_id(0) % tiles
    keys = tile // blocks * BK + tl.arange(0, BK)
    values = tile % blocks * BV + tl.arange(0, BV)
    head, token, length, lowest, end = span(
        offsets_ptr, unit, T, P, H, chunks, places, segment, C, REVERSE
    )
    if states_ptr is None:
        if end:  # nothing comes after it
            return
    count = tl.cdiv(length, C)
    tokens = tl.arange(0, C)
    in_k = keys < K
    at = keys[:, None] * V + values[None, :]
    inside = in_k[:, None] & (values < V)[None, :]
    w_ptr += token * V

    state = tl.zeros([BK, BV], tl.float32)
    product = tl.full([BK], 1.0, tl.float32)
    if start_ptr is not None:
        state += tl.load(start_ptr + unit * K * V + at, mask=inside, other=0.0).to(tl.float32)
    for step in range(count):
        chunk = count - 1 - step if REVERSE else step
        at_chunk = lowest + chunk
        if states_ptr is not None:
            tl.store(states_ptr + at_chunk * K * V + at, state, mask=inside)
        x_at = x_ptr + (at_chunk * C + tokens[None, :]) * K + keys[:, None]
        x = tl.load(x_at, mask=in_k[:, None], other=0.0)
        w = _rows(w_ptr, chunk * C + tokens, length, H * V, values, V, 0.0)
        total = tl.load(total_ptr + at_chunk * K + keys, mask=in_k, other=0.0)
        if SPLIT:
            high = x.to(tl.bfloat16)
            added = tl.dot(high, w)
            if x.dtype == tl.float32:
                low = (x - high.to(tl.float32)).to(tl.bfloat16)
                added = tl.dot(low, w, added)
        else:
            added = _product(x, w, "tf32x3")
        state = total[:, None] * state + SCALE * added
        if states_ptr is None:
            product *= total
    if states_ptr is None:
        tl.store(last_ptr + unit * K * V + at, state, mask=inside)
        if tile % blocks == 0:
            tl.store(product_ptr + unit * K + keys, product, mask=in_k)
    elif last_ptr is not None:
        if end:
            tl.store(last_ptr + head * K * V + at, state, mask=inside)


@triton.jit
@no_type_check
def _outputs_kernel(
    x_ptr,
    scores_ptr,
    w_ptr,
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
    PRECISION: tl.constexpr,
):
    """y = scale (S v + Q H), or in reverse dv = scale Sᵀ dy + K G, of one chunk of one head."""
    head = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (V + BV - 1) // BV
    chunk = tl.program_id(0) // blocks
    values = tl.program_id(0) % blocks * BV + tl.arange(0, BV)
    tokens = tl.arange(0, C)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tokens
    end -= begin
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * chunks + chunk
    x_ptr += at_chunk * C * K
    states_ptr += at_chunk * K * V

    out = tl.zeros([C, BV], tl.float32)
    for block in range(0, K, BK):
        keys = block + tl.arange(0, BK)
        x = tl.load(x_ptr + r * K + keys[None, :], mask=(keys < K)[None, :], other=0.0)
        at = keys[:, None] * V + values[None, :]
        inside = (keys < K)[:, None] & (values < V)[None, :]
        state = tl.load(states_ptr + at, mask=inside, other=0.0)
        out += _product(x, state, PRECISION)
    w = _rows(w_ptr + row * V, t, end, H * V, values, V, 0.0).to(tl.float32)
    if REVERSE:
        scores = tl.load(scores_ptr + (at_chunk * C + c) * C + r)
        out += SCALE * _product(scores, w, PRECISION)
    else:
        # a product with zeros would carry a NaN of v to earlier tokens
        finite = tl.abs(w) < float("inf")
        scores = tl.load(scores_ptr + (at_chunk * C + r) * C + c)
        out += _product(scores, tl.where(finite, w, 0.0), PRECISION)
        out *= SCALE
        if tl.min(tl.min(finite.to(tl.int32), 1), 0) == 0:
            out += tl.cumsum(tl.where(finite, 0.0, float("nan")), 0)
    inside = (t < end)[:, None] & (values < V)[None, :]
    at = out_ptr + (row + t[:, None].to(tl.int64) * H) * V + values[None, :]
    tl.store(at, out, mask=inside)


@triton.jit
@no_type_check
def _pairs_kernel(
    v_ptr,
    dy_ptr,
    pairs_ptr,
    offsets_ptr,
    T,
    P,
    H,
    V: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    chunk, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tokens = tl.arange(0, C)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tokens
    end -= begin
    row = (head // H * T + begin) * H + head % H  # of the first token
    pairs = tl.zeros([C, C], tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        v = _rows(v_ptr + row * V, t, end, H * V, values, V, 0.0).to(tl.float32)
        dy = _rows(dy_ptr + row * V, t, end, H * V, values, V, 0.0).to(tl.float32)
        pairs += _product(dy, tl.trans(v), PRECISION)
    at = (head * tl.num_programs(0) + chunk) * C * C
    tl.store(pairs_ptr + at + tokens[:, None] * C + tokens[None, :], SCALE * pairs)


@triton.jit
@no_type_check
def _ends_kernel(
    v_ptr,
    dy_ptr,
    states_ptr,
    dstates_ptr,
    dquery_ptr,
    dkey_ptr,
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
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (K + BK - 1) // BK
    chunk = tl.program_id(0) // blocks
    keys = tl.program_id(0) % blocks * BK + tl.arange(0, BK)
    tokens = tl.arange(0, C)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tokens
    end -= begin
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * chunks + chunk
    dquery = tl.zeros([C, BK], tl.float32)
    dkey = tl.zeros([C, BK], tl.float32)
    dtotal = tl.zeros([BK], tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        v = _rows(v_ptr + row * V, t, end, H * V, values, V, 0.0).to(tl.float32)
        dy = _rows(dy_ptr + row * V, t, end, H * V, values, V, 0.0).to(tl.float32)
        at = at_chunk * K * V + keys[None, :] * V + values[:, None]
        inside = (values < V)[:, None] & (keys < K)[None, :]
        state = tl.load(states_ptr + at, mask=inside, other=0.0)
        dstate = tl.load(dstates_ptr + at, mask=inside, other=0.0)
        dquery += _product(dy, state, PRECISION)
        dkey += _product(v, dstate, PRECISION)
        dtotal += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 0)
    at = (at_chunk * C + tokens[:, None]) * K + keys[None, :]
    inside = (keys < K)[None, :]
    tl.store(dquery_ptr + at, SCALE * dquery, mask=inside)
    tl.store(dkey_ptr + at, dkey, mask=inside)
    tl.store(dtotal_ptr + at_chunk * K + keys, dtotal, mask=keys < K)


@triton.jit
@no_type_check
def _gates_kernel(
    q_ptr,
    k_ptr,
    decay_ptr,
    pairs_ptr,
    dquery_ptr,
    dkey_ptr,
    dtotal_ptr,
    dq_ptr,
    dk_ptr,
    ddecay_ptr,
    offsets_ptr,
    T,
    P,
    H,
    chunks,
    K: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dq, dk and da of a block of keys in one chunk of one head."""
    head = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (K + BK - 1) // BK
    chunk = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    keys = block * BK + tl.arange(0, BK)
    tokens = tl.arange(0, C)
    begin, end = chunk_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tokens
    end -= begin
    r, c = tokens[:, None], tokens[None, :]
    row = (head // H * T + begin) * H + head % H  # of the first token
    at_chunk = head * chunks + chunk

    # up the tree, keeping what each level read
    q = _rows(q_ptr + row * K, t, end, H * K, keys, K, 0.0).to(tl.float32)
    k = _rows(k_ptr + row * K, t, end, H * K, keys, K, 0.0).to(tl.float32)
    a = _rows(decay_ptr + row * K, t, end, H * K, keys, K, 1.0).to(tl.float32)
    prefix = a
    suffix = tl.full([C, BK], 1.0, tl.float32)
    kept = ()
    for level in tl.static_range(LEVELS):
        right = _is_right(r, 2**level)
        other = _sibling_total(prefix, tokens, 2**level, C, BK)
        reader_or_writer = tl.where(right, q * prefix, k * suffix)
        if PRECISION == "bf16":  # as which it is multiplied anyway: half the registers
            reader_or_writer = reader_or_writer.to(tl.bfloat16)
        kept = kept + ((reader_or_writer, other),)
        prefix = tl.where(right, prefix * other, prefix)
        suffix = tl.where(right, suffix, suffix * other)

    # down the tree; dtotal is the gradient of the total of the block a token lies in
    in_k = (keys < K)[None, :]
    at = (at_chunk * C + r) * K + keys[None, :]
    dquery = tl.load(dquery_ptr + at, mask=in_k, other=0.0).to(tl.float32)
    dkey = tl.load(dkey_ptr + at, mask=in_k, other=0.0).to(tl.float32)
    dtotal = tl.load(dtotal_ptr + at_chunk * K + keys[None, :] + 0 * r, mask=in_k, other=0.0)
    # row i reads what came before it, row j wrote for what came after it
    dpairs = tl.load(pairs_ptr + (at_chunk * C + tl.maximum(r, c)) * C + tl.minimum(r, c))
    own = tl.load(pairs_ptr + (at_chunk * C + tokens) * C + tokens)[:, None].to(tl.float32)
    for level in tl.static_range(LEVELS - 1, -1, -1):
        reader_or_writer, other = kept[level]
        right = _is_right(r, 2**level)
        siblings = _are_siblings(r, c, 2**level)
        through = tl.where(right, dquery, dkey) * reader_or_writer.to(tl.float32)
        ones = tl.where(siblings, 1.0, 0.0)
        dtotal = _product(ones, through, PRECISION) + dtotal * other
        part = tl.where(siblings, dpairs, 0.0)
        direct = _product(part, reader_or_writer, PRECISION)
        dquery = tl.where(right, dquery * other + direct, dquery)
        dkey = tl.where(right, dkey, dkey * other + direct)

    # the leaves: query = q ∘ a, key = k, total = a, and each token's own write
    da = dtotal + dquery * q
    rows = row + t[:, None].to(tl.int64) * H
    inside = (t < end)[:, None] & in_k
    tl.store(dq_ptr + rows * K + keys[None, :], dquery * a + own * k, mask=inside)
    tl.store(dk_ptr + rows * K + keys[None, :], dkey + own * q, mask=inside)
    tl.store(ddecay_ptr + rows * K + keys[None, :], da, mask=inside)


# ------------------------------------------------------------------------------------- launches


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    scale: float,
    initial_state: Tensor | None,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
    kept: Saved,
) -> None:
    """Fills y, the final state and what is kept for the backward."""
    precision = _precision(q, k, v)
    with on_device_of(q):
        run_scores(q, k, decay, offsets, kept, precision)
        ends = (initial_state, offsets, kept.states, state, longest)
        run_states(kept.key, v, kept.total, *ends, 1.0, reverse=False)
        run_outputs(kept.query, kept.scores, v, offsets, kept.states, y, scale, precision, False)


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    scale: float,
    initial_state: Tensor | None,
    offsets: Tensor | None,
    longest: int,
    kept: Saved,
    dy: Tensor,
    dfinal: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    ddecay: Tensor,
    dstart: Tensor,
) -> None:
    """Fills the gradients; `dstart` where there is an initial state."""
    precision = _precision(q, k, v)
    half = kept.query.dtype
    states, scores, query, key = (torch.empty_like(x, dtype=half) for x in kept[:-1])
    dkept = Saved(states, scores, query, key, torch.empty_like(kept.total))
    with on_device_of(q):
        ends = (dfinal, offsets, dkept.states, None if initial_state is None else dstart, longest)
        run_states(kept.query, dy, kept.total, *ends, scale, reverse=True)
        run_outputs(kept.key, kept.scores, dy, offsets, dkept.states, dv, scale, precision, True)
        run_pairs_and_ends(v, dy, scale, offsets, kept, dkept, precision)
        run_gates(q, k, decay, offsets, dkept, dq, dk, ddecay, precision)


def run_scores(
    q: Tensor, k: Tensor, decay: Tensor, offsets: Tensor | None, kept: Saved, precision: str
) -> None:
    batch, time, heads, key = q.shape
    keys, options = _scores_tile(key, precision)
    launch(
        _scores_kernel,
        (kept.total.shape[2], batch * heads),
        q,
        k,
        decay,
        kept.scores,
        kept.query,
        kept.key,
        kept.total,
        offsets,
        time,
        in_a_row(offsets),
        heads,
        K=key,
        C=CHUNK,
        LEVELS=CHUNK.bit_length() - 1,
        BK=keys,
        PRECISION=precision,
        **options,
    )


def run_states(
    x: Tensor,
    w: Tensor,
    total: Tensor,
    start: Tensor | None,
    offsets: Tensor | None,
    states: Tensor,
    last: Tensor | None,
    longest: int,
    scale: float,
    *,
    reverse: bool,
) -> None:
    batch, heads, _, key, value = states.shape
    keys, values, warps, stages = _states_tile(key, value)
    tile = {"BK": keys, "BV": values, "num_warps": warps, "num_stages": stages}
    tiles = triton.cdiv(key, keys) * triton.cdiv(value, values)
    segment = _segment(batch * w.shape[1], longest, heads * tiles)
    options = {"C": CHUNK, "SCALE": scale, "REVERSE": reverse, "SPLIT": w.dtype == torch.bfloat16}
    given = (start, offsets, states, last, segment, tiles, options | tile)
    walk_states(_states_kernel, x, w, total, *given, gates=(key,))


def walk_states(
    kernel: Any,
    x: Tensor,
    w: Tensor,
    gates_of: Tensor,
    start: Tensor | None,
    offsets: Tensor | None,
    states: Tensor,
    last: Tensor | None,
    segment: int | None,
    tiles: int,
    options: dict[str, Any],
    *,
    gates: tuple[int, ...],
) -> None:
    """Runs a kernel for states: once, or where there are segments for their maps before.

    Args:
        gates_of: what the kernel makes the total of a chunk of, which has the axes `gates`.
        tiles: programs that share a state.
    """
    batch, heads, chunks, key, value = states.shape
    time = w.shape[1]
    options = options | {"K": key, "V": value}
    count = in_a_row(offsets) if segment is None else places(time, offsets, segment)
    units = batch * count * heads
    sizes = (offsets, time, in_a_row(offsets), heads, chunks, count, segment)
    if segment is not None:
        product = states.new_empty(batch, heads, count, *gates, dtype=torch.float32)
        begins = states.new_empty(batch, heads, count, key, value, dtype=torch.float32)
        maps = (None, None, product, begins)
        launch(kernel, (tiles * units,), x, w, gates_of, *maps, *sizes, **options)
        join(product, begins, start, offsets, time, segment, reverse=options["REVERSE"])
        start = begins
    results = (start, states, None, last)
    launch(kernel, (tiles * units,), x, w, gates_of, *results, *sizes, **options)


def _segment(tokens: int, longest: int, programs: int) -> int | None:
    """Tokens of a segment, None where sequences are not cut."""
    return segment_length(
        tokens,
        longest,
        programs,
        enough=ENOUGH,
        wanted=PROGRAMS,
        multiple=CHUNK,
        least=SHORTEST * CHUNK,
    )


def run_outputs(
    x: Tensor,
    scores: Tensor,
    w: Tensor,
    offsets: Tensor | None,
    states: Tensor,
    out: Tensor,
    scale: float,
    precision: str,
    reverse: bool,
) -> None:
    batch, heads, chunks, key, value = states.shape
    keys, values, warps, stages = _outputs_tile(key, value)
    launch(
        _outputs_kernel,
        (chunks * triton.cdiv(value, values), batch * heads),
        x,
        scores,
        w,
        states,
        out,
        offsets,
        w.shape[1],
        in_a_row(offsets),
        heads,
        chunks,
        K=key,
        V=value,
        C=CHUNK,
        BK=keys,
        BV=values,
        SCALE=scale,
        REVERSE=reverse,
        PRECISION=precision,
        num_warps=warps,
        num_stages=stages,
    )


def run_pairs_and_ends(
    v: Tensor,
    dy: Tensor,
    scale: float,
    offsets: Tensor | None,
    kept: Saved,
    dkept: Saved,
    precision: str,
) -> None:
    """Fills the gradients of the scores, the queries, the keys and the totals."""
    batch, heads, chunks, key, value = kept.states.shape
    time = v.shape[1]
    launch(
        _pairs_kernel,
        (chunks, batch * heads),
        v,
        dy,
        dkept.scores,
        offsets,
        time,
        in_a_row(offsets),
        heads,
        V=value,
        C=CHUNK,
        BV=_block(value, 64),
        SCALE=scale,
        PRECISION=precision,
        num_warps=4,
        num_stages=2,
    )
    keys, values, warps, stages = _ends_tile(key, value, precision)
    launch(
        _ends_kernel,
        (chunks * triton.cdiv(key, keys), batch * heads),
        v,
        dy,
        kept.states,
        dkept.states,
        dkept.query,
        dkept.key,
        dkept.total,
        offsets,
        time,
        in_a_row(offsets),
        heads,
        chunks,
        K=key,
        V=value,
        C=CHUNK,
        BK=keys,
        BV=values,
        SCALE=scale,
        PRECISION=precision,
        num_warps=warps,
        num_stages=stages,
    )


def run_gates(
    q: Tensor,
    k: Tensor,
    decay: Tensor,
    offsets: Tensor | None,
    dkept: Saved,
    dq: Tensor,
    dk: Tensor,
    ddecay: Tensor,
    precision: str,
) -> None:
    batch, time, heads, key = q.shape
    keys, options = _gates_tile(key, precision)
    blocks = triton.cdiv(key, keys)
    chunks = dkept.total.shape[2]
    launch(
        _gates_kernel,
        (chunks * blocks, batch * heads),
        q,
        k,
        decay,
        dkept.scores,
        dkept.query,
        dkept.key,
        dkept.total,
        dq,
        dk,
        ddecay,
        offsets,
        time,
        in_a_row(offsets),
        heads,
        chunks,
        K=key,
        C=CHUNK,
        LEVELS=CHUNK.bit_length() - 1,
        BK=keys,
        PRECISION=precision,
        **options,
    )


def _precision(q: Tensor, k: Tensor, v: Tensor) -> str:
    """Of products, as `_product` knows it: less only where results are rounded as much anyway."""
    dtypes = {q.dtype, k.dtype, v.dtype}
    if dtypes == {torch.bfloat16}:
        return "bf16"
    return "tf32" if dtypes <= {torch.bfloat16, torch.float16} else "tf32x3"


def _kept_in(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    """What factors of such products are kept in."""
    return torch.bfloat16 if _precision(q, k, v) == "bf16" else torch.float32


def _scores_tile(key: int, precision: str) -> tuple[int, dict[str, int]]:
    """(BK, launch options): keys at a time."""
    return _block(key, 32), {"num_warps": 4 if precision == "tf32x3" else 2, "num_stages": 1}


def _states_tile(key: int, value: int) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): the part of a state that one program carries through time."""
    return _block(key, 64), _block(value, 128), 4, 3


def _outputs_tile(key: int, value: int) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): keys at a time, value columns."""
    return _block(key, 64), _block(value, 64), 4, 3


def _ends_tile(key: int, value: int, precision: str) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): keys, value columns at a time."""
    return _block(key, 64), _block(value, 32 if precision == "tf32x3" else 128), 4, 2


def _gates_tile(key: int, precision: str) -> tuple[int, dict[str, int]]:
    """(BK, launch options): keys."""
    return _block(key, 32 if precision == "tf32x3" else 64), {"num_warps": 4, "num_stages": 1}


def _block(size: int, most: int) -> int:
    """A power of two that products accept, at most `most`."""
    return min(max(power_of_two(size), 16), most)
