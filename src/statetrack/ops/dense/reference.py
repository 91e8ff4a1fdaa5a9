"""The definition of `matrix_scan`: one loop over time, in any precision."""

import torch
from torch import Tensor

from statetrack._typing import Float

__all__ = ["matrix_scan"]


def matrix_scan(
    A: Float[Tensor, "batch time n n"],
    initial_state: Float[Tensor, "batch n columns"],
    inputs: Float[Tensor, "batch time n columns"] | None,
) -> tuple[Float[Tensor, "batch time n columns"], Float[Tensor, "batch n columns"]]:
    """H_t = A_t H_{t-1} + B_t for any matrices; returns every H_t."""
    h = initial_state
    states = []
    for t in range(A.shape[1]):
        h = A[:, t] @ h if inputs is None else A[:, t] @ h + inputs[:, t]
        states.append(h)
    return torch.stack(states, dim=1), h
