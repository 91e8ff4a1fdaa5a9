"""`dplr`: which kernels run it.

| what     | kernels      |
|----------|--------------|
| anything | recurrent.py |

Why, in numbers: ../README.md.
"""

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops._triton.ahead import compiled_ahead
from statetrack.ops._triton.runtime import check_version
from statetrack.ops.dplr.spec import SPEC, Inputs
from statetrack.ops.dplr.triton import recurrent
from statetrack.ops.packing import Packing

__all__ = ["dplr"]


def dplr(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.dplr`."""
    check_version()
    offsets = None if packing is None else packing.offsets
    longest = inputs.q.shape[1] if packing is None else packing.longest
    y, state, *_ = _op(*inputs, torch.is_grad_enabled(), offsets, longest)
    return y, state


def _forward(
    inputs: Inputs, save: bool, offsets: Tensor | None, longest: int
) -> tuple[Tensor, ...]:
    results = recurrent.empty(inputs, save, offsets, longest)
    if results[1].numel() > 0:
        recurrent.forward(inputs, results, save, offsets, longest)
    return results


def _backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
    seen: Tensor,
    kept: Tensor,
    dy: Tensor,
    dstate: Tensor,
) -> tuple[Tensor, ...]:
    grads = empty_grads(*inputs, offsets)
    if state.numel() > 0:
        recurrent.backward(inputs, offsets, longest, seen, kept, dy, dstate, grads)
    return grads


_op = differentiable_op(
    SPEC,
    "triton",
    forward=compiled_ahead(_forward, _backward, num_outputs=2),
    backward=_backward,
    empty=recurrent.empty,
    options="bool save, Tensor? offsets, int longest",
    saved=("seen", "kept"),
)
