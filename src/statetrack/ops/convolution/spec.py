"""What `short_convolution` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import Cut, Walk, latest

__all__ = ["SPEC", "Inputs", "in_groups"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.short_convolution`."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    use_silu: bool
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """y [batch, time, channels] and the final states [sequences, past, channels]."""
    x, weight, bias, _, initial_state = inputs
    dtype = compute_dtype(x, weight, bias, initial_state)
    past = (x.shape[0] * in_a_row, weight.shape[-1] - 1, x.shape[2])
    return x.new_empty(x.shape), x.new_empty(past, dtype=dtype)


def in_groups(inputs: Inputs) -> Inputs:
    """With the weights in one group, as registered ops take what a whole batch shares."""
    bias = inputs.bias
    return inputs._replace(weight=inputs.weight[None], bias=None if bias is None else bias[None])


def _maps(inputs: Inputs, walk: Walk) -> tuple[Tensor, Tensor]:
    """Of a segment: its last inputs. There are so many that none of the state before is left."""
    time, past = inputs.x.shape[1], inputs.weight.shape[-1] - 1
    if time < past:
        raise ValueError(
            f"a segment of {time} tokens is too short for a convolution that looks back {past}: "
            "share the sequence among fewer processes"
        )
    dtype = SPEC.empty(inputs)[1].dtype
    last = inputs.x[:, time - past :].to(dtype)
    return last.new_empty(0), last


SPEC = register(
    OpSpec(
        name="short_convolution",
        inputs=Inputs,
        outputs=("y", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        cut=Cut(_maps, latest),
        sequences=("x",),
    )
)
