"""Linear attention for long sequences with one gate per head: chunks, and few matrix products.

Letters as in chunked.py. All keys of a head share a gate, so that the gates of a chunk are numbers
between two tokens and need no tree: with D_ij = a_{j+1} ⋯ a_i for j <= i and 0 above, a running
product along i, prefix_i = a_1 ⋯ a_i and suffix_j = D_Cj,

    states     H_{n+1} = total H_n + (suffix ∘ K)ᵀ V; reversed: G from prefix ∘ Q and dy
    outputs    y = scale (S v + prefix ∘ (Q H_n)) with S = (Q Kᵀ) ∘ D;
               mirrored: dv = scale Sᵀ dy + suffix ∘ (K G_n)
    gradients  dk = scale ((dy vᵀ) ∘ D)ᵀ Q + suffix ∘ (v G_nᵀ);
               then dq = scale (((dy vᵀ) ∘ D) K + prefix ∘ (dy H_nᵀ)) and da

Only `states` goes along the sequence, in segments where that pays (_triton/segments.py). Nothing
but the states is saved. The gradient of a gate is a sum over all pairs of tokens around it,

    da_t = Σ_{j < t <= i} D_it W_ij D_{t-1,j},    W = scale (Q Kᵀ) ∘ (dy vᵀ)

in which i may also be the end of the chunk and j its start, that is G_n and H_n: the diagonal of
Dᵀ W D, moved by one token. Nothing is divided by a gate. Precision as in chunked.py.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import piece_at
from statetrack.ops._triton.runtime import on_device_of
from statetrack.ops._triton.segments import segment_length
from statetrack.ops.linear_attention.triton.chunked import (
    _block,
    _kept_in,
    _precision,
    _product,
    _rows,
    span,
    walk_states,
)
from statetrack.ops.packing import in_a_row

__all__ = ["backward", "forward", "saved"]

CHUNK = 64  # tokens
CHUNK_FLOAT32 = 32  # of products in three parts, which need more room
ENOUGH = 256  # programs for states that are not worth cutting in time
PROGRAMS = 2 * 132  # wanted of those that are
SHORTEST = 256  # tokens of a segment
FEW = tl.constexpr(64)  # value columns of a program that makes D along rows
LEAST = 64  # columns of half precision products: narrower ones ptxas 12.8 gets wrong (see README)


def saved(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None) -> Tensor:
    """An empty place for the state before each chunk, [B, H, N, K, V]."""
    batch, time, heads, value = v.shape
    count = -(-time // _chunk(q, k, v)) + in_a_row(offsets) - 1
    return k.new_empty(batch, heads, count, k.shape[-1], value, dtype=_kept_in(q, k, v))


def _chunk(q: Tensor, k: Tensor, v: Tensor) -> int:
    return CHUNK_FLOAT32 if _precision(q, k, v) == "tf32x3" else CHUNK


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _gates(ptr, t, end, H):
    """The gates of tokens t of a head; 1 outside of 0 <= t < end."""
    return tl.load(ptr + t * H, mask=(t >= 0) & (t < end), other=1.0).to(tl.float32)


@triton.jit
@no_type_check
def _between(a, C: tl.constexpr):
    """D [i, j]."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.where(i >= j, tl.cumprod(tl.where(i > j, a[:, None], 1.0), 0), 0.0)


@triton.jit
@no_type_check
def _between_falling(after, C: tl.constexpr):
    """D [i, j] with j from the last token to the first; `after` are the gates of tokens j + 1.

    Along rows, of which a warp has whole ones.
    """
    i, j = tl.arange(0, C)[:, None], C - 1 - tl.arange(0, C)[None, :]
    return tl.where(i >= j, tl.cumprod(tl.where(i > j, after[None, :], 1.0), 1), 0.0)


@triton.jit
@no_type_check
def _between_transposed(a, C: tl.constexpr):
    """D, as [j, i]."""
    j, i = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.where(i >= j, tl.cumprod(tl.where(i > j, a[None, :], 1.0), 1), 0.0)


@triton.jit
@no_type_check
def _keep(ptr, state, asked, keys, values, K: tl.constexpr, V: tl.constexpr):
    """Stores a part of a state if it is asked for."""
    inside = (keys < tl.where(asked, K, 0))[:, None] & (values < V)[None, :]
    tl.store(ptr + keys[:, None] * V + values[None, :], state, mask=inside)


