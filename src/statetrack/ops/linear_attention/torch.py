"""Linear attention with gates of either sign, in chunks, from products alone.

A query at token i sees the write of token j < i through the gates between them,

    y_i = Σ_j (q_iᵀ Diag(a_{j+1} ⋯ a_i) k_j) v_j,

and a matrix product needs each of these products of gates split at some token m between j and i:
(q_i ∘ a_{m+1} ⋯ a_i) · (k_j ∘ a_{j+1} ⋯ a_m). Split so, every factor is a product of gates and no
larger than one. There is no logarithm and no quotient, so a sign is carried by the products
themselves, a gate of exactly 0 resets, and a tiny one cannot overflow.

Which m: a chunk is halved again and again, and a pair (i, j) is handled where i and j part, with m
the last token of the left half. From the leaves up, at blocks of `width` tokens,

    Q_i = q_i ∘ (gates from the start of its block to i, both included)
    K_j = k_j ∘ (gates after j to the end of its block)

so that the scores of a right block against its left neighbour are Q_R K_Lᵀ, and going up one level
is Q_R ← Q_R ∘ total_L, K_L ← K_L ∘ total_R, with `total` the product of a block's gates. At the top
the same Q reads the state at the start of the chunk and the same K writes the state at its end. The
backward pass walks the same tree down; docs/design/signed_gates.md derives it.

A long sequence or a large batch is cut into slabs that fit the caches, one after another. Only a
right block is ever multiplied with the left block before it, so a NaN can reach no earlier
token, in the outputs as in the gradients.

Shapes inside: rows = batch · heads · chunks; q, k, Q, K [rows, chunk, key]; v, y [rows, chunk,
value]; totals of blocks [rows · chunk / width, gate] with gate = key or 1; states and their
adjoints [rows, key, value].
"""

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops.linear_attention.spec import SPEC, Inputs, by_head, initial

__all__ = ["linear_attention"]

CHUNKS = (1, 2, 4, 8, 16, 32, 64)
SLAB_NUMBERS = 2**17  # in one tensor of a slab: some twenty of them are in use at a time


