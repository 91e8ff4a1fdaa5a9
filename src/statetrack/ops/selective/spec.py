"""What `selective_scan` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import Cut, Walk, times

__all__ = ["SPEC", "Inputs", "in_groups"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.selective_scan`."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    low: float
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """y [batch, time, channels] and the final states [sequences, channels, state]."""
    u, delta, A, B, C, D, _, initial_state = inputs
    batch, _, channels = u.shape
    dtype = compute_dtype(u, delta, A, B, C, D, initial_state)
    return u.new_empty(u.shape), u.new_empty(batch * in_a_row, channels, A.shape[-1], dtype=dtype)


def in_groups(inputs: Inputs) -> Inputs:
    """With A and D in one group, as registered ops take what a whole batch shares."""
    D = inputs.D
    return inputs._replace(A=inputs.A[None], D=None if D is None else D[None])


def _maps(inputs: Inputs, walk: Walk) -> tuple[Tensor, Tensor]:
    """Of a segment: what becomes of ones if nothing is written, and its last state."""
    state = walk(inputs._replace(initial_state=None))[1]
    silent = inputs._replace(u=torch.zeros_like(inputs.u), initial_state=torch.ones_like(state))
    return walk(silent)[1], state


SPEC = register(
    OpSpec(
        name="selective_scan",
        inputs=Inputs,
        outputs=("y", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        cut=Cut(_maps, times),
        sequences=("u", "delta", "B", "C"),
    )
)
