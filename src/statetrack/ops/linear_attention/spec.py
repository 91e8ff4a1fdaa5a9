"""What `linear_attention` is to all its backends."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import Cut, Walk, times

__all__ = ["SPEC", "Inputs", "by_head", "initial"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.linear_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    scale: float
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """y [batch, time, heads, value] and the final states [sequences, heads, key, value]."""
    q, k, v, decay, _, initial_state = inputs
    batch, _, heads, value = v.shape
    dtype = compute_dtype(q, k, v, decay, initial_state)
    final = (batch * in_a_row, heads, k.shape[-1], value)
    return v.new_empty(v.shape), v.new_empty(final, dtype=dtype)


def by_head(inputs: Inputs) -> Inputs:
    """The same with q and k of every group written out for each of its heads."""
    groups, heads = inputs.q.shape[2], inputs.v.shape[2]
    if groups == heads:
        return inputs
    q, k = (x.repeat_interleave(heads // groups, dim=2) for x in (inputs.q, inputs.k))
    return inputs._replace(q=q, k=k)


def initial(inputs: Inputs) -> Tensor:
    """A state of our own to start from, [batch, heads, key, value]."""
    state = SPEC.empty(inputs)[1]
    return state.zero_() if inputs.initial_state is None else state.copy_(inputs.initial_state)


def _maps(inputs: Inputs, walk: Walk) -> tuple[Tensor, Tensor]:
    """Of a segment: the product of its gates [batch, heads, gate, 1], and its last state."""
    state = walk(inputs._replace(initial_state=None))[1]
    return inputs.decay.to(state.dtype).prod(dim=1)[..., None], state


SPEC = register(
    OpSpec(
        name="linear_attention",
        inputs=Inputs,
        outputs=("y", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        cut=Cut(_maps, times),
        sequences=("q", "k", "v", "decay"),
    )
)
