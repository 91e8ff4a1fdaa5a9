"""What `dplr` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import MATRIX

__all__ = ["SPEC", "Inputs", "initial"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.dplr`."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    left: Tensor
    right: Tensor
    scale: float
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """y [batch, time, heads, value] and the final states [sequences, heads, key, value]."""
    k, v = inputs.k, inputs.v
    batch, _, heads, key = k.shape
    dtype = compute_dtype(*inputs[:6], inputs.initial_state)
    state = v.new_empty(batch * in_a_row, heads, key, v.shape[-1], dtype=dtype)
    return v.new_empty(v.shape), state


def initial(inputs: Inputs) -> Tensor:
    """A state of our own to start from, [batch, heads, key, value]."""
    state = SPEC.empty(inputs)[1]
    return state.zero_() if inputs.initial_state is None else state.copy_(inputs.initial_state)


SPEC = register(
    OpSpec(
        name="dplr",
        inputs=Inputs,
        outputs=("y", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        cut=MATRIX,
        sequences=("q", "k", "v", "decay", "left", "right"),
    )
)
