"""The definition of `diagonal_scan`: one loop over time, in any precision."""

import torch
from torch import Tensor

from statetrack._typing import Inexact

__all__ = ["diagonal_scan"]


def diagonal_scan(
    decay: Inexact[Tensor, "batch time *dim"],
    inputs: Inexact[Tensor, "batch time *dim"],
    initial_state: Inexact[Tensor, "batch *dim"] | None,
) -> tuple[Inexact[Tensor, "batch time *dim"], Inexact[Tensor, "batch *dim"]]:
    """h_t = a_t ∘ h_{t-1} + x_t, real or complex; returns every h_t."""
    h = torch.zeros_like(inputs[:, 0]) if initial_state is None else initial_state
    states = []
    for t in range(inputs.shape[1]):
        h = decay[:, t] * h + inputs[:, t]
        states.append(h)
    return torch.stack(states, dim=1), h
