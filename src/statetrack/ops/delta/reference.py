"""The definition of `delta_product`, so of `delta_rule`: one loop over time, in any precision."""

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype
from statetrack.ops.delta.spec import NORM_FLOOR

__all__ = ["delta_product", "unit_vector"]


def delta_product(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time micro heads key"],
    v: Float[Tensor, "batch time micro heads value"],
    beta: Float[Tensor, "batch time micro heads"],
    decay: Float[Tensor, "batch time heads"] | None,
    normalize_keys: bool,
    scale: float,
    initial_state: Float[Tensor, "batch heads key value"] | None,
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "batch heads key value"],
]:
    """Per token H ← a H, then H ← (I - β_j k_j k_jᵀ) H + β_j k_j v_jᵀ for j = 1..n; y = scale·Hᵀq.

    With `normalize_keys`, q and every k are first divided by their norms.
    """
    dtype = compute_dtype(q, k, v, beta, decay, initial_state)
    q, k, value, beta = q.to(dtype), k.to(dtype), v.to(dtype), beta.to(dtype)
    if normalize_keys:
        q, k = unit_vector(q), unit_vector(k)
    h = k.new_zeros(*k[:, 0, 0].shape, value.shape[-1]) if initial_state is None else initial_state
    h = h.to(dtype)
    outputs = []
    for t in range(q.shape[1]):
        if decay is not None:
            h = decay[:, t, :, None, None].to(dtype) * h
        for j in range(k.shape[2]):
            error = value[:, t, j] - torch.einsum("bhkv,bhk->bhv", h, k[:, t, j])
            h = h + torch.einsum("bhk,bhv->bhkv", beta[:, t, j, :, None] * k[:, t, j], error)
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", h, q[:, t]))
    return torch.stack(outputs, dim=1).to(v.dtype), h


def unit_vector(x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
    """x / ‖x‖ along the last axis, and zero with zero gradient where ‖x‖ is at most NORM_FLOOR."""
    squared = (x * x).sum(-1, keepdim=True)
    long_enough = squared > NORM_FLOOR**2
    inverse = torch.where(long_enough, squared, 1.0).rsqrt()
    return torch.where(long_enough, inverse, 0.0) * x
