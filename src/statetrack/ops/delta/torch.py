"""`delta_product` in chunks of matrix products, forward and backward, in plain tensor code.

The rows of a chunk are its micro-steps: n per token, R in all, C tokens. With S the state before
the chunk, D_ij the product of the gates after token j up to token i, g_i that from the start of the
chunk to i and d_j that after j to its end (all 1 without a gate), and ε_i the error of row i:

    ε_i = v_i - g_i Sᵀk_i - Σ_{j<i} E_ij β_j ε_j        E = D ∘ K Kᵀ below the diagonal
    S'  = g_C S + Σ_j d_j β_j k_j ε_jᵀ                  y_t = g_t Sᵀq_t + Σ_{j≤t} P_tj β_j ε_j

where P = D ∘ Q Kᵀ. So ε = N (V - g K S) with N = (I + E Diag(β))⁻¹, and with N V and W = N g K two
products per chunk carry the state along. A gate is only ever multiplied by: its sign is just a
factor, and zero, which empties the state, needs no care.

Precision. A reflection forgets nothing, so what is wrong by one part in 10⁷ at every step is wrong
by a percent after 65,536 of them. Key norms, K Kᵀ and N are therefore float64 and rounded once per
chunk; the rest is done in the precision of the state. docs/measurements/numerics.md has the errors.

Memory. The work goes tile by tile (some batch rows, some chunks), small enough for the cache. Kept
for the backward, and linear in T: N, ε and the states between chunks.

Shapes inside a tile: N counts its chunks, batch rows and heads, in this order; rows [N, R, ·],
tokens [N, C, ·], states [N, key, value].
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops.delta.spec import NORM_FLOOR, SPEC, Inputs

__all__ = ["delta_product"]

ONE_CHUNK_ROWS = 48  # up to this many micro-steps a sequence is one chunk,
CHUNK_ROWS = 32  # and beyond it is cut into chunks of about this many
TILE_NUMBERS = 2**17  # size of the largest tensor of a tile on the CPU: it should fit in the cache
WIDE = torch.float64


def delta_product(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Per token H ← a H, H ← (I - β_j k_j k_jᵀ) H + β_j k_j v_jᵀ for j = 1..n; y = scale·Hᵀq."""
    y, final_state, *_ = _op(*inputs)
    return y, final_state


class _Chunks(NamedTuple):
    """How a sequence is cut: `number` chunks of `tokens` tokens, the last perhaps shorter."""

    number: int
    tokens: int


