"""The definition of `linear_attention`: one loop over time, in any precision."""

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype

__all__ = ["linear_attention"]


def linear_attention(
    q: Float[Tensor, "batch time groups key"],
    k: Float[Tensor, "batch time groups key"],
    v: Float[Tensor, "batch time heads value"],
    decay: Float[Tensor, "batch time heads gate"],
    scale: float,
    initial_state: Float[Tensor, "batch heads key value"] | None,
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "batch heads key value"],
]:
    """H_t = Diag(a_t) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t. One gate per head or per key.

    q and k of a group are those of each of its heads.
    """
    dtype = compute_dtype(q, k, v, decay, initial_state)
    q, k, value, decay = q.to(dtype), k.to(dtype), v.to(dtype), decay.to(dtype)
    groups, heads = q.shape[2], v.shape[2]
    if groups < heads:
        q, k = (x.repeat_interleave(heads // groups, dim=2) for x in (q, k))
    h = k.new_zeros(*k[:, 0].shape, value.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for t in range(q.shape[1]):
        h = decay[:, t, :, :, None] * h + k[:, t, :, :, None] * value[:, t, :, None, :]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", h, q[:, t]))
    return torch.stack(outputs, dim=1).to(v.dtype), h
