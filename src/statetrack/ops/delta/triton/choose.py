"""`delta_product`: which kernels run it. All of them compute the same function.

| q, k, v       | state   | gate | n       | K         | V         | T, n·T        | kernels      |
|---------------|---------|------|---------|-----------|-----------|---------------|--------------|
| bfloat16      | float32 | any  | up to 4 | 33 to 256 | 33 and up | n·T from 64   | chunked.py   |
| bfloat16      | float32 | no   | 1       | 16, 32    | 16, 32    | T up to 256   | short.py     |
| anything else |         |      |         |           |           |               | recurrent.py |

All take packed sequences; T is then the mean of those in a row for chunked.py, which has a chunk
for each at least, and the longest for short.py. Why, in numbers: ../README.md.
"""

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype, differentiable_op, empty_grads
from statetrack.ops._triton.ahead import compiled_ahead
from statetrack.ops._triton.runtime import by_token, check_version, contiguous, on_device_of
from statetrack.ops.delta.spec import SPEC, Inputs
from statetrack.ops.delta.triton import chunked, recurrent, short
from statetrack.ops.packing import Packing, in_a_row

__all__ = ["delta_product", "runs_in_chunks", "runs_in_short_chunks"]

CHUNKED_FROM = 64  # micro-steps in a sequence, in the mean of those that share a row: one chunk
LONGEST_SHORT = 256
"""Tokens of a sequence: the state is taken back from the last one, in rounded numbers."""


def delta_product(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.delta_product`."""
    check_version()
    save = torch.is_grad_enabled()
    q, k, v, beta, decay, _, _, initial_state = inputs
    dtype = compute_dtype(q, k, v, beta, decay, initial_state)
    offsets = None if packing is None else packing.offsets
    if runs_in_chunks(q, k, v, dtype, in_a_row(offsets)):
        y, state, *_ = _chunked_op(*inputs, save, offsets)
    else:
        longest = q.shape[1] if packing is None else packing.longest
        y, state, *_ = _op(*inputs, save, offsets, longest)
    return y, state


def runs_in_chunks(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time micro heads key"],
    v: Float[Tensor, "batch time micro heads value"],
    state_dtype: torch.dtype,
    sequences: int | torch.SymInt = 1,
) -> bool:
    """Whether it goes in chunks of 64 writes: where they were seen to be right and faster.

    `sequences` is how many share a row.
    """
    time, micro, key, value = k.shape[1], k.shape[2], k.shape[4], v.shape[4]
    whole = bool(time * micro >= CHUNKED_FROM * sequences)  # the mean of them has a chunk
    fits = micro <= 4 and 32 < key <= 256 and value > 32 and whole
    narrow = q.dtype == k.dtype == v.dtype == torch.bfloat16
    return narrow and state_dtype == torch.float32 and fits


def runs_in_short_chunks(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, dtype: torch.dtype, longest: int
) -> bool:
    """Whether it goes in chunks of 16: bfloat16, no gate, one write, small heads, short."""
    narrow = q.dtype == k.dtype == v.dtype == torch.bfloat16 and dtype == torch.float32
    sizes = k.shape[2] == 1 and k.shape[4] in (16, 32) and v.shape[4] in (16, 32)
    return narrow and sizes and decay is None and longest <= LONGEST_SHORT


def _forward(
    inputs: Inputs, save: bool, offsets: Tensor | None, longest: int
) -> tuple[Tensor, ...]:
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    results = recurrent.empty(inputs, save, offsets, longest)
    y, state, e, _, coef = results
    if state.numel() == 0:
        return results
    with on_device_of(q):
        if runs_in_short_chunks(q, k, v, decay, state.dtype, longest):
            short.forward(
                by_token(q), by_token(k), by_token(v), beta.contiguous(), normalize, scale,
                contiguous(initial_state), save, contiguous(offsets), y, state, e, coef,
            )  # fmt: skip
        else:
            recurrent.forward(inputs, results, save, offsets, longest, repair=False)
    return results


def _backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
    e: Tensor,
    kept: Tensor,
    coef: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
) -> tuple[Tensor, ...]:
    q, k, v, _, decay, normalize, scale, initial_state = inputs
    grads = empty_grads(*inputs, offsets)
    if state.numel() == 0:
        return grads
    if not runs_in_short_chunks(q, k, v, decay, state.dtype, longest):
        saved = (state, e, kept, coef)
        recurrent.backward(inputs, offsets, longest, *saved, dy, dstate, grads)
        return grads
    dq, dk, dv, dbeta, _, dstart, _ = grads
    with on_device_of(q):
        short.backward(
            by_token(q), by_token(k), normalize, scale, contiguous(offsets), state, e, coef,
            dy.contiguous(), contiguous(dstate), dq, dk, dv, dbeta,
            None if initial_state is None else dstart,
        )  # fmt: skip
    return grads


def _forward_in_chunks(inputs: Inputs, save: bool, offsets: Tensor | None) -> tuple[Tensor, ...]:
    """In chunks; and then token by token, but only where a NaN or an infinity reached the state.

    Products with the zeros of a triangle would show a NaN to tokens of its chunk that came before.
    """
    results = chunked.forward(inputs, save, offsets)
    y, state, *_ = results
    if state.numel() > 0:
        whole = (False, offsets, inputs.q.shape[1])
        unsaved = recurrent.empty(inputs, *whole)[2:]
        with on_device_of(inputs.q):
            recurrent.forward(inputs, (y, state, *unsaved), *whole, repair=True)
    return results


_op = differentiable_op(
    SPEC,
    "triton",
    forward=compiled_ahead(_forward, _backward, num_outputs=2, used=1),
    backward=_backward,
    empty=recurrent.empty,
    options="bool save, Tensor? offsets, int longest",
    saved=("e", "kept", "coef"),
    optional_grads=("final_state",),
)
_chunked_op = differentiable_op(
    SPEC,
    "triton",
    variant="_chunked",
    forward=compiled_ahead(_forward_in_chunks, chunked.backward, num_outputs=2),
    backward=chunked.backward,
    empty=chunked.empty,
    options="bool save, Tensor? offsets",
    saved=("inverse", "attention", "vectors", "between", "states", "errors"),
)
