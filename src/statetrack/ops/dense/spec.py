"""What `matrix_scan` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import Cut, Walk, product

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


def _maps(inputs: Inputs, walk: Walk) -> tuple[Tensor, Tensor]:
    """Of a segment: the product of its matrices, and its last state from zeros, side by side."""
    A, start, writes = inputs
    n, columns = start.shape[1:]
    one = torch.eye(n, dtype=start.dtype, device=start.device).expand(len(start), n, n)
    wide = torch.cat([torch.zeros_like(start), one], dim=-1)
    found = walk(Inputs(A, wide, None if writes is None else pad(writes, (0, n))))[1]
    return found[..., columns:], found[..., :columns]


SPEC = register(
    OpSpec(
        name="matrix_scan",
        inputs=Inputs,
        outputs=("states", "final_state"),
        empty=_empty,
        backends=("reference", "torch"),
        cut=Cut(_maps, product),
        sequences=("A", "inputs"),
    )
)