def _chunks(k: Tensor) -> _Chunks:
    """Chunks of equal length, so that 40 tokens are one chunk and 65 are three of 22."""
    _, time, micro, _, _ = k.shape
    rows = time * micro
    number = 1 if rows <= ONE_CHUNK_ROWS else min(time, -(-rows // CHUNK_ROWS))
    tokens = -(-time // number)
    return _Chunks(-(-time // tokens), tokens)


class _Tile(NamedTuple):
    """Some rows of the batch and some consecutive chunks of their sequences."""

    batch: slice
    chunks: slice
    tokens: int  # per chunk
    dtype: torch.dtype

    @property
    def length(self) -> int:
        """How many chunks."""
        return int(self.chunks.stop - self.chunks.start)

    @property
    def time(self) -> slice:
        return slice(self.chunks.start * self.tokens, self.chunks.stop * self.tokens)

    def cut(self, x: Tensor, *, fill: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of this tile of x [batch, time, m, heads, d] as [N, tokens·m, d]."""
        x = x[self.batch, self.time]
        missing = self.length * self.tokens - x.shape[1]
        if missing:
            x = torch.cat([x, x.new_full((x.shape[0], missing, *x.shape[2:]), fill)], dim=1)
        x = x.unflatten(1, (self.length, self.tokens)).permute(1, 0, 4, 2, 3, 5)
        copy = x.new_empty(x.shape, dtype=dtype or self.dtype).copy_(x)
        return copy.view(-1, self.tokens * x.shape[4], x.shape[5])

    def join(self, rows: Tensor, out: Tensor) -> None:
        """Writes [N, tokens·m, d] into this tile of `out` [batch, time, m, heads, d]."""
        out = out[self.batch, self.time]
        batch, time, micro, heads, dim = out.shape
        rows = rows.view(self.length, batch, heads, self.tokens, micro, dim)
        rows = rows.permute(1, 0, 3, 4, 2, 5)
        if time == self.length * self.tokens:
            out.unflatten(1, (self.length, self.tokens)).copy_(rows)
        else:
            out.copy_(rows.flatten(1, 2)[:, :time])

    def save(self, x: Tensor, out: Tensor) -> None:
        """Writes [N, ...] into this tile of `out` [batch, chunks, heads, ...]."""
        out = out[self.batch, self.chunks].transpose(0, 1)
        out.copy_(x.view(out.shape))

    def load(self, saved: Tensor) -> Tensor:
        """What `save` wrote."""
        return saved[self.batch, self.chunks].transpose(0, 1).flatten(0, 2)

    def by_chunk(self, x: Tensor) -> Tensor:
        """[N, ...] as [chunks, batch·heads, ...], a view."""
        return x.view(self.length, -1, *x.shape[1:])

    def each_chunk(self, x: Tensor) -> tuple[Tensor, ...]:
        """The views of all chunks, made at once: one by one they would cost more than the maths."""
        return self.by_chunk(x).unbind(0)


def _tiles(k: Tensor, v: Tensor, dtype: torch.dtype, *, backwards: bool = False) -> Iterator[_Tile]:
    """All tiles, those of one sequence in the order of time, or from its end if `backwards`.

    Many batch rows before many chunks: what the chunks of a tile do one after another should be
    done for as many sequences at once as possible.
    """
    batch, _, micro, heads, key = k.shape
    chunks = _chunks(k)
    rows = chunks.tokens * micro
    together = TILE_NUMBERS // (rows * heads * max(key, v.shape[-1], rows))
    sequences, length = max(1, batch), chunks.number
    if k.is_cpu:
        sequences = min(sequences, max(1, together))
        length = max(1, together // sequences)
    starts = range(0, chunks.number, length)
    for row in range(0, batch, sequences):
        some = slice(row, min(row + sequences, batch))
        for start in reversed(starts) if backwards else starts:
            span = slice(start, min(start + length, chunks.number))
            yield _Tile(some, span, chunks.tokens, dtype)


class _Gate(NamedTuple):
    """The products of gates inside each chunk. Without a gate D is a mask, the rest None."""

    query: Tensor  # D for token and row, with its diagonal of ones [N or 1, C, R]
    key: Tensor  # D for two rows, strictly below the diagonal [N or 1, R, R]
    token: Tensor | None = None  # D for two tokens, lower triangular [N, C, C]
    since: Tensor | None = None  # g, the product from the start to each token [N, C, 1]
    since_row: Tensor | None = None  # the same for each row [N, R, 1]
    until_row: Tensor | None = None  # d, the product after the row's token to the end [N, R, 1]
    whole: Tensor | None = None  # g_C [N, 1, 1]


def _gate(a: Tensor | None, micro: int, queries: Tensor) -> _Gate:
    """From the gates a [N, C, 1]; `queries` [N, C, key] gives sizes, dtype and device."""
    tokens = queries.shape[1]
    strict = queries.new_ones(tokens * micro, tokens * micro).tril_(-1)
    mask = queries.new_ones(tokens, tokens).tril_()
    if a is None:
        return _Gate(_per_row(mask[None], micro, 2), strict[None])
    # each column is multiplied up from its diagonal: no quotient, so signs and zeros are exact
    token = torch.where(mask.tril(-1) > 0, a, 1.0).cumprod(1).mul_(mask)
    query = _per_row(token, micro, 2)
    key = _per_row(query, micro, 1) * strict
    since = token[:, :, :1] * a[:, :1]
    since_row, until_row = _per_row(since, micro, 1), query[:, -1:].mT
    return _Gate(query, key, token, since, since_row, until_row, since[:, -1:])


def _gate_gradient(gate: _Gate, d_token: Tensor, d_since: Tensor | None) -> Tensor:
    """The gradient of the gates [N, C, 1] from that of D, of which only j < i is read, and of g.

    ∂D_ij/∂a_s = D_is D_{s-1,j} for j < s <= i, so da_s = Σ_j (Dᵀ dD)_sj D_{s-1,j}: no division.
    """
    assert gate.token is not None and gate.since is not None
    d_a = torch.zeros_like(gate.since)
    d_a[:, 1:] = _dot(torch.bmm(gate.token.mT, d_token)[:, 1:], gate.token[:, :-1])
    if d_since is not None:
        d_since = torch.bmm(gate.token.mT, d_since)
        d_a[:, :1] += d_since[:, :1]
        d_a[:, 1:] += d_since[:, 1:] * gate.since[:, :-1]
    return d_a


def _per_row(x: Tensor, micro: int, dim: int) -> Tensor:
    """Every token's entry along `dim`, once for each of its micro-steps."""
    return x if micro == 1 else x.repeat_interleave(micro, dim)


def _per_token(x: Tensor, micro: int, dim: int) -> Tensor:
    """The sum over each token's micro-steps along `dim`."""
    return x if micro == 1 else x.unflatten(dim, (-1, micro)).sum(dim + 1)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row of `a` with the same row of `b`, kept as an axis of size 1."""
    return (a * b).sum(-1, keepdim=True)


def _normalize_(x: Tensor) -> Tensor:
    """Divides the rows of x by their norms, in place; returns 1/‖x‖, or 0 below the floor."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse_norm = torch.where(norm > NORM_FLOOR, norm, torch.inf).reciprocal_()
    x.mul_(inverse_norm)
    return inverse_norm


def _inverse(keys: Tensor, strength: Tensor, gate: _Gate) -> Tensor:
    """N = (I + E Diag(β))⁻¹ in float64; the solver reads only what is below the diagonal."""
    system = torch.bmm(keys, keys.mT).mul_(strength.mT.to(WIDE))
    if gate.token is not None:
        system.mul_(gate.key.to(WIDE))
    identity = torch.eye(system.shape[1], dtype=WIDE, device=system.device).expand_as(system)
    return torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    results = _empty(inputs)
    y, final_state = results[:2]
    state: Tensor | None = None
    for tile in _tiles(inputs.k, inputs.v, final_state.dtype):
        if tile.chunks.start == 0:
            state = _flat(inputs.initial_state, tile)
        state = _forward_tile(tile, inputs, state, results)
        if tile.time.stop >= y.shape[1]:
            final_state[tile.batch].copy_(state.view_as(final_state[tile.batch]))
    return results


def _forward_tile(
    tile: _Tile, inputs: Inputs, state: Tensor | None, results: tuple[Tensor, ...]
) -> Tensor:
    """Fills the tile's part of `results`, given the state before it; returns the state after it.

    A state of None is zero.
    """
    q, k, v, beta, decay, normalize, scale, _ = inputs
    y, _, saved_inverse, saved_error, saved_states = results
    micro = k.shape[2]
    queries, wide_keys = tile.cut(q[:, :, None]), tile.cut(k, dtype=WIDE)
    error, strength = tile.cut(v), tile.cut(beta[..., None])
    a = None if decay is None else tile.cut(decay[:, :, None, :, None], fill=1.0)
    poison = (
        None
        if _all_finite(wide_keys, error, strength, a)
        else _drop_nan_(tile, micro, wide_keys, error, strength, a)
    )
    if normalize:
        _normalize_(queries)
        _normalize_(wide_keys)
    gate = _gate(a, micro, queries)
    keys = wide_keys.to(tile.dtype)
    inverse = _inverse(wide_keys, strength, gate).to(tile.dtype)

    error = torch.bmm(inverse, error)
    writer = _times(keys * strength, gate.until_row)
    attention = torch.bmm(queries, keys.mT).mul_(gate.query)
    if state is None and tile.length == 1:
        state = torch.bmm(writer.mT, error)
        y_rows = torch.bmm(attention, error * strength)
    else:
        reader = torch.bmm(inverse, _times(keys, gate.since_row))
        state, states = _carry_(tile, state, reader, writer, error, gate.whole)
        y_rows = _times(torch.bmm(queries, states), gate.since)
        y_rows.baddbmm_(attention, error * strength)
        tile.save(states, saved_states)
    tile.save(inverse, saved_inverse)
    tile.save(error, saved_error)
    if poison is not None:
        y_rows += poison
        state = state + tile.by_chunk(poison)[-1, :, -1:]
    tile.join(y_rows.mul_(scale), y[:, :, None])
    return state


def _carry_(
    tile: _Tile,
    state: Tensor | None,
    reader: Tensor,
    writer: Tensor,
    error: Tensor,
    whole: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Takes the state through the chunks of a tile; returns the last and those before each chunk.

    `error` comes in as N V and is turned into ε in place.
    """
    states = error.new_empty(error.shape[0], reader.shape[2], error.shape[2])
    before, errors = tile.each_chunk(states), tile.each_chunk(error)
    readers, writers = tile.each_chunk(reader), tile.each_chunk(writer.mT)
    gates = None if whole is None else tile.each_chunk(whole)
    if state is None:
        state = torch.zeros_like(before[0])
    for c in range(tile.length):
        before[c].copy_(state)
        errors[c].baddbmm_(readers[c], state, alpha=-1)
        kept = state if gates is None else state * gates[c]
        state = torch.baddbmm(kept, writers[c], errors[c])
    return state, states


def _flat(state: Tensor | None, tile: _Tile) -> Tensor | None:
    """The tile's part of a state [batch, heads, key, value], as [batch·heads, key, value]."""
    return None if state is None else state[tile.batch].flatten(0, 1).to(tile.dtype)


def _all_finite(*tensors: Tensor | None) -> bool:
    """Whether there is no NaN and no infinity; not asked, and so False, where it means waiting."""
    present = [x for x in tensors if x is not None]
    return present[0].is_cpu and all(bool(x.sum().isfinite()) for x in present)


def _drop_nan_(
    tile: _Tile, micro: int, keys: Tensor, values: Tensor, strength: Tensor, a: Tensor | None
) -> Tensor:
    """Makes tokens with a NaN or an infinity do nothing, in place; returns NaN from each on.

    A product with the zeros of a triangle would carry them to earlier tokens: the NaN is taken out
    and comes back as [N, C, 1], which is zero before the first such token of a sequence.
    """
    good = keys.isfinite().all(-1, keepdim=True) & values.isfinite().all(-1, keepdim=True)
    good = (good & strength.isfinite()).unflatten(1, (-1, micro)).all(2)
    if a is not None:
        good &= a.isfinite()
        a.masked_fill_(~good, 1.0)
    for rows in (keys, values, strength):
        rows.masked_fill_(~_per_row(good, micro, 1), 0.0)
    poison = torch.zeros_like(good, dtype=tile.dtype).masked_fill_(~good, torch.nan)
    in_time = tile.by_chunk(poison).transpose(0, 1)
    return in_time.flatten(1, 2).cumsum(1).view(in_time.shape).transpose(0, 1).reshape(poison.shape)


def _backward(
    inputs: Inputs,
    y: Tensor,
    final_state: Tensor,
    saved_inverse: Tensor,
    saved_error: Tensor,
    saved_states: Tensor,
    grad_y: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients from what the chunks left behind: N, ε and the states between chunks."""
    grads = empty_grads(*inputs)
    grad_initial = grads[-1]
    saved = (saved_inverse, saved_error, saved_states)
    d_state: Tensor | None = None
    for tile in _tiles(inputs.k, inputs.v, final_state.dtype, backwards=True):
        if tile.time.stop >= y.shape[1]:
            d_state = _flat(grad_final, tile)
        assert d_state is not None
        d_state = _backward_tile(tile, inputs, saved, grad_y, d_state, grads)
        if tile.chunks.start == 0 and inputs.initial_state is not None:
            grad_initial[tile.batch].copy_(d_state.view_as(grad_initial[tile.batch]))
    return grads


def _backward_tile(
    tile: _Tile,
    inputs: Inputs,
    saved: tuple[Tensor, ...],
    grad_y: Tensor,
    d_state: Tensor,
    grads: tuple[Tensor, ...],
) -> Tensor:
    """Fills the tile's part of `grads`, given the gradient of the state after it.

    Returns the gradient of the state before it, which is left out where that is known to be zero.
    """
    q, k, _, beta, decay, normalize, scale, initial_state = inputs
    saved_inverse, saved_error, saved_states = saved
    grad_q, grad_k, grad_v, grad_beta, grad_decay, _ = grads
    micro = k.shape[2]
    alone = tile.chunks.start == 0 and tile.length == 1 and initial_state is None
    queries, keys, strength = tile.cut(q[:, :, None]), tile.cut(k), tile.cut(beta[..., None])
    if normalize:
        inverse_norm_q, inverse_norm_k = _normalize_(queries), _normalize_(keys)
    a = None if decay is None else tile.cut(decay[:, :, None, :, None], fill=1.0)
    gate = _gate(a, micro, queries)
    inverse, error = tile.load(saved_inverse), tile.load(saved_error)
    dy = tile.cut(grad_y[:, :, None]).mul_(scale)

    products = torch.bmm(queries, keys.mT)
    written = error * strength  # what a row adds to the state is its key times this
    d_written = torch.bmm((products * gate.query).mT, dy)
    until_keys = _times(keys, gate.until_row)
    if alone:
        d_states = d_state
        d_written.baddbmm_(until_keys, d_state)
    else:
        states = tile.load(saved_states)
        reader = torch.bmm(inverse, _times(keys, gate.since_row)).mul_(strength)
        read = torch.bmm(_times(queries, gate.since).mT, dy)
        d_state, d_states = _carry_back_(
            tile, d_state, reader, until_keys, read, d_written, gate.whole
        )

    dv = torch.bmm(inverse.mT, d_written * strength)  # this is also the gradient of -g K S
    d_system = torch.bmm(dv, error.mT)  # minus the gradient of E Diag(β), before its mask
    gram = torch.bmm(keys, keys.mT)
    d_attention = torch.bmm(dy, written.mT)
    d_products = d_attention * gate.query
    d_gram = (d_system * strength.mT).mul_(gate.key)
    d_strength = _dot(error, d_written) - (d_system.mul_(gram) * gate.key).sum(1)[..., None]
    dq = torch.bmm(d_products, keys)
    dk = torch.bmm(d_products.mT, queries)
    dk.baddbmm_(d_gram, keys, alpha=-1).baddbmm_(d_gram.mT, keys, alpha=-1)
    d_until = torch.bmm(written, d_states.mT)
    dk += _times(d_until, gate.until_row)
    if not alone:
        dq_since, dk_since = torch.bmm(dy, states.mT), torch.bmm(dv, states.mT)
        dq += _times(dq_since, gate.since)
        dk -= _times(dk_since, gate.since_row)

    if gate.token is not None:
        d_token = _per_token(d_attention.mul_(products), micro, 2)
        d_token -= _per_token(_per_token(d_system.mul_(strength.mT), micro, 2), micro, 1)
        d_token[:, -1:] += _per_token(_dot(d_until, keys), micro, 1).mT
        d_since = None
        if not alone:
            d_since = _dot(dq_since, queries) - _per_token(_dot(dk_since, keys), micro, 1)
            d_since[:, -1:] += (states * d_states).sum((1, 2))[:, None, None]
        tile.join(_gate_gradient(gate, d_token, d_since), grad_decay[:, :, None, :, None])
    if normalize:
        dq.sub_(queries.mul_(_dot(dq, queries))).mul_(inverse_norm_q)
        dk.sub_(keys.mul_(_dot(dk, keys))).mul_(inverse_norm_k)
    tile.join(dq, grad_q[:, :, None])
    tile.join(dk, grad_k)
    tile.join(dv, grad_v)
    tile.join(d_strength, grad_beta[..., None])
    return d_state


def _carry_back_(
    tile: _Tile,
    d_state: Tensor,
    reader: Tensor,
    until_keys: Tensor,
    read: Tensor,
    d_written: Tensor,
    whole: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Takes the gradient of the state from the last chunk of a tile to before the first.

    Returns it there, and after each chunk; adds what comes from the state to `d_written`, in place.
    """
    d_states = torch.empty_like(read)
    after, reads = tile.each_chunk(d_states), tile.each_chunk(read)
    d_rows, keys = tile.each_chunk(d_written), tile.each_chunk(until_keys)
    readers = tile.each_chunk(reader.mT)
    gates = None if whole is None else tile.each_chunk(whole)
    for c in reversed(range(tile.length)):
        after[c].copy_(d_state)
        d_rows[c].baddbmm_(keys[c], d_state)
        kept = d_state if gates is None else d_state * gates[c]
        d_state = reads[c].add_(kept).baddbmm_(readers[c], d_rows[c], alpha=-1)
    return d_state, d_states


def _empty(inputs: Inputs) -> tuple[Tensor, ...]:
    """The results; and for the backward N, ε and the states before each chunk."""
    y, final_state = SPEC.empty(inputs)
    batch, _, micro, heads, key = inputs.k.shape
    value = inputs.v.shape[-1]
    count, tokens = _chunks(inputs.k)
    rows = tokens * micro
    known_zero = count == 1 and inputs.initial_state is None
    return (
        y,
        final_state,
        final_state.new_empty(batch, count, heads, rows, rows),
        final_state.new_empty(batch, count, heads, rows, value),
        final_state.new_empty(batch, 0 if known_zero else count, heads, key, value),
    )


_op = differentiable_op(
    SPEC,
    "torch",
    forward=_forward,
    backward=_backward,
    empty=_empty,
    saved=("inverse", "error", "states"),
)