def linear_attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """H_t = Diag(a_t) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t. One gate per head or per key.

    The backward recomputes what it needs from the inputs and from one state for each slab of time.
    """
    y, final_state, _ = _op(*by_head(inputs))
    return y, final_state


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state, and the states between slabs of time, [batch, slabs - 1, ..]."""
    q, k, v, decay, scale, initial_state = inputs
    final_state = initial(inputs)
    rows, times = _slabs(q, v)
    y = v.new_empty(v.shape)
    between = final_state.new_empty(q.shape[0], len(times) - 1, *final_state.shape[1:])
    for row in rows:
        state = final_state[row]
        for n, time in enumerate(times):
            if n:
                between[row, n - 1] = state
            parts = (x[row, time] for x in (q, k, v, decay))
            y[row, time], state = _forward_slab(scale, state, *parts)
        final_state[row] = state
    return y, final_state, between


def _forward_slab(
    scale: float, state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    dtype = state.dtype
    chunk = _chunk_size(q.shape[1], q.shape[3], v.shape[3])
    Q, K, v_c = (_to_chunks(x, chunk, dtype) for x in (q, k, v))
    a_c = _to_chunks(decay, chunk, dtype, fill=1.0)
    y_c = (Q * K).sum(-1, keepdim=True) * v_c  # a token sees its own write, through no gate
    Q *= a_c
    total = a_c.flatten(0, 1)
    for width in _widths(chunk):
        Q_right, K_left = _right(Q, width), _left(K, width)
        scores = _product(Q_right, K_left.mT)
        _right(y_c, width).add_(_product(scores, _left(v_c, width)))
        total = _up(Q_right, K_left, total)
    count = _count(q.shape[1], chunk)
    starts, state = _carry(state, total, _product(K.mT, v_c), count)
    y_c += _product(Q, starts)
    return _from_chunks(y_c.mul_(scale), v), state


def _backward(
    inputs: Inputs,
    y: Tensor,
    final_state: Tensor,
    between: Tensor,
    dy: Tensor,
    dfinal_state: Tensor,
) -> tuple[Tensor, ...]:
    q, k, v, decay, scale, initial_state = inputs
    first_state = initial(inputs)
    dstate_all = torch.empty_like(first_state).copy_(dfinal_state)
    rows, times = _slabs(q, v)
    *grads, _ = empty_grads(*inputs)
    for row in rows:
        dstate = dstate_all[row]
        for n, time in reversed(list(enumerate(times))):
            state = between[row, n - 1] if n else first_state[row]
            parts = [x[row, time] for x in (q, k, v, decay, dy)]
            *dparts, dstate = _backward_slab(scale, state, dstate, *parts)
            for grad, dpart in zip(grads, dparts, strict=True):
                grad[row, time] = dpart
        dstate_all[row] = dstate
    if initial_state is None:
        return *grads, q.new_empty(0)
    return *grads, dstate_all.to(initial_state.dtype)


def _backward_slab(
    scale: float,
    state: Tensor,
    dstate: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    dy: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, decay and of the state before the slab, from that after it."""
    dtype = state.dtype
    chunk = _chunk_size(q.shape[1], q.shape[3], v.shape[3])
    q_c, k_c, v_c, dy_c = (_to_chunks(x, chunk, dtype) for x in (q, k, v, dy))
    a_c = _to_chunks(decay, chunk, dtype, fill=1.0)
    dy_c *= scale

    # Up the tree again, keeping what each level read.
    Q, K, total = q_c * a_c, k_c.clone(), a_c.flatten(0, 1)
    levels = []
    for width in _widths(chunk):
        Q_right, K_left = _right(Q, width), _left(K, width)
        levels.append((width, Q_right.clone(), K_left.clone(), total))
        total = _up(Q_right, K_left, total)

    # Across chunks: `ends` are the adjoints of the states at the ends of the chunks.
    count = _count(q.shape[1], chunk)
    starts, _ = _carry(state, total, _product(K.mT, v_c), count)
    ends, dstate = _carry(dstate, total, _product(Q.mT, dy_c), count, backward=True)
    dQ, dK, dv_c = _product(dy_c, starts.mT), _product(v_c, ends.mT), _product(K, ends)
    dtotal = _to_gate((ends * starts).sum(-1), total)

    # Down the tree.
    for width, Q_right, K_left, total in reversed(levels):
        dQ_right, dK_left, dy_right = _right(dQ, width), _left(dK, width), _right(dy_c, width)
        dtotal = _down(dQ_right, dK_left, dtotal, Q_right, K_left, total)
        scores = _product(Q_right, K_left.mT)
        dscores = _product(dy_right, _left(v_c, width).mT)
        _left(dv_c, width).add_(_product(scores.mT, dy_right))
        dQ_right.add_(_product(dscores, K_left))
        dK_left.add_(_product(dscores.mT, Q_right))

    # The leaves: Q = q ∘ a, K = k, total = a, and each token's own write.
    da_c = dtotal.view_as(a_c) + _to_gate(dQ * q_c, a_c)
    own, down = (q_c * k_c).sum(-1, keepdim=True), (dy_c * v_c).sum(-1, keepdim=True)
    dq_c = dQ.mul_(a_c).addcmul_(down, k_c)
    dk_c = dK.addcmul_(down, q_c)
    dv_c.addcmul_(own, dy_c)
    return (
        _from_chunks(dq_c, q),
        _from_chunks(dk_c, k),
        _from_chunks(dv_c, v),
        _from_chunks(da_c, decay),
        dstate,
    )


def _up(Q_right: Tensor, K_left: Tensor, total: Tensor) -> Tensor:
    """One level up, in place in Q and K; returns the totals of the blocks twice as wide."""
    left, right = total[0::2], total[1::2]
    Q_right *= left[:, None]
    K_left *= right[:, None]
    return left * right


def _down(
    dQ_right: Tensor,
    dK_left: Tensor,
    dtotal_wide: Tensor,
    Q_right: Tensor,
    K_left: Tensor,
    total: Tensor,
) -> Tensor:
    """The adjoint of `_up`, in place in dQ and dK; returns the adjoint of `total`.

    Each factor of a product gets the other factors, never the product divided by itself, so the
    gradient of a gate is exact at zero.
    """
    left, right = total[0::2], total[1::2]
    dleft = _to_gate((dQ_right * Q_right).sum(1), total).addcmul_(dtotal_wide, right)
    dright = _to_gate((dK_left * K_left).sum(1), total).addcmul_(dtotal_wide, left)
    dQ_right *= left[:, None]
    dK_left *= right[:, None]
    return torch.stack([dleft, dright], dim=1).flatten(0, 1)


