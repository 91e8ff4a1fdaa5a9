"""What `matrix_scan` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._spec import OpSpec, register

__all__ = ["SPEC", "Inputs"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.matrix_scan`."""

    A: Tensor
    initial_state: Tensor
    inputs: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """The states [batch, time, n, columns] and the last of each sequence; all have one dtype."""
    A, start, _ = inputs
    return start.new_empty(*A.shape[:3], start.shape[2]), start.new_empty(start.shape)


SPEC = register(
    OpSpec(
        name="matrix_scan",
        inputs=Inputs,
        outputs=("states", "final_state"),
        empty=_empty,
        backends=("reference", "torch"),
        sequences=("A", "inputs"),
    )
)
