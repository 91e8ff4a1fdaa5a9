# mypy: disallow-untyped-defs=False
"""`dplr` as compiled loops: each core walks over time with one head's state.

The state stays in the nearest cache and every loop over the value dimension is vector code. The
backward keeps nothing from the forward but the inputs: it walks forward once, marking the state
before every block of tokens, then takes the blocks from the last to the first, each once more
forward and then back.
"""

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import arrays, compiled, share_out
from statetrack.ops._register import differentiable_op
from statetrack.ops.dplr.spec import SPEC, Inputs, initial

__all__ = ["dplr"]

BLOCK_NUMBERS = 2**17  # in the states of one block of tokens: they should fit the second cache


def dplr(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """H_t = (Diag(a_t) + l_t r_tᵀ) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t."""
    y, final_state = _op(*inputs)
    return y, final_state


# Rows are taken first (state[m]) and then walked along, because only a loop over neighbours in
# memory becomes vector code.


@compiled
def _copy(source, target):
    for m in range(source.shape[0]):
        source_m, target_m = source[m], target[m]
        for j in range(source.shape[1]):
            target_m[j] = source_m[j]


@compiled
def _read(state, r, seen):
    """seen = stateᵀ r."""
    for j in range(seen.shape[0]):
        seen[j] = 0
    for m in range(r.shape[0]):
        state_m, r_m = state[m], r[m]
        for j in range(seen.shape[0]):
            seen[j] += r_m * state_m[j]


@compiled
def _step(before, k, v, a, left, seen, after):
    """after = Diag(a) before + left seenᵀ + k vᵀ, [key, value]; the two are different places."""
    for m in range(k.shape[0]):
        before_m, after_m, k_m, a_m, l_m = before[m], after[m], k[m], a[m], left[m]
        for j in range(v.shape[0]):
            after_m[j] = a_m * before_m[j] + l_m * seen[j] + k_m * v[j]


@compiled
def _forward_kernel(start, stop, q, k, v, a, left, right, scale, state, y):
    """Units start..stop, each one batch row and head; state [batch, heads, key, value] in place."""
    _, time, heads, keys = q.shape
    values = v.shape[3]
    seen = np.empty(values, q.dtype)  # H_{t-1}ᵀ r_t
    read = np.empty(values, q.dtype)  # H_tᵀ q_t
    for unit in range(start, stop):
        b, i = unit // heads, unit % heads
        h = state[b, i]
        for t in range(time):
            v_t, y_t = v[b, t, i], y[b, t, i]
            _read(h, right[b, t, i], seen)
            for j in range(values):
                read[j] = 0
            for m in range(keys):
                h_m, q_m, k_m = h[m], q[b, t, i, m], k[b, t, i, m]
                a_m, l_m = a[b, t, i, m], left[b, t, i, m]
                for j in range(values):
                    x = a_m * h_m[j] + l_m * seen[j] + k_m * v_t[j]
                    h_m[j] = x
                    read[j] += q_m * x
            for j in range(values):
                y_t[j] = scale * read[j]


@compiled
def _backward_kernel(
    start, stop, q, k, v, a, left, right, scale, state, dy, dstate, block, dq, dk, dv, da, dl, dr
):
    """Units start..stop; dstate goes from the gradient of the last state to that of the first.

    With G_t the gradient of H_t and w_t = H_{t-1}ᵀ r_t, from the last token back:

        G ← G + scale · q_t dy_tᵀ    dq_t = scale · H_t dy_t    dk_t = G v_t    dv_t = Gᵀ k_t
        dl_t = G w_t    dw_t = Gᵀ l_t    dr_t = H_{t-1} dw_t    da_t = Σ_value G ∘ H_{t-1}
        G ← Diag(a_t) G + r_t dw_tᵀ
    """
    _, time, heads, keys = q.shape
    values = v.shape[3]
    count = (time + block - 1) // block
    zero = q.dtype.type(0)
    marks = np.empty((count, keys, values), q.dtype)  # the states before each block
    states = np.empty((min(block, time), keys, values), q.dtype)  # before each token of one block
    other = np.empty((keys, values), q.dtype)
    seen = np.empty(values, q.dtype)
    dread = np.empty(values, q.dtype)
    dv_sum = np.empty(values, q.dtype)
    dseen = np.empty(values, q.dtype)
    for unit in range(start, stop):
        b, i = unit // heads, unit % heads
        _copy(state[b, i], marks[0])
        for c in range(1, count):
            _copy(marks[c - 1], marks[c])
            for t in range((c - 1) * block, c * block):
                _read(marks[c], right[b, t, i], seen)
                _step(marks[c], k[b, t, i], v[b, t, i], a[b, t, i], left[b, t, i], seen, other)
                _copy(other, marks[c])
        g = dstate[b, i]
        for c in range(count - 1, -1, -1):
            first, end = c * block, min(time, (c + 1) * block)
            _copy(marks[c], states[0])
            for t in range(first, end - 1):
                s = t - first
                _read(states[s], right[b, t, i], seen)
                _step(
                    states[s], k[b, t, i], v[b, t, i], a[b, t, i], left[b, t, i], seen,
                    states[s + 1],
                )  # fmt: skip
            for t in range(end - 1, first - 1, -1):
                v_t, dy_t, dv_t, h = v[b, t, i], dy[b, t, i], dv[b, t, i], states[t - first]
                _read(h, right[b, t, i], seen)
                from_v, from_seen = zero, zero  # what the token's own writes add to dq
                for j in range(values):
                    dv_sum[j] = 0
                    dseen[j] = 0
                    dread[j] = scale * dy_t[j]
                    from_v += dread[j] * v_t[j]
                    from_seen += dread[j] * seen[j]
                for m in range(keys):
                    h_m, g_m = h[m], g[m]
                    q_m, k_m = q[b, t, i, m], k[b, t, i, m]
                    a_m, l_m = a[b, t, i, m], left[b, t, i, m]
                    dq_m, dk_m, da_m, dl_m = zero, zero, zero, zero
                    for j in range(values):
                        x = g_m[j] + q_m * dread[j]
                        dq_m += h_m[j] * dread[j]
                        dk_m += x * v_t[j]
                        dl_m += x * seen[j]
                        da_m += x * h_m[j]
                        dv_sum[j] += k_m * x
                        dseen[j] += l_m * x
                        g_m[j] = a_m * x
                    dq[b, t, i, m] = a_m * dq_m + k_m * from_v + l_m * from_seen
                    dk[b, t, i, m] = dk_m
                    da[b, t, i, m] = da_m
                    dl[b, t, i, m] = dl_m
                for m in range(keys):
                    h_m, g_m, r_m, dr_m = h[m], g[m], right[b, t, i, m], zero
                    for j in range(values):
                        dr_m += h_m[j] * dseen[j]
                        g_m[j] += r_m * dseen[j]
                    dr[b, t, i, m] = dr_m
                for j in range(values):
                    dv_t[j] = dv_sum[j]


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    q, v = inputs.q, inputs.v
    state = initial(inputs)
    given = arrays(state.dtype, *inputs[:6])
    y = state.new_empty(v.shape)
    scale = given[0].dtype.type(inputs.scale)
    share_out(_forward_kernel, q.shape[0] * q.shape[2], *given, scale, state.numpy(), y.numpy())
    return y.to(v.dtype), state


def _backward(
    inputs: Inputs, y: Tensor, final_state: Tensor, dy: Tensor, dfinal_state: Tensor
) -> tuple[Tensor, ...]:
    q, v, initial_state = inputs.q, inputs.v, inputs.initial_state
    state = initial(inputs)
    dtype = state.dtype
    given = arrays(dtype, *inputs[:6])
    dstate = torch.empty_like(state).copy_(dfinal_state)
    grads = [x.new_empty(x.shape, dtype=dtype) for x in inputs[:6]]
    share_out(
        _backward_kernel,
        q.shape[0] * q.shape[2],
        *given,
        given[0].dtype.type(inputs.scale),
        *arrays(dtype, state, dy),
        dstate.numpy(),
        max(1, BLOCK_NUMBERS // (q.shape[3] * v.shape[3])),
        *(grad.numpy() for grad in grads),
    )
    found = [grad.to(x.dtype) for grad, x in zip(grads, inputs[:6], strict=True)]
    if initial_state is None:
        return *found, q.new_empty(0)
    return *found, dstate.to(initial_state.dtype)


_op = differentiable_op(SPEC, "numba", forward=_forward, backward=_backward)
