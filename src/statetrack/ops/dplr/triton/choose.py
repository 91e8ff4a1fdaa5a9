"""`dplr`: which kernels run it. Both compute the same function, and take packed sequences.

| state         | v        | K         | V        | longest   | kernels      |
|---------------|----------|-----------|----------|-----------|--------------|
| float32       | bfloat16 | 33 to 128 | above 32 | from 32   | chunked.py   |
| anything else |          |           |          |           | recurrent.py |

`longest` is the number of tokens of the longest sequence. Why, in numbers: ../README.md.
"""

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops._triton.ahead import compiled_ahead
from statetrack.ops._triton.runtime import check_version, contiguous
from statetrack.ops.dplr.spec import SPEC, Inputs
from statetrack.ops.dplr.triton import chunked, recurrent
from statetrack.ops.packing import Packing, in_a_row

__all__ = ["dplr", "runs_in_chunks"]

SHORTEST = 32  # tokens of the longest sequence that goes in chunks


def dplr(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.dplr`."""
    check_version()
    offsets = None if packing is None else packing.offsets
    longest = inputs.q.shape[1] if packing is None else packing.longest
    y, state, *_ = _op(*inputs, torch.is_grad_enabled(), offsets, longest)
    return y, state


def runs_in_chunks(k: Tensor, v: Tensor, dtype: torch.dtype, longest: int) -> bool:
    """Whether the form in chunks is taken, for a state of this dtype."""
    if longest < SHORTEST:
        return False
    fits = 32 < k.shape[3] <= 128 and v.shape[3] > 32
    return bool(fits and v.dtype == torch.bfloat16 and dtype == torch.float32)


def _forward(
    inputs: Inputs, save: bool, offsets: Tensor | None, longest: int
) -> tuple[Tensor, ...]:
    """In chunks; and then token by token, but only where a NaN or an infinity reached the state.

    Products with the zeros of a triangle would show a NaN to tokens of its chunk that came before.
    """
    results = _empty(inputs, save, offsets, longest)
    y, state = results[:2]
    if state.numel() == 0:
        return results
    if not runs_in_chunks(inputs.k, inputs.v, state.dtype, longest):
        recurrent.forward(inputs, _of_tokens(results), save, offsets, longest, repair=False)
        return results
    inputs, offsets = _contiguous(inputs), contiguous(offsets)
    kept = chunked.Saved(*results[2:]) if save else chunked.saved(inputs, offsets)
    chunked.forward(inputs, offsets, y, state, kept)
    unsaved = recurrent.empty(inputs, False, offsets, longest)[2:]
    recurrent.forward(inputs, (y, state, *unsaved), False, offsets, longest, repair=True)
    return results


def _backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
    states: Tensor,
    seen: Tensor,
    *rest: Tensor,
) -> tuple[Tensor, ...]:
    *kept, dy, dstate = rest
    grads = empty_grads(*inputs, offsets)
    if state.numel() == 0:
        return grads
    if not runs_in_chunks(inputs.k, inputs.v, state.dtype, longest):
        recurrent.backward(inputs, offsets, longest, seen, states, dy, dstate, grads)
        return grads
    inputs, offsets = _contiguous(inputs), contiguous(offsets)
    found = chunked.Saved(states, seen, *kept)
    chunked.backward(inputs, offsets, found, dy.contiguous(), dstate.contiguous(), grads)
    return grads


def _empty(inputs: Inputs, save: bool, offsets: Tensor | None, longest: int) -> tuple[Tensor, ...]:
    """The results and what is saved: `chunked.Saved`, or its first two token by token."""
    y, state = SPEC.empty(inputs, in_a_row(offsets))
    if save and runs_in_chunks(inputs.k, inputs.v, state.dtype, longest):
        return y, state, *chunked.saved(inputs, offsets)
    y, state, seen, states = recurrent.empty(inputs, save, offsets, longest)
    nothing = [state.new_empty(0) for _ in chunked.Saved._fields[2:]]
    return y, state, states, seen, *nothing


def _of_tokens(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """As `recurrent.empty` orders them."""
    y, state, states, seen, *_ = results
    return y, state, seen, states


def _contiguous(inputs: Inputs) -> Inputs:
    """All tensors in one piece of memory each."""
    q, k, v, decay, left, right = (x.contiguous() for x in inputs[:6])
    start = contiguous(inputs.initial_state)
    return Inputs(q, k, v, decay, left, right, inputs.scale, start)


_op = differentiable_op(
    SPEC,
    "triton",
    forward=compiled_ahead(_forward, _backward, num_outputs=2),
    backward=_backward,
    empty=_empty,
    options="bool save, Tensor? offsets, int longest",
    saved=chunked.Saved._fields,
)
