"""The definition of `short_convolution`: one loop over time, in any precision."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype

__all__ = ["short_convolution"]


def short_convolution(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None,
    use_silu: bool,
    initial_state: Float[Tensor, "batch past channels"] | None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch past channels"]]:
    """z_t = bias + Σ_j weight_j ∘ x_{t-width+1+j}; y = z or silu(z). State: width - 1 inputs."""
    dtype = compute_dtype(x, weight, bias, initial_state)
    weight = weight.to(dtype)
    width = weight.shape[1]
    start = (
        x.new_zeros(x.shape[0], width - 1, x.shape[2]) if initial_state is None else initial_state
    )
    window = start.to(dtype)
    outputs = []
    for t in range(x.shape[1]):
        window = torch.cat([window, x[:, t : t + 1].to(dtype)], dim=1)  # the last `width` inputs
        z = torch.einsum("bjc,cj->bc", window, weight)
        z = z if bias is None else z + bias.to(dtype)
        outputs.append(silu(z) if use_silu else z)
        window = window[:, 1:]
    return torch.stack(outputs, dim=1).to(x.dtype), window
