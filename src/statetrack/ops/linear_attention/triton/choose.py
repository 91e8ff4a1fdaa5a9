"""`linear_attention`: which kernels run it. All compute the same function.

| gate per | state   | K·V       | longest    | q, k, v                          | kernels      |
|----------|---------|-----------|------------|----------------------------------|--------------|
| head     | float32 | from 4096 | up to 64   | any; no initial state            | short.py     |
| head     | float32 | from 1024 | above 256  | any                              | scalar.py    |
| head     | float32 | from 4096 | from 32    | any                              | scalar.py    |
| key      | float32 | from 1024 | above 256  | any                              | chunked.py   |
| key      | float32 | from 1024 | from 32    | half precision, T·K·V from 2^19  | chunked.py   |
| anything else | |            |            |                                  | recurrent.py |

`longest` is the number of tokens T of the longest sequence. All take packed sequences. Where heads
share q and k, scalar.py reads what a group has, and its backward is that of shared.py; for the
others q and k are written out for every head.
Why, in numbers: ../README.md.
"""

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype, differentiable_op, empty_grads
from statetrack.ops._triton.ahead import compiled_ahead
from statetrack.ops._triton.runtime import check_version, contiguous
from statetrack.ops.linear_attention.spec import SPEC, Inputs, by_head
from statetrack.ops.linear_attention.triton import chunked, recurrent, scalar, shared, short
from statetrack.ops.packing import Packing, in_a_row

__all__ = ["linear_attention", "reads_groups", "runs_in_chunks", "runs_whole"]

LONGEST_RECURRENCE, SHORTEST_CHUNKS = 256, 32  # tokens


def linear_attention(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.linear_attention`."""
    check_version()
    offsets, longest = (None, inputs.q.shape[1]) if packing is None else packing
    if inputs.q.shape[2] < inputs.v.shape[2] and not reads_groups(inputs, longest):
        inputs = by_head(inputs)
    y, state, *_ = _op(*inputs, torch.is_grad_enabled(), offsets, longest)
    return y, state


def runs_in_chunks(k: Tensor, v: Tensor, decay: Tensor, dtype: torch.dtype, longest: int) -> bool:
    """Whether a form in chunks is taken.

    The recurrence costs K·V a token, on the ordinary units; the chunks about K + V and the products
    with a state, on the matrix units, where half precision inputs need a third of the products.
    With a gate per key there is a tree of gates as well.
    """
    size = k.shape[3] * v.shape[3]
    if per_head(decay):
        large = size >= 4096
    else:
        half = all(x.dtype in (torch.bfloat16, torch.float16) for x in (k, v))
        large = half and longest * size >= 2**19
    short = longest < SHORTEST_CHUNKS or (longest <= LONGEST_RECURRENCE and not large)
    return bool(dtype == torch.float32 and size >= 1024 and not short)


def runs_whole(inputs: Inputs, dtype: torch.dtype, longest: int) -> bool:
    """Whether a program takes all tokens of a head, which have to fit."""
    size = inputs.k.shape[3] * inputs.v.shape[3]
    whole = longest <= short.LONGEST and inputs.initial_state is None
    return bool(dtype == torch.float32 and per_head(inputs.decay) and whole and size >= 4096)


def reads_groups(inputs: Inputs, longest: int) -> bool:
    """Whether the kernels chosen for these take q and k as groups of heads have them."""
    q, k, v, decay, _, initial_state = inputs
    dtype = compute_dtype(q, k, v, decay, initial_state)
    chunks = runs_in_chunks(k, v, decay, dtype, longest)
    return per_head(decay) and chunks and not runs_whole(inputs, dtype, longest)


def per_head(decay: Tensor) -> bool:
    """Whether all keys of a head share a gate."""
    return bool(decay.shape[-1] == 1)


def _forward(
    inputs: Inputs, save: bool, offsets: Tensor | None, longest: int
) -> tuple[Tensor, ...]:
    results = _empty(inputs, save, offsets, longest)
    y, state, kept = results[:3]
    if state.numel() == 0:
        return results
    inputs, offsets = _contiguous(inputs), contiguous(offsets)
    q, k, v, decay, scale, initial_state = inputs
    given = (q, k, v, decay, scale, initial_state, offsets, longest)
    if runs_whole(inputs, state.dtype, longest):
        short.forward(q, k, v, decay, scale, offsets, longest, y, state)
    elif not runs_in_chunks(k, v, decay, state.dtype, longest):
        recurrent.forward(inputs, offsets, y, state, kept, save)
    elif per_head(decay):
        states = kept if save else scalar.saved(q, k, v, offsets)
        scalar.forward(*given, y, state, states)
    else:
        saved = chunked.Saved(*results[2:]) if save else chunked.saved(q, k, v, offsets)
        chunked.forward(*given, y, state, saved)
    return results


def _empty(inputs: Inputs, save: bool, offsets: Tensor | None, longest: int) -> tuple[Tensor, ...]:
    """The results and what is saved: states alone, or `chunked.Saved`."""
    y, state = SPEC.empty(inputs, in_a_row(offsets))
    nothing = [state.new_empty(0) for _ in chunked.Saved._fields]
    if not save or runs_whole(inputs, state.dtype, longest):
        return y, state, *nothing
    q, k, v, decay = inputs[:4]
    if not runs_in_chunks(k, v, decay, state.dtype, longest):
        return y, state, recurrent.empty_kept(inputs, state), *nothing[1:]
    if per_head(decay):
        return y, state, scalar.saved(q, k, v, offsets), *nothing[1:]
    return y, state, *chunked.saved(q, k, v, offsets)


def _backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
    kept: Tensor,
    scores: Tensor,
    query: Tensor,
    key_after: Tensor,
    total: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
) -> tuple[Tensor, ...]:
    grads = empty_grads(*inputs, offsets)
    if state.numel() == 0:
        return grads
    inputs, offsets = _contiguous(inputs), contiguous(offsets)
    dy, dstate = dy.contiguous(), contiguous(dstate)
    q, k, v, decay, scale, initial_state = inputs
    dq, dk, dv, ddecay, dstart, _ = grads
    if runs_whole(inputs, state.dtype, longest):
        found = (dy, dstate, dq, dk, dv, ddecay)
        short.backward(q, k, v, decay, scale, offsets, longest, state, *found)
        return grads
    if not runs_in_chunks(k, v, decay, state.dtype, longest):
        recurrent.backward(inputs, offsets, state, kept, dy, dstate, grads)
        return grads
    given = (q, k, v, decay, scale, initial_state, offsets, longest)
    results = (dy, dstate, dq, dk, dv, ddecay, dstart)
    if per_head(decay):
        family = scalar if q.shape[2] == v.shape[2] else shared
        family.backward(*given, kept, *results)
    else:
        chunked.backward(*given, chunked.Saved(kept, scores, query, key_after, total), *results)
    return grads


def _contiguous(inputs: Inputs) -> Inputs:
    """All tensors in one piece of memory each."""
    q, k, v, decay = (x.contiguous() for x in inputs[:4])
    return Inputs(q, k, v, decay, inputs.scale, contiguous(inputs.initial_state))


_op = differentiable_op(
    SPEC,
    "triton",
    forward=compiled_ahead(_forward, _backward, num_outputs=2, used=1),
    backward=_backward,
    empty=_empty,
    options="bool save, Tensor? offsets, int longest",
    saved=("kept", "scores", "query", "key_after", "total"),
    optional_grads=("final_state",),
)
