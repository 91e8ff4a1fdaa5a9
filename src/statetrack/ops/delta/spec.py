"""What `delta_product` is to all its backends; `delta_rule` is the same with one micro-step."""

from typing import NamedTuple

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype
from statetrack.ops._spec import OpSpec, register
from statetrack.ops.context import MATRIX

__all__ = ["NORM_FLOOR", "SPEC", "Inputs", "large_state"]

NORM_FLOOR = 1e-12  # a key shorter than this counts as no key at all: no write and no gradient


class Inputs(NamedTuple):
    """What a backend gets; shapes as in `reference.delta_product`."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    decay: Tensor | None
    normalize: bool
    scale: float
    initial_state: Tensor | None


def _empty(inputs: Inputs, in_a_row: int | torch.SymInt = 1) -> tuple[Tensor, ...]:
    """y [batch, time, heads, value] and the final states [sequences, heads, key, value]."""
    q, k, v, beta, decay, _, _, initial_state = inputs
    batch, time, _, heads, key = k.shape
    value = v.shape[-1]
    dtype = compute_dtype(q, k, v, beta, decay, initial_state)
    y = v.new_empty(batch, time, heads, value)
    return y, v.new_empty(batch * in_a_row, heads, key, value, dtype=dtype)


def large_state(k: Tensor, v: Tensor) -> bool:
    """Whether, on a CPU, `delta_product` is the faster in chunks of tensor code than in loops.

    From k [batch, time, micro, heads, key] and v, by what was measured (README.md); loops run

    | gradients | micro-steps of a sequence | key · value     |
    |-----------|---------------------------|-----------------|
    | no        | any number                | up to 128 · 128 |
    | yes       | up to 48                  | up to 32 · 64   |
    | yes       | more                      | up to 64 · 128  |
    """
    if not torch.is_grad_enabled():
        limit = 2**14
    else:
        limit = 2**11 if k.shape[1] * k.shape[2] <= 48 else 2**13
    if k.shape[-1] * v.shape[-1] > limit:  # a branch, so that a compiler of open sizes decides here
        return True
    return False


SPEC = register(
    OpSpec(
        name="delta_product",
        inputs=Inputs,
        outputs=("y", "final_state"),
        empty=_empty,
        backends=("reference", "torch", "numba", "triton"),
        cut=MATRIX,
        sequences=("q", "k", "v", "beta", "decay"),
        other_names=("delta_rule",),
    )
)