def _carry(
    state: Tensor, total: Tensor, added: Tensor, count: int, *, backward: bool = False
) -> tuple[Tensor, Tensor]:
    """Over `count` chunks, state ← Diag(total) state + added, forward or backward in time.

    Returns what each chunk met, [rows, key, value], and what came out at the end.
    """
    flat = state.flatten(0, 1)
    total = total.view(flat.shape[0], count, total.shape[-1], 1)
    added = added.view(flat.shape[0], count, *flat.shape[1:])
    met = torch.empty_like(added)
    for c in reversed(range(count)) if backward else range(count):
        met[:, c] = flat
        flat = torch.addcmul(added[:, c], total[:, c], flat)
    return met.flatten(0, 1), flat.view_as(state)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Batched matrix product; inner sizes of one and two are cheaper as sums of outer products."""
    if x.shape[-1] > 2:
        return torch.bmm(x, y)
    result = x[..., :1] * y[:, :1]
    return result if x.shape[-1] == 1 else result.addcmul_(x[..., 1:], y[:, 1:])


def _to_gate(grad: Tensor, gate: Tensor) -> Tensor:
    """The gradient of a gate shared by all key dimensions is the sum of theirs."""
    return grad.sum(-1, keepdim=True) if gate.shape[-1] == 1 else grad


def _left(x: Tensor, width: int) -> Tensor:
    """The first of every two neighbouring blocks of `width` tokens, a view [pairs, width, dim]."""
    return _pairs(x, width)[:, 0]


def _right(x: Tensor, width: int) -> Tensor:
    """The second of every two neighbouring blocks."""
    return _pairs(x, width)[:, 1]


def _pairs(x: Tensor, width: int) -> Tensor:
    rows, chunk, dim = x.shape
    return x.view(rows * chunk // (2 * width), 2, width, dim)


def _slabs(q: Tensor, v: Tensor) -> tuple[list[slice], list[slice]]:
    """Batch rows and tokens in pieces that a CPU's caches hold, whole anywhere else.

    The cuts in time depend on nothing but the sizes of one batch row.
    """
    batch, time, heads, key = q.shape
    per_token = max(1, heads * max(key, v.shape[3]))
    size = SLAB_NUMBERS if q.device.type == "cpu" else max(1, batch * time * per_token)
    tokens = min(time, max(CHUNKS[-1], size // per_token // CHUNKS[-1] * CHUNKS[-1]))
    count = max(1, size // (tokens * per_token))
    rows = [slice(b, min(b + count, batch)) for b in range(0, batch, count)]
    return rows, [slice(t, min(t + tokens, time)) for t in range(0, time, tokens)]


def _chunk_size(time: int, key: int, value: int) -> int:
    """The power of two that costs least: padded tokens times the rough cost of one.

    A state of key · value numbers and one Python step for each chunk want long chunks, the levels
    of the tree and the products inside a chunk want short ones. The weights are fitted to timings
    on a CPU at key = value = 32, 64 and 128; the minimum is flat.
    """
    width = max(32.0, 2 * key * value / (key + value))

    def cost(chunk: int) -> float:
        return _count(time, chunk) * chunk * (1 + width / (8 * chunk) + chunk / 256)

    return min(CHUNKS, key=cost)


def _count(time: int, chunk: int) -> int:
    return -(-time // chunk)


def _widths(chunk: int) -> list[int]:
    """1, 2, 4, .., chunk / 2: the widths of the blocks that are paired, from the leaves up."""
    return [2**level for level in range(chunk.bit_length() - 1)]


def _to_chunks(x: Tensor, chunk: int, dtype: torch.dtype, fill: float = 0.0) -> Tensor:
    """[batch, time, heads, dim] -> a new [batch · heads · count, chunk, dim], padded at the end."""
    batch, time, heads, dim = x.shape
    count = _count(time, chunk)
    out = x.new_empty(batch, heads, count * chunk, dim, dtype=dtype)
    out[:, :, :time] = x.transpose(1, 2)
    out[:, :, time:] = fill
    return out.view(batch * heads * count, chunk, dim)


def _from_chunks(x: Tensor, like: Tensor) -> Tensor:
    """Back to the layout, the length and the dtype of `like`, [batch, time, heads, dim]."""
    batch, time, heads, dim = like.shape
    chunk = x.shape[1]
    x = x.view(batch, heads, _count(time, chunk) * chunk, dim)
    return x[:, :, :time].transpose(1, 2).to(like.dtype, memory_format=torch.contiguous_format)


def _empty(inputs: Inputs) -> tuple[Tensor, ...]:
    """The results, and the states between slabs of time."""
    y, state = SPEC.empty(inputs)
    slabs = len(_slabs(inputs.q, inputs.v)[1])
    return y, state, state.new_empty(len(y), slabs - 1, *state.shape[1:])


_op = differentiable_op(
    SPEC, "torch", forward=_forward, backward=_backward, empty=_empty, saved=("between",)
)
