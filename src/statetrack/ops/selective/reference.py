"""The definition of `selective_scan`: one loop over time, in any precision."""

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype

__all__ = ["selective_scan"]


def selective_scan(
    u: Float[Tensor, "batch time channels"],
    delta: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels state"],
    B: Float[Tensor, "batch time state"],
    C: Float[Tensor, "batch time state"],
    D: Float[Tensor, "channels"] | None,
    low: float,
    initial_state: Float[Tensor, "batch channels state"] | None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch channels state"]]:
    """h_t = a_t ∘ h_{t-1} + Δ_t B_t u_t with a = low + (1-low)·exp(Δ A); y = h·C + D u."""
    dtype = compute_dtype(u, delta, A, B, C, D, initial_state)
    x, delta, A, B, C = u.to(dtype), delta.to(dtype), A.to(dtype), B.to(dtype), C.to(dtype)
    h = x.new_zeros(*x[:, 0].shape, A.shape[1]) if initial_state is None else initial_state
    outputs = []
    for t in range(x.shape[1]):
        a = low + (1 - low) * torch.exp(delta[:, t, :, None] * A)
        h = a * h + (delta[:, t] * x[:, t])[:, :, None] * B[:, t, None, :]
        y = (h * C[:, t, None, :]).sum(-1)
        outputs.append(y if D is None else y + D.to(dtype) * x[:, t])
    return torch.stack(outputs, dim=1).to(u.dtype), h
