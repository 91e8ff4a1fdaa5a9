"""`dplr` in plain tensor code: a loop over time, with a backward that needs few states.

A step costs key · value, for all sequences and heads at once; no matrix [key, key] is made. The
forward keeps the state before every block of about √T tokens. The backward takes the blocks from
the last to the first, each once more forward and then back, so memory grows with √T states.
"""

from math import isqrt

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op
from statetrack.ops.dplr.spec import SPEC, Inputs, initial

__all__ = ["dplr"]


def dplr(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """H_t = (Diag(a_t) + l_t r_tᵀ) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t."""
    y, final_state, _ = _op(*inputs)
    return y, final_state


def _block(time: int | torch.SymInt) -> int:
    """Tokens between kept states."""
    return isqrt(int(time) - 1) + 1


def _by_time(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    """[batch, time, heads, dim] -> [time, batch·heads, dim], of one dtype."""
    return [x.to(dtype).transpose(0, 1).flatten(1, 2) for x in tensors]


def _read(h: Tensor, x: Tensor) -> Tensor:
    """hᵀ x, [rows, value]."""
    return torch.bmm(x[:, None], h)[:, 0]


def _step(h: Tensor, k: Tensor, v: Tensor, a: Tensor, left: Tensor, seen: Tensor) -> Tensor:
    """Diag(a) h + left seenᵀ + k vᵀ."""
    h = torch.addcmul(left[:, :, None] * seen[:, None], a[:, :, None], h)
    return h.addcmul_(k[:, :, None], v[:, None])


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state, and the states before all blocks but the first, [batch, blocks, ...]."""
    state = initial(inputs)
    q, k, v, a, left, right = _by_time(state.dtype, *inputs[:6])
    time, block = len(q), _block(len(q))
    h, kept = state.flatten(0, 1), []
    y = v.new_empty(v.shape)
    for t in range(time):
        if t and t % block == 0:
            kept.append(h)
        h = _step(h, k[t], v[t], a[t], left[t], _read(h, right[t]))
        torch.mul(_read(h, q[t]), inputs.scale, out=y[t])
    y = y.unflatten(1, state.shape[:2]).transpose(0, 1).to(inputs.v.dtype)
    between = _empty(inputs)[2]
    for n, before in enumerate(kept):
        between[:, n] = before.view_as(state)
    return y, h.view_as(state), between


def _backward(
    inputs: Inputs,
    y: Tensor,
    final_state: Tensor,
    between: Tensor,
    dy: Tensor,
    dfinal_state: Tensor,
) -> tuple[Tensor, ...]:
    """The formulas are those of numba.py."""
    first = initial(inputs)
    q, k, v, a, left, right, dy = _by_time(first.dtype, *inputs[:6], inputs.scale * dy)
    time, block = len(q), _block(len(q))
    grads = [x.new_empty(x.shape) for x in (q, k, v, a, left, right)]
    dq, dk, dv, da, dl, dr = grads
    starts = [first, *between.unbind(1)]
    g = dfinal_state.to(first.dtype).flatten(0, 1)
    for n in reversed(range(len(starts))):
        h, states = starts[n].flatten(0, 1), []
        span = range(n * block, min(time, (n + 1) * block))
        for t in span:
            seen = _read(h, right[t])
            states.append((h, seen))
            h = _step(h, k[t], v[t], a[t], left[t], seen)
            torch.sum(h * dy[t, :, None], -1, out=dq[t])
        for t in reversed(span):
            h, seen = states[t - n * block]
            g = torch.addcmul(g, q[t, :, :, None], dy[t, :, None])
            torch.sum(g * v[t, :, None], -1, out=dk[t])
            torch.sum(g * seen[:, None], -1, out=dl[t])
            torch.sum(g * h, -1, out=da[t])
            dv[t] = _read(g, k[t])
            dseen = _read(g, left[t])
            torch.sum(h * dseen[:, None], -1, out=dr[t])
            g = torch.addcmul(right[t, :, :, None] * dseen[:, None], a[t, :, :, None], g)
    shape, dtypes = first.shape[:2], [x.dtype for x in inputs[:6]]
    found = [
        grad.unflatten(1, shape).transpose(0, 1).to(dtype)
        for grad, dtype in zip(grads, dtypes, strict=True)
    ]
    start = inputs.initial_state
    if start is None:
        return *found, inputs.q.new_empty(0)
    return *found, g.view_as(first).to(start.dtype)


def _empty(inputs: Inputs) -> tuple[Tensor, ...]:
    """The results, and the kept states."""
    y, state = SPEC.empty(inputs)
    time = inputs.q.shape[1]
    kept = -(-time // _block(time)) - 1
    return y, state, state.new_empty(len(y), kept, *state.shape[1:])


_op = differentiable_op(
    SPEC, "torch", forward=_forward, backward=_backward, empty=_empty, saved=("between",)
)
