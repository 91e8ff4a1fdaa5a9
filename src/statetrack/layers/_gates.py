"""How the step size Δ of Mamba-like gates starts."""

import math

import torch
from torch import Tensor

__all__ = ["reset_step_size"]

STEP_MIN, STEP_MAX, STEP_FLOOR = 1e-3, 1e-1, 1e-4


def reset_step_size(bias: Tensor, generator: torch.Generator | None) -> None:
    """Sets `bias` so that softplus(bias) is log-uniform in [1e-3, 1e-1], at least 1e-4."""
    with torch.no_grad():
        bias.uniform_(math.log(STEP_MIN), math.log(STEP_MAX), generator=generator)
        step = bias.exp().clamp(min=STEP_FLOOR)
        bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
