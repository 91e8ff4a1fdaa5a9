# mypy: disallow-untyped-defs=False
"""`linear_attention` as compiled loops: each core walks over time with one head's state.

The state stays in the nearest cache and every loop over the value dimension is vector code, so the
recurrence itself is as cheap as the matrix products of a chunked form, and gates of any sign and
size need no care. The backward keeps nothing from the forward but the inputs: it walks forward
once, marking the state before every block of tokens, then takes the blocks from the last to the
first, each once more forward and then back.
"""

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import arrays, compiled, share_out
from statetrack.ops._register import differentiable_op
from statetrack.ops.linear_attention.spec import SPEC, Inputs, by_head, initial

__all__ = ["linear_attention"]

BLOCK_NUMBERS = 2**17  # in the states of one block of tokens: they should fit the second cache


def linear_attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """H_t = Diag(a_t) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t. One gate per head or per key."""
    y, final_state = _op(*by_head(inputs))
    return y, final_state


# In the kernels: a gate per head is read as the last gate there is, for every key; rows are taken
# first (state[m]) and then walked along, because only a loop over neighbours in memory becomes
# vector code.


@compiled
def _copy(source, target):
    for m in range(source.shape[0]):
        source_m, target_m = source[m], target[m]
        for j in range(source.shape[1]):
            target_m[j] = source_m[j]


@compiled
def _advance(state, k, v, a):
    """state ← Diag(a) state + k vᵀ, [key, value]."""
    last = a.shape[0] - 1
    for m in range(k.shape[0]):
        state_m, k_m, a_m = state[m], k[m], a[min(m, last)]
        for j in range(v.shape[0]):
            state_m[j] = a_m * state_m[j] + k_m * v[j]


@compiled
def _step(before, k, v, a, after):
    """The same into another place: in one place, two names would keep it from being vector code."""
    last = a.shape[0] - 1
    for m in range(k.shape[0]):
        before_m, after_m, k_m, a_m = before[m], after[m], k[m], a[min(m, last)]
        for j in range(v.shape[0]):
            after_m[j] = a_m * before_m[j] + k_m * v[j]


@compiled
def _forward_kernel(start, stop, q, k, v, a, scale, state, y):
    """Units start..stop, each one batch row and head; state [batch, heads, key, value] in place."""
    _, time, heads, keys = q.shape
    values, last = v.shape[3], a.shape[3] - 1
    read = np.empty(values, q.dtype)  # H_tᵀ q_t
    for unit in range(start, stop):
        b, i = unit // heads, unit % heads
        h = state[b, i]
        for t in range(time):
            v_t, y_t = v[b, t, i], y[b, t, i]
            for j in range(values):
                read[j] = 0
            for m in range(keys):
                h_m, q_m, k_m, a_m = h[m], q[b, t, i, m], k[b, t, i, m], a[b, t, i, min(m, last)]
                for j in range(values):
                    x = a_m * h_m[j] + k_m * v_t[j]
                    h_m[j] = x
                    read[j] += q_m * x
            for j in range(values):
                y_t[j] = scale * read[j]


@compiled
def _backward_kernel(start, stop, q, k, v, a, scale, state, dy, dstate, block, dq, dk, dv, da):
    """Units start..stop; dstate goes from the gradient of the last state to that of the first.

    With G_t the gradient of H_t, from the last token back:

        G ← G + scale · q_t dy_tᵀ     dk_t = G v_t       dv_t = Gᵀ k_t
        da_t = Σ_value G ∘ H_{t-1}    dq_t = scale · H_t dy_t    G ← Diag(a_t) G
    """
    _, time, heads, keys = q.shape
    values, last = v.shape[3], a.shape[3] - 1
    count = (time + block - 1) // block
    zero = q.dtype.type(0)
    marks = np.empty((count, keys, values), q.dtype)  # the states before each block
    states = np.empty((min(block, time), keys, values), q.dtype)  # before each token of one block
    dread = np.empty(values, q.dtype)
    dv_sum = np.empty(values, q.dtype)
    for unit in range(start, stop):
        b, i = unit // heads, unit % heads
        _copy(state[b, i], marks[0])
        for c in range(1, count):
            _copy(marks[c - 1], marks[c])
            for t in range((c - 1) * block, c * block):
                _advance(marks[c], k[b, t, i], v[b, t, i], a[b, t, i])
        g = dstate[b, i]
        for c in range(count - 1, -1, -1):
            first, end = c * block, min(time, (c + 1) * block)
            _copy(marks[c], states[0])
            for t in range(first, end - 1):
                s = t - first
                _step(states[s], k[b, t, i], v[b, t, i], a[b, t, i], states[s + 1])
            for t in range(end - 1, first - 1, -1):
                v_t, dy_t, dv_t, da_t = v[b, t, i], dy[b, t, i], dv[b, t, i], da[b, t, i]
                own = zero  # scale · v_t · dy_t, what the token's own write adds to dq
                for j in range(values):
                    dv_sum[j] = 0
                    dread[j] = scale * dy_t[j]
                    own += dread[j] * v_t[j]
                for m in range(da_t.shape[0]):
                    da_t[m] = 0
                for m in range(keys):
                    h_m, g_m = states[t - first, m], g[m]
                    q_m, k_m, a_m = q[b, t, i, m], k[b, t, i, m], a[b, t, i, min(m, last)]
                    dq_m, dk_m, da_m = zero, zero, zero
                    for j in range(values):
                        x = g_m[j] + q_m * dread[j]
                        dq_m += h_m[j] * dread[j]
                        dk_m += x * v_t[j]
                        da_m += x * h_m[j]
                        dv_sum[j] += k_m * x
                        g_m[j] = a_m * x
                    dq[b, t, i, m] = a_m * dq_m + k_m * own
                    dk[b, t, i, m] = dk_m
                    da_t[min(m, last)] += da_m
                for j in range(values):
                    dv_t[j] = dv_sum[j]


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    q, k, v, decay, scale, initial_state = inputs
    state = initial(inputs)
    given = arrays(state.dtype, q, k, v, decay)
    y = state.new_empty(v.shape)
    scale_ = given[0].dtype.type(scale)
    units = q.shape[0] * q.shape[2]
    share_out(_forward_kernel, units, *given, scale_, state.numpy(), y.numpy())
    return y.to(v.dtype), state


def _backward(
    inputs: Inputs, y: Tensor, final_state: Tensor, dy: Tensor, dfinal_state: Tensor
) -> tuple[Tensor, ...]:
    q, k, v, decay, scale, initial_state = inputs
    state = initial(inputs)
    dtype = state.dtype
    given = arrays(dtype, q, k, v, decay)
    dstate = torch.empty_like(state).copy_(dfinal_state)
    grads = [x.new_empty(x.shape, dtype=dtype) for x in (q, k, v, decay)]
    share_out(
        _backward_kernel,
        q.shape[0] * q.shape[2],
        *given,
        given[0].dtype.type(scale),
        *arrays(dtype, state, dy),
        dstate.numpy(),
        max(1, BLOCK_NUMBERS // (q.shape[3] * v.shape[3])),
        *(grad.numpy() for grad in grads),
    )
    dq, dk, dv, da = (g.to(x.dtype) for g, x in zip(grads, (q, k, v, decay), strict=True))
    if initial_state is None:
        return dq, dk, dv, da, q.new_empty(0)
    return dq, dk, dv, da, dstate.to(initial_state.dtype)


_op = differentiable_op(SPEC, "numba", forward=_forward, backward=_backward)
