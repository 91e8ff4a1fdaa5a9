"""`short_convolution` in plain tensor code: one product and sum for each tap, over all tokens.

Letters: G groups, C channels, W width. Inside, weight is [G, C, W] and bias [G, C]: a group of
batch rows shares them (see _register.py). `padded` is the state followed by the tokens, so that
z_t = bias + Σ_j w_j ∘ padded_{t+j}. The backward computes z again rather than keep it.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype, differentiable_op, empty_grads

__all__ = ["short_convolution"]


def short_convolution(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None,
    use_silu: bool,
    initial_state: Float[Tensor, "batch past channels"] | None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch past channels"]]:
    """See `statetrack.ops.short_convolution`."""
    bias = None if bias is None else bias[None]
    y, final_state = _short_convolution(x, weight[None], bias, use_silu, initial_state)
    return y, final_state


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, use_silu: bool, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    padded, z = _padded_and_sums(x, weight, bias, initial_state)
    y = silu(z, inplace=True) if use_silu else z
    return y.to(x.dtype), padded[:, x.shape[1] :].clone()


def _backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    use_silu: bool,
    initial_state: Tensor | None,
    y: Tensor,
    final_state: Tensor,
    dy: Tensor,
    dfinal_state: Tensor,
) -> tuple[Tensor, ...]:
    """dpadded_s = Σ_j w_j ∘ dz_{s-j}, dw_j = Σ_t dz_t ∘ padded_{t+j}, with dz = dy·silu'(z)."""
    batch, time, _ = x.shape
    groups, _, width = weight.shape
    padded, z = _padded_and_sums(x, weight, bias, initial_state)
    dz = dy.to(z.dtype)
    if use_silu:
        gate = torch.sigmoid(z)
        dz = dz * gate * (1 + z * (1 - gate))
    dpadded = torch.zeros_like(padded)
    dpadded[:, time:] = dfinal_state
    taps = _per_row(weight.to(z.dtype), batch)
    dweight = weight.new_empty(weight.shape, dtype=z.dtype)
    for j in range(width):
        dpadded[:, j : j + time].addcmul_(dz, taps[:, None, :, j])
        dweight[..., j] = _per_group((dz * padded[:, j : j + time]).sum(1), groups)
    dbias = x.new_empty(0) if bias is None else _per_group(dz.sum(1), groups).to(bias.dtype)
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
    taps = _per_row(weight.to(dtype), batch)
    z = padded[:, :time] * taps[:, None, :, 0]
    for j in range(1, width):
        z.addcmul_(padded[:, j : j + time], taps[:, None, :, j])
    if bias is not None:
        z += _per_row(bias.to(dtype), batch)[:, None]
    return padded, z


def _per_row(x: Tensor, batch: int) -> Tensor:
    """[groups, ...] -> [batch, ...]: what each row of the batch uses."""
    groups = x.shape[0]
    return x.expand(batch, *x.shape[1:]) if groups == 1 else x.repeat_interleave(batch // groups, 0)


def _per_group(x: Tensor, groups: int) -> Tensor:
    """[batch, ...] -> [groups, ...]: the sum over the rows of each group."""
    return x.unflatten(0, (groups, x.shape[0] // groups)).sum(1)


def _forward_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, use_silu: bool, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(x, weight, bias, initial_state)
    past = (x.shape[0], weight.shape[2] - 1, x.shape[2])
    return x.new_empty(x.shape), x.new_empty(past, dtype=dtype)


def _backward_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    use_silu: bool,
    initial_state: Tensor | None,
    *_: Tensor,
) -> tuple[Tensor, ...]:
    inputs = (x, weight, bias, initial_state)
    return empty_grads(*inputs)


_INPUTS = "Tensor x, Tensor weight, Tensor? bias, bool use_silu, Tensor? initial_state"
_short_convolution = differentiable_op(
    "short_convolution",
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
    forward=_forward,
    forward_fake=_forward_fake,
    backward_schema=(
        f"({_INPUTS}, Tensor y, Tensor final_state, Tensor dy, Tensor dfinal_state)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    ),
    backward=_backward,
    backward_fake=_backward_fake,
    num_outputs=2,
)
