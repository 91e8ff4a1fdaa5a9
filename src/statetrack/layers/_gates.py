"""Gates that several layers have: how the step size Δ starts, and a range that is learnt."""

import math

import torch
from torch import Tensor, nn

from statetrack._typing import Float

__all__ = ["range_gate", "range_share", "reset_step_size"]

STEP_MIN, STEP_MAX, STEP_FLOOR = 1e-3, 1e-1, 1e-4


def reset_step_size(bias: Tensor, generator: torch.Generator | None) -> None:
    """Sets `bias` so that softplus(bias) is log-uniform in [1e-3, 1e-1], at least 1e-4."""
    with torch.no_grad():
        bias.uniform_(math.log(STEP_MIN), math.log(STEP_MAX), generator=generator)
        step = bias.exp().clamp(min=STEP_FLOOR)
        bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus


def range_gate(num_heads: int, learn_range: bool) -> nn.Parameter | None:
    """One number for each head that opens its eigenvalue range; 0 is the range [0, 1]."""
    return nn.Parameter(torch.zeros(num_heads)) if learn_range else None


def range_share(gate: Tensor | None) -> Float[Tensor, "heads"] | None:
    """How far the range of each head is open: tanh of its gate, in (-1, 1); None for all of it."""
    if gate is None:
        return None
    return torch.tanh(gate.to(torch.promote_types(gate.dtype, torch.float32)))
