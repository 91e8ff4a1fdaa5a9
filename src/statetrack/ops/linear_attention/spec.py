"""What `linear_attention` is to all its backends."""

from typing import NamedTuple

from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register

__all__ = ["SPEC", "Inputs", "initial"]


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.linear_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    scale: float
    initial_state: Tensor | None


def _empty(inputs: Inputs) -> tuple[Tensor, ...]:
    """y [batch, time, heads, value] and the final state [batch, heads, key, value]."""
    q, k, v, decay, _, initial_state = inputs
    batch, _, heads, key = k.shape
    dtype = compute_dtype(q, k, v, decay, initial_state)
    return v.new_empty(v.shape), v.new_empty(batch, heads, key, v.shape[-1], dtype=dtype)


def initial(inputs: Inputs) -> Tensor:
    """A state of our own to start from, [batch, heads, key, value]."""
    state = SPEC.empty(inputs)[1]
    return state.zero_() if inputs.initial_state is None else state.copy_(inputs.initial_state)


SPEC = register(
    OpSpec(
        name="linear_attention",
        inputs=Inputs,
        outputs=("y", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
    )
)