@triton.jit(do_not_specialize=["places", "segment"])
@no_type_check
def _states_kernel(
    x_ptr,
    w_ptr,
    decay_ptr,
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
    GROUP: tl.constexpr,
):
    """State ← total · state + scale · (gates ∘ x)ᵀ w; arguments as in chunked.py.

    SPLIT: x and w are bfloat16; forward the gated x goes in as the sum of two bfloat16 numbers.
    GROUP: heads that share x.
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
    x_ptr += token // GROUP * K
    w_ptr += token * V
    decay_ptr += token

    state = tl.zeros([BK, BV], tl.float32)
    product = 1.0
    if start_ptr is not None:
        state += tl.load(start_ptr + unit * K * V + at, mask=inside, other=0.0).to(tl.float32)
    known: tl.constexpr = 1 if start_ptr is None else 0  # nobody reads zeros to begin with
    steps = count
    if last_ptr is None:  # nor asks for what the last chunk adds
        steps = count - 1
    for step in range(steps):
        chunk = count - 1 - step if REVERSE else step
        if states_ptr is not None:
            here = states_ptr + (lowest + chunk) * K * V
            _keep(here, state, step >= known, keys, values, K, V)
        t = chunk * C + tokens
        x_at = x_ptr + t[None, :] * (H // GROUP * K) + keys[:, None]
        x = tl.load(x_at, mask=in_k[:, None] & (t < length)[None, :], other=0.0)
        w = _rows(w_ptr, t, length, H * V, values, V, 0.0)
        prefix = tl.cumprod(_gates(decay_ptr, t, length, H), 0)
        total = tl.sum(tl.where(tokens == C - 1, prefix, 0.0))
        if REVERSE:
            gates = prefix
        else:
            after = _gates(decay_ptr, t + 1, tl.minimum(length, (chunk + 1) * C), H)
            gates = tl.cumprod(after, 0, reverse=True)
        gated = x.to(tl.float32) * gates[None, :]
        if SPLIT:
            high = gated.to(tl.bfloat16)
            added = tl.dot(high, w)
            if not REVERSE:
                low = (gated - high.to(tl.float32)).to(tl.bfloat16)
                added = tl.dot(low, w, added)
        else:
            added = _product(gated, w, "tf32x3")
        state = total * state + SCALE * added
        product *= total
    if states_ptr is None:
        tl.store(last_ptr + unit * K * V + at, state, mask=inside)
        if tile == 0:
            tl.store(product_ptr + unit, product)
    elif last_ptr is None:
        here = states_ptr + (lowest + (0 if REVERSE else count - 1)) * K * V
        _keep(here, state, count > known, keys, values, K, V)
    else:
        if end:
            tl.store(last_ptr + head * K * V + at, state, mask=inside)


@triton.jit
@no_type_check
def _outputs_kernel(
    x_ptr,
    z_ptr,
    w_ptr,
    decay_ptr,
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
    GIVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
):
    """y from x, z, w = q, k, v and H, or in reverse dv from k, q, dy and G; a chunk of a head.

    Unless one was GIVEN, the state at the start of a sequence, or G at its end, is zero.
    GROUP: heads that share x and z. For few values the tokens of k and v are taken from the last to
    the first, so that D is made along rows (see README).
    """
    blocks: tl.constexpr = (V + BV - 1) // BV
    at_chunk = (tl.program_id(0) // blocks).to(tl.int64)
    values = tl.program_id(0) % blocks * BV + tl.arange(0, BV)
    head = at_chunk // chunks
    chunk = (at_chunk % chunks).to(tl.int32)
    _, index, begin, end = piece_at(offsets_ptr, head // H, chunk, T, P, C)
    if offsets_ptr is not None:
        if begin == end:  # no chunk here, and what is saved in its place is never read
            return
    t = tl.arange(0, C)
    falling: tl.constexpr = BV <= FEW and not REVERSE
    s = C - 1 - t if falling else t  # along rows of scores
    end -= begin
    zeros = ((end <= C) if REVERSE else (index == 0)) & (not GIVEN)
    met = tl.where(zeros, 0, K)  # keys of the state that are not zero
    row = (head // H * T + begin) * H + head % H  # of the first token
    x_ptr += row // GROUP * K
    z_ptr += row // GROUP * K
    decay_ptr += row
    states_ptr += at_chunk * K * V

    scores = tl.zeros([C, C], tl.float32)
    out = tl.zeros([C, BV], tl.float32)
    for block in range(0, K, BK):
        keys = block + tl.arange(0, BK)
        x = _rows(x_ptr, t, end, H // GROUP * K, keys, K, 0.0)
        z = _rows(z_ptr, s, end, H // GROUP * K, keys, K, 0.0)
        at = keys[:, None] * V + values[None, :]
        inside = (keys < met)[:, None] & (values < V)[None, :]
        state = tl.load(states_ptr + at, mask=inside, other=0.0)
        scores += _product(x, tl.trans(z), PRECISION)
        out += _product(x, state, PRECISION)
    a = _gates(decay_ptr, t, end, H)
    after = _gates(decay_ptr, s + 1, tl.minimum(end, C), H)
    w = _rows(w_ptr + row * V, s, end, H * V, values, V, 0.0).to(tl.float32)
    if REVERSE:
        scores = tl.where(t[:, None] <= s[None, :], scores * _between_transposed(a, C), 0.0)
        out = tl.cumprod(after, 0, reverse=True)[:, None] * out
        out += SCALE * _product(scores, w, PRECISION)
    else:
        # a product with zeros would carry a NaN of v to earlier tokens
        finite = tl.abs(w) < float("inf")
        between = _between_falling(after, C) if falling else _between(a, C)
        scores = tl.where(t[:, None] >= s[None, :], scores * between, 0.0)
        out = tl.cumprod(a, 0)[:, None] * out
        out += _product(scores, tl.where(finite, w, 0.0), PRECISION)
        out *= SCALE
        if falling:
            first = tl.min(tl.where(finite, C, s[:, None]), 0)  # token of each column that is not
            if tl.min(first, 0) < C:
                out = tl.where(t[:, None] < first[None, :], out, float("nan"))
        elif tl.min(tl.min(finite.to(tl.int32), 1), 0) == 0:
            out += tl.cumsum(tl.where(finite, 0.0, float("nan")), 0)
    inside = (t < end)[:, None] & (values < V)[None, :]
    at = out_ptr + (row + t[:, None].to(tl.int64) * H) * V + values[None, :]
    tl.store(at, out, mask=inside)


@triton.jit
@no_type_check
def _gradients_kernel(
    x_ptr,
    z_ptr,
    w_ptr,
    own_ptr,
    decay_ptr,
    states_ptr,
    others_ptr,
    to_end_ptr,
    through_ptr,
    out_ptr,
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
    REVERSE: tl.constexpr,
    START: tl.constexpr,
    END: tl.constexpr,
    PRECISION: tl.constexpr,
    GATES: tl.constexpr,
):
    """dq and da, or in reverse dk, of a block of keys in one chunk of one head.

    As y is made of q, k, v and H, so is dq of x, z, w = dy, v, k and Hᵀ; own is q. As dv is made of
    k, q, dy and G, so is dk of v, dy, q and Gᵀ; own is k. Reversed comes first: it leaves what each
    token wrote to G, and how much of H came through to it, for da. Each block of keys has its part
    of da. START, END: whether the state a sequence starts with and G at its end were given, or are
    zero. GATES: the precision of the product for da.
    """
    blocks: tl.constexpr = (K + BK - 1) // BK
    at_chunk = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    keys = block * BK + tl.arange(0, BK)
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
    x_ptr += row * V
    z_ptr += row * V
    w_ptr += row * K
    own_ptr += row * K
    decay_ptr += row
    states_ptr += at_chunk * K * V
    others_ptr += at_chunk * K * V
    to_end_ptr += (at_chunk * blocks + block) * C
    through_ptr += at_chunk * blocks + block
    no_start = (index == 0) & (not START)
    no_end = (end <= C) & (not END)
    met = tl.where(no_end if REVERSE else no_start, 0, K)  # keys of the state that are not zero

    pairs = tl.zeros([C, C], tl.float32)
    out = tl.zeros([C, BK], tl.float32)
    through = tl.zeros([BV], tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        x = _rows(x_ptr, t, end, H * V, values, V, 0.0)
        z = _rows(z_ptr, t, end, H * V, values, V, 0.0)
        at = keys[None, :] * V + values[:, None]
        inside = (values < V)[:, None] & (keys < met)[None, :]
        state = tl.load(states_ptr + at, mask=inside, other=0.0)
        pairs += _product(x, tl.trans(z), PRECISION)
        out += _product(x, state, PRECISION)
        if REVERSE:
            # read here, `out` is waited for: Triton (to 3.7.1) copies the next state over this one,
            # which has a second reader, while the product goes on
            out = tl.where(r < end, out, 0.0)
            both = tl.where(no_start, 0, met)
            inside = (values < V)[:, None] & (keys < both)[None, :]
            other = tl.load(others_ptr + at, mask=inside, other=0.0)
            through += tl.sum(state.to(tl.float32) * other.to(tl.float32), 1)
    a = _gates(decay_ptr, t, end, H)
    # the gates after t to the end of the chunk
    suffix = tl.cumprod(_gates(decay_ptr, t + 1, tl.minimum(end, C), H), 0, reverse=True)
    own = _rows(own_ptr, t, end, H * K, keys, K, 0.0)
    w = _rows(w_ptr, t, end, H * K, keys, K, 0.0)
    met_by_own = tl.sum(own.to(tl.float32) * out, 1)
    rows = (row + r.to(tl.int64) * H) * K + keys[None, :]
    inside = (r < end) & (keys < K)[None, :]
    if REVERSE:
        weights = tl.where(r <= c, pairs * _between_transposed(a, C), 0.0)
        out = suffix[:, None] * out + SCALE * _product(weights, w, PRECISION)
        tl.store(out_ptr + rows, out, mask=inside)
        tl.store(to_end_ptr + t, met_by_own)
        tl.store(through_ptr, tl.sum(through))
    else:
        weights = tl.where(r >= c, pairs * _between(a, C), 0.0)
        out = tl.cumprod(a, 0)[:, None] * out + _product(weights, w, PRECISION)
        tl.store(out_ptr + rows, SCALE * out, mask=inside)
        # D_it as [t, i], and D_{t-1,j} for j < t as [t, j]
        mirrored = _between_transposed(a, C)
        before = _gates(decay_ptr, t - 1, end, H)
        until = tl.where(r > c, tl.cumprod(tl.where(r - 1 > c, before[:, None], 1.0), 0), 0.0)
        scores = _product(own, tl.trans(w), PRECISION)
        weights = tl.where(r > c, SCALE * scores * pairs, 0.0)
        around = _product(mirrored, weights, GATES)
        to_end = tl.load(to_end_ptr + t)
        read = SCALE * tl.sum(mirrored * met_by_own[None, :], 1) + suffix * tl.load(through_ptr)
        da = tl.sum((around + suffix[:, None] * to_end[None, :]) * until, 1)
        da += tl.cumprod(before, 0) * read
        slab = block.to(tl.int64) * (tl.num_programs(0) // blocks // chunks // H) * T * H
        tl.store(ddecay_ptr + slab + row + t.to(tl.int64) * H, da, mask=t < end)


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
    states: Tensor,
) -> None:
    """Fills y, the final state and the states before the chunks."""
    chunk, precision = _chunk(q, k, v), _precision(q, k, v)
    with on_device_of(q):
        ends = (initial_state, offsets, states, state, longest, chunk)
        run_states(k, v, decay, *ends, 1.0, reverse=False)
        results = (states, initial_state is not None, y, chunk, scale, precision)
        run_outputs(q, k, v, decay, offsets, *results, reverse=False)


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
    with on_device_of(q):
        first = None if initial_state is None else dstart
        ends = (dfinal, offsets, dstates, first, longest, chunk)
        run_states(q, dy, decay, *ends, scale, reverse=True)
        results = (dstates, dfinal is not None, dv, chunk, scale, precision)
        run_outputs(k, q, dy, decay, offsets, *results, reverse=True)
        given = (q, k, v, dy, decay, states, dstates, dq, dk, ddecay, offsets)
        start, end = initial_state is not None, dfinal is not None
        run_gradients(*given, start, end, chunk, scale, precision)


def run_states(
    x: Tensor,
    w: Tensor,
    decay: Tensor,
    start: Tensor | None,
    offsets: Tensor | None,
    states: Tensor,
    last: Tensor | None,
    longest: int,
    chunk: int,
    scale: float,
    *,
    reverse: bool,
) -> None:
    batch, heads, _, key, value = states.shape
    keys, values, warps, stages = _states_tile(key, value)
    tile = {"BK": keys, "BV": values, "num_warps": warps, "num_stages": stages}
    tiles = triton.cdiv(key, keys) * triton.cdiv(value, values)
    segment = _segment(batch * w.shape[1], longest, heads * tiles, chunk)
    split = x.dtype == w.dtype == torch.bfloat16
    options = {"C": chunk, "SCALE": scale, "REVERSE": reverse, "SPLIT": split}
    options |= {"GROUP": heads // x.shape[2]}
    given = (start, offsets, states, last, segment, tiles, options | tile)
    walk_states(_states_kernel, x, w, decay, *given, gates=())


def _segment(tokens: int, longest: int, programs: int, chunk: int) -> int | None:
    """Tokens of a segment, None where sequences are not cut."""
    sizes = {"enough": ENOUGH, "wanted": PROGRAMS, "multiple": chunk, "least": SHORTEST}
    return segment_length(tokens, longest, programs, **sizes)


def run_outputs(
    x: Tensor,
    z: Tensor,
    w: Tensor,
    decay: Tensor,
    offsets: Tensor | None,
    states: Tensor,
    given: bool,
    out: Tensor,
    chunk: int,
    scale: float,
    precision: str,
    *,
    reverse: bool,
) -> None:
    batch, heads, chunks, key, value = states.shape
    keys, values, warps, stages = _outputs_tile(key, value, precision)
    launch(
        _outputs_kernel,
        (batch * heads * chunks * triton.cdiv(value, values),),
        x,
        z,
        w,
        decay,
        states,
        out,
        offsets,
        w.shape[1],
        in_a_row(offsets),
        heads,
        chunks,
        K=key,
        V=value,
        C=chunk,
        BK=keys,
        BV=values,
        SCALE=scale,
        REVERSE=reverse,
        GIVEN=given,
        PRECISION=precision,
        GROUP=heads // x.shape[2],
        num_warps=warps,
        num_stages=stages,
    )


def run_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
    decay: Tensor,
    states: Tensor,
    dstates: Tensor,
    dq: Tensor,
    dk: Tensor,
    ddecay: Tensor,
    offsets: Tensor | None,
    start: bool,
    end: bool,
    chunk: int,
    scale: float,
    precision: str,
) -> None:
    batch, heads, chunks, key, value = states.shape
    keys, values, warps, stages = _gradients_tile(key, value, precision)
    blocks = triton.cdiv(key, keys)
    programs = batch * heads * chunks * blocks
    slabs = ddecay
    if blocks > 1:
        slabs = ddecay.new_empty(blocks, *ddecay.shape, dtype=torch.float32)
    to_end = states.new_empty(programs, chunk, dtype=torch.float32)
    sums = (to_end, states.new_empty(programs, dtype=torch.float32))
    sizes = (offsets, q.shape[1], in_a_row(offsets), heads, chunks)
    options: dict[str, Any] = {"K": key, "V": value, "BK": keys, "BV": values}
    options |= {"C": chunk, "SCALE": scale}
    options |= {"START": start, "END": end, "PRECISION": precision}
    options |= {"GATES": _gates_precision(precision), "num_warps": warps, "num_stages": stages}
    given = (v, dy, q, k, decay, dstates, states, *sums, dk, slabs, *sizes)
    launch(_gradients_kernel, (programs,), *given, REVERSE=True, **options)
    given = (dy, v, k, q, decay, states, dstates, *sums, dq, slabs, *sizes)
    launch(_gradients_kernel, (programs,), *given, REVERSE=False, **options)
    if blocks > 1:
        ddecay.copy_(slabs.sum(0))


def _gates_precision(precision: str) -> str:
    """Of the product for the gradient of the gates, whose factors are no inputs."""
    return "tf32" if precision == "bf16" else precision


def _states_tile(key: int, value: int) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): the part of a state that one program carries through time."""
    return _block(key, 64), _block(value, 128), 4, 3


def _outputs_tile(key: int, value: int, precision: str) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): keys at a time, value columns."""
    if precision == "tf32x3":
        return _block(key, 32), _block(value, 128), 4, 3
    return _block(key, 64), max(_block(value, 128), LEAST), 4, 3


def _gradients_tile(key: int, value: int, precision: str) -> tuple[int, int, int, int]:
    """(BK, BV, warps, stages): keys, and value columns at a time."""
    if precision == "tf32x3":
        return _block(key, 128), _block(value, 32), 4, 2
    return max(_block(key, 128), LEAST), _block(value, 64), 4, 2
