"""The definition of `dplr`: one loop over time, in any precision."""

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype

__all__ = ["dplr"]


def dplr(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time heads key"],
    v: Float[Tensor, "batch time heads value"],
    decay: Float[Tensor, "batch time heads key"],
    left: Float[Tensor, "batch time heads key"],
    right: Float[Tensor, "batch time heads key"],
    scale: float,
    initial_state: Float[Tensor, "batch heads key value"] | None,
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "batch heads key value"],
]:
    """H_t = (Diag(a_t) + l_t r_tᵀ) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t."""
    dtype = compute_dtype(q, k, v, decay, left, right, initial_state)
    q, k, value, decay, left, right = (x.to(dtype) for x in (q, k, v, decay, left, right))
    h = k.new_zeros(*k[:, 0].shape, value.shape[-1]) if initial_state is None else initial_state
    h = h.to(dtype)
    outputs = []
    for t in range(q.shape[1]):
        seen = torch.einsum("bhkv,bhk->bhv", h, right[:, t])
        h = decay[:, t, :, :, None] * h + left[:, t, :, :, None] * seen[:, :, None, :]
        h = h + k[:, t, :, :, None] * value[:, t, :, None, :]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", h, q[:, t]))
    return torch.stack(outputs, dim=1).to(v.dtype), h
