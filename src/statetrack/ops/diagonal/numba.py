# mypy: disallow-untyped-defs=False
"""`diagonal_scan` as compiled loops: one pass over memory forward, one back."""

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import compiled, share_out
from statetrack.ops._register import differentiable_op
from statetrack.ops.diagonal.spec import SPEC, Inputs, initial

__all__ = ["diagonal_scan"]

WIDTH = 1024  # channels of one unit of work


def diagonal_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """h_t = a_t ∘ h_{t-1} + x_t, real or complex, all of one dtype; returns every h_t, the last."""
    states, final_state = _op(*inputs)
    return states, final_state


@compiled
def _forward_kernel(start, stop, decay, inputs, first, states):
    """All arrays [batch, time, channels], first [batch, channels]."""
    time, channels = inputs.shape[1:]
    per_row = (channels + WIDTH - 1) // WIDTH
    for unit in range(start, stop):
        b = unit // per_row
        c0 = unit % per_row * WIDTH
        c1 = min(c0 + WIDTH, channels)
        before = first[b, c0:c1]
        for t in range(time):
            a = decay[b, t, c0:c1]
            x = inputs[b, t, c0:c1]
            h = states[b, t, c0:c1]
            for c in range(c1 - c0):
                h[c] = a[c] * before[c] + x[c]
            before = h


@compiled
def _backward_kernel(start, stop, decay, first, states, d_states, d_final, d_decay, g, d_first):
    """g_t = dh_t + a*_{t+1} g_{t+1} and da_t = g_t h*_{t-1}; d_first holds a* g on the way."""
    time, channels = states.shape[1:]
    per_row = (channels + WIDTH - 1) // WIDTH
    for unit in range(start, stop):
        b = unit // per_row
        c0 = unit % per_row * WIDTH
        c1 = min(c0 + WIDTH, channels)
        carry = d_first[b, c0:c1]
        end = d_final[b, c0:c1]
        for c in range(c1 - c0):
            carry[c] = end[c]
        for t in range(time - 1, -1, -1):
            a = decay[b, t, c0:c1]
            before = states[b, t - 1, c0:c1] if t > 0 else first[b, c0:c1]
            d_h = d_states[b, t, c0:c1]
            g_t = g[b, t, c0:c1]
            d_a = d_decay[b, t, c0:c1]
            for c in range(c1 - c0):
                total = d_h[c] + carry[c]
                g_t[c] = total
                d_a[c] = total * np.conj(before[c])
                carry[c] = np.conj(a[c]) * total


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    decay, x, _ = inputs
    states = torch.empty_like(x, memory_format=torch.contiguous_format)
    arrays = [_array(decay, 2), _array(x, 2), _array(initial(inputs), 1), _array(states, 2)]
    share_out(_forward_kernel, _units(arrays[0]), *arrays)
    return states, states[:, -1].clone()


def _backward(
    inputs: Inputs, states: Tensor, final_state: Tensor, d_states: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    decay, start = inputs.decay, initial(inputs)
    g, d_decay, d_start = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (states, decay, start)
    )
    arrays = [_array(decay, 2), _array(start, 1), _array(states, 2)]
    arrays += [_array(d_states, 2), _array(d_final, 1)]
    arrays += [_array(d_decay, 2), _array(g, 2), _array(d_start, 1)]
    share_out(_backward_kernel, _units(arrays[0]), *arrays)
    return d_decay, g, g.new_empty(0) if inputs.initial_state is None else d_start


def _array(x: Tensor, leading: int) -> np.ndarray:
    """The last axes made one; shares memory with `x` if that is contiguous."""
    channels = x.shape[leading:].numel()
    return x.detach().resolve_conj().contiguous().view(*x.shape[:leading], channels).numpy()


def _units(decay: np.ndarray) -> int:
    return decay.shape[0] * -(-decay.shape[2] // WIDTH)


_op = differentiable_op(SPEC, "numba", forward=_forward, backward=_backward)
