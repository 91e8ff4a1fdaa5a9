"""What `diagonal_scan` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import Cut, Walk, times

__all__ = ["SPEC", "Inputs", "initial"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.diagonal_scan`."""

    decay: Tensor
    inputs: Tensor
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """The states [batch, time, *dim] and the last of each sequence; all have one dtype."""
    x = inputs.inputs
    return x.new_empty(x.shape), x.new_empty(x.shape[0] * in_a_row, *x.shape[2:])


def initial(inputs: Inputs) -> Tensor:
    """The state to start from: zero if none is given."""
    start = inputs.initial_state
    return torch.zeros_like(inputs.inputs[:, 0]) if start is None else start


def _maps(inputs: Inputs, walk: Walk) -> tuple[Tensor, Tensor]:
    """Of a segment: the product of its transitions, and its last state."""
    return inputs.decay.prod(dim=1), walk(inputs._replace(initial_state=None))[1]


SPEC = register(
    OpSpec(
        name="diagonal_scan",
        inputs=Inputs,
        outputs=("states", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        cut=Cut(_maps, times),
        sequences=("decay", "inputs"),
    )
)
