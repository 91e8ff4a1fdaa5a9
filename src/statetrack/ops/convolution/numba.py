# mypy: disallow-untyped-defs=False
"""`short_convolution` as compiled loops: one pass over the tokens forward, one back.

A unit of work is one batch row and a block of its channels. Its last inputs and the gradients that
later tokens still add to are a few kilobytes and stay in the nearest cache, so that every input is
read from memory once. The backward computes the sums again rather than keep them.

Inside, weight is [groups, width, channels] and bias [groups, channels]: a group of batch rows
shares them (see _register.py). `padded` is the state followed by the tokens.
"""

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import arrays, compiled, share_out
from statetrack.ops._numba.functions import sigmoid
from statetrack.ops._register import compute_dtype, differentiable_op, per_group
from statetrack.ops.convolution.spec import SPEC, Inputs, in_groups

__all__ = ["short_convolution"]

BLOCK = 512  # channels of one unit of work


def short_convolution(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.short_convolution`."""
    y, final_state = _op(*in_groups(inputs))
    return y, final_state


@compiled
def _sums(t, c0, c1, x, weight, bias, first, z):
    """z = bias + Σ_j weight_j ∘ padded_{t+j} of one row, for channels c0..c1."""
    past, b = first.shape[0], bias[c0:c1]
    for c in range(c1 - c0):
        z[c] = b[c]
    for j in range(past + 1):
        w, s = weight[j, c0:c1], t + j - past
        source = x[s, c0:c1] if s >= 0 else first[s + past, c0:c1]
        for c in range(c1 - c0):
            z[c] += w[c] * source[c]


@compiled
def _forward_kernel(start, stop, x, weight, bias, use_silu, first, y):
    batch, time, channels = x.shape
    blocks, rows = (channels + BLOCK - 1) // BLOCK, batch // weight.shape[0]
    for unit in range(start, stop):
        b, c0 = unit // blocks, unit % blocks * BLOCK
        c1, g = min(c0 + BLOCK, channels), b // rows
        for t in range(time):
            z = y[b, t, c0:c1]
            _sums(t, c0, c1, x[b], weight[g], bias[g], first[b], z)
            if use_silu:
                for c in range(z.shape[0]):
                    z[c] = z[c] * sigmoid(z[c])


@compiled
def _backward_kernel(start, stop, x, weight, bias, use_silu, first, dy, dx, dweight, dbias, dfirst):
    """dpadded_s = Σ_j w_j ∘ dz_{s-j}, dw_j = Σ_t dz_t ∘ padded_{t+j}, with dz = dy·silu'(z).

    dx and dfirst hold the gradient of the final state before, dweight and dbias, one for each row,
    zeros.
    """
    batch, time, channels = x.shape
    blocks, rows = (channels + BLOCK - 1) // BLOCK, batch // weight.shape[0]
    past = first.shape[1]
    dz_kept = np.empty(min(BLOCK, channels), x.dtype)
    one = x.dtype.type(1)
    for unit in range(start, stop):
        b, c0 = unit // blocks, unit % blocks * BLOCK
        c1, g = min(c0 + BLOCK, channels), b // rows
        dz, db = dz_kept[: c1 - c0], dbias[b, c0:c1]
        for t in range(time):
            dy_t = dy[b, t, c0:c1]
            if use_silu:
                _sums(t, c0, c1, x[b], weight[g], bias[g], first[b], dz)
                for c in range(c1 - c0):
                    gate = sigmoid(dz[c])
                    dz[c] = dy_t[c] * gate * (one + dz[c] * (one - gate))
            else:
                for c in range(c1 - c0):
                    dz[c] = dy_t[c]
            for c in range(c1 - c0):
                db[c] += dz[c]
            for j in range(past + 1):
                w, dw, s = weight[g, j, c0:c1], dweight[b, j, c0:c1], t + j - past
                source = x[b, s, c0:c1] if s >= 0 else first[b, s + past, c0:c1]
                target = dx[b, s, c0:c1] if s >= 0 else dfirst[b, s + past, c0:c1]
                for c in range(c1 - c0):
                    dw[c] += dz[c] * source[c]
                    target[c] += dz[c] * w[c]


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, weight, bias, first = _prepared(inputs)
    time, past = x.shape[1], first.shape[1]
    y = torch.empty_like(x)
    given = arrays(x.dtype, x, weight, bias)
    share_out(_forward_kernel, _units(x), *given, inputs.use_silu, *arrays(x.dtype, first, y))
    final_state = torch.cat([first[:, time:], x[:, max(time - past, 0) :]], dim=1)
    return y.to(inputs.x.dtype), final_state


def _backward(
    inputs: Inputs, y: Tensor, final_state: Tensor, dy: Tensor, dfinal_state: Tensor
) -> tuple[Tensor, ...]:
    x, weight, bias, first = _prepared(inputs)
    batch, time, channels = x.shape
    groups, width, _ = weight.shape
    past = width - 1
    dx, dfirst = torch.zeros_like(x), torch.zeros_like(first)
    dx[:, max(time - past, 0) :] = dfinal_state[:, max(past - time, 0) :]
    dfirst[:, time:] = dfinal_state[:, : max(past - time, 0)]
    dweight, dbias = x.new_zeros(batch, width, channels), x.new_zeros(batch, channels)
    given = arrays(x.dtype, x, weight, bias)
    rest = arrays(x.dtype, first, dy, dx, dweight, dbias, dfirst)
    share_out(_backward_kernel, _units(x), *given, inputs.use_silu, *rest)
    return (
        dx.to(inputs.x.dtype),
        per_group(dweight, groups).transpose(1, 2).to(inputs.weight.dtype),
        x.new_empty(0) if inputs.bias is None else per_group(dbias, groups).to(inputs.bias.dtype),
        x.new_empty(0) if inputs.initial_state is None else dfirst.to(inputs.initial_state.dtype),
    )


def _prepared(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight with its channels last, bias and initial state, in the precision of the sums."""
    x, weight, bias, _, start = inputs
    dtype = compute_dtype(x, weight, bias, start)
    groups, channels, width = weight.shape
    if bias is None:
        bias = weight.new_zeros(groups, channels)
    if start is None:
        start = x.new_zeros(x.shape[0], width - 1, channels)
    x, weight, bias, start = (
        tensor.to(dtype).contiguous() for tensor in (x, weight.transpose(1, 2), bias, start)
    )
    return x, weight, bias, start


def _units(x: Tensor) -> int:
    return x.shape[0] * -(-x.shape[2] // BLOCK)


_op = differentiable_op(SPEC, "numba", forward=_forward, backward=_backward)
