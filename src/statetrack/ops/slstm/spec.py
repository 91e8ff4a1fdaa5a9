"""What `slstm_scan` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register

__all__ = ["SPEC", "Inputs", "blank", "empty_with_states", "in_groups", "initial"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.slstm_scan`."""

    gates: Tensor
    R: Tensor
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """h [batch, time, heads, dim] and the final states [sequences, 4, heads, dim]."""
    gates, R, initial_state = inputs
    batch, time, _, heads, dim = gates.shape
    dtype = compute_dtype(gates, R, initial_state)
    h = gates.new_empty(batch, time, heads, dim)
    return h, gates.new_empty(batch * in_a_row, 4, heads, dim, dtype=dtype)


def empty_with_states(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """The results, and the states after each token in the shape of the gates."""
    h, final_state = SPEC.empty(inputs, in_a_row)
    return h, final_state, final_state.new_empty(inputs.gates.shape)


def in_groups(inputs: Inputs) -> Inputs:
    """With R in one group, as registered ops take what a whole batch shares."""
    return inputs._replace(R=inputs.R[None])


def initial(inputs: Inputs) -> Tensor:
    """The state to start from, in the precision of the state: if none is given, empty."""
    state = SPEC.empty(inputs)[1]
    start = inputs.initial_state
    return blank(state) if start is None else start.to(state.dtype)


def blank(like: Tensor) -> Tensor:
    """The empty state: c, n and h are 0, m is -∞."""
    return torch.stack([torch.full_like(like[:, 0], x) for x in (0, 0, -torch.inf, 0)], dim=1)


SPEC = register(
    OpSpec(
        name="slstm_scan",
        inputs=Inputs,
        outputs=("h", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        sequences=("gates",),
        blank=blank,
    )
)
