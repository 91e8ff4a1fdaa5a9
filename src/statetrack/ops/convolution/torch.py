"""`short_convolution` in plain tensor code: one product and sum for each tap, over all tokens.

Letters: G groups, C channels, W width. Inside, weight is [G, C, W] and bias [G, C]: a group of
batch rows shares them (see _register.py). `padded` is the state followed by the tokens, so that
z_t = bias + Σ_j w_j ∘ padded_{t+j}. The backward computes z again rather than keep it.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from statetrack.ops._register import compute_dtype, differentiable_op, per_group, per_row
from statetrack.ops.convolution.spec import SPEC, Inputs, in_groups

__all__ = ["short_convolution"]


def short_convolution(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.short_convolution`."""
    y, final_state = _op(*in_groups(inputs))
    return y, final_state


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, weight, bias, use_silu, initial_state = inputs
    padded, z = _padded_and_sums(x, weight, bias, initial_state)
    y = silu(z, inplace=True) if use_silu else z
    return y.to(x.dtype), padded[:, x.shape[1] :].clone()


def _backward(
    inputs: Inputs, y: Tensor, final_state: Tensor, dy: Tensor, dfinal_state: Tensor
) -> tuple[Tensor, ...]:
    """dpadded_s = Σ_j w_j ∘ dz_{s-j}, dw_j = Σ_t dz_t ∘ padded_{t+j}, with dz = dy·silu'(z)."""
    x, weight, bias, use_silu, initial_state = inputs
    batch, time, _ = x.shape
    groups, _, width = weight.shape
    padded, z = _padded_and_sums(x, weight, bias, initial_state)
    dz = dy.to(z.dtype)
    if use_silu:
        gate = torch.sigmoid(z)
        dz = dz * gate * (1 + z * (1 - gate))
    dpadded = torch.zeros_like(padded)
    dpadded[:, time:] = dfinal_state
    taps = per_row(weight.to(z.dtype), batch)
    dweight = weight.new_empty(weight.shape, dtype=z.dtype)
    for j in range(width):
        dpadded[:, j : j + time].addcmul_(dz, taps[:, None, :, j])
        dweight[..., j] = per_group((dz * padded[:, j : j + time]).sum(1), groups)
    dbias = x.new_empty(0) if bias is None else per_group(dz.sum(1), groups).to(bias.dtype)
    return (
        dpadded[:, width - 1 :].to(x.dtype, copy=True),
        dweight.to(weight.dtype),
        dbias,
        x.new_empty(0)
        if initial_state is None
        else dpadded[:, : width - 1].to(initial_state.dtype, copy=True),
    )


def _padded_and_sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The state followed by the tokens, and z."""
    dtype = compute_dtype(x, weight, bias, initial_state)
    batch, time, channels = x.shape
    width = weight.shape[2]
    padded = x.new_empty(batch, width - 1 + time, channels, dtype=dtype)
    padded[:, : width - 1] = 0 if initial_state is None else initial_state
    padded[:, width - 1 :] = x
    taps = per_row(weight.to(dtype), batch)
    z = padded[:, :time] * taps[:, None, :, 0]
    for j in range(1, width):
        z.addcmul_(padded[:, j : j + time], taps[:, None, :, j])
    if bias is not None:
        z += per_row(bias.to(dtype), batch)[:, None]
    return padded, z


_op = differentiable_op(SPEC, "torch", forward=_forward, backward=_backward)
