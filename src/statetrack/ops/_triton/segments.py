"""Few long sequences fill a GPU when they are cut in time: segments that all run at once.

Where one token takes a state h to a ∘ h + b, a segment of many takes it to p ∘ h + c. So

    maps   p, the product of the a, and c, the end of a walk from a state of zero, of every segment
    join   the state each segment begins with: one product and one sum a segment
    walk   all segments from their true states

of which an op makes the first and the last. Gradients go through the same maps from the other end,
with G the gradient of the state after a segment in the place of h. The segment that comes last in
its direction needs no map. There are only products, so a = -1, 0 and 1 stay exact.

Segments of L tokens lie in a row like chunks (rows.py): with P sequences in it, it has
⌈T/L⌉ + P - 1 places for them.
"""

import math
from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import first_chunk, piece_at, place
from statetrack.ops._triton.runtime import triton_dtype
from statetrack.ops.packing import in_a_row

__all__ = ["join", "places", "segment_at", "segment_length"]


def segment_length(
    tokens: int,
    longest: int,
    programs: int,
    *,
    enough: int,
    wanted: int,
    multiple: int,
    least: int,
) -> int | None:
    """Tokens of a segment; None where sequences are walked from end to end.

    `programs` walk each sequence side by side. As many as `enough` in all, counted as if every
    sequence were as long as the longest, are not worth cutting: the maps are a walk of their own.
    Fewer are cut so that about `wanted` and no more can run, each at least `least` tokens and, but
    for the last one of a sequence, a whole `multiple`.
    """
    work = tokens * programs
    if work == 0 or work >= enough * longest:
        return None
    count = min(wanted * longest // work, longest // least)
    length = -(-longest // max(count, 1) // multiple) * multiple
    return length if length < longest else None


def places(time: int, offsets: Tensor | None, length: int) -> int:
    """How many segments of `length` tokens there is room for in a row."""
    return int(-(-time // length) + in_a_row(offsets) - 1)


@triton.jit
@no_type_check
def segment_at(offsets_ptr, at, T, P, places, L):
    """What lies at a place for a segment, counted over all rows.

    (row, sequence, number of the segment in it, first token in the row, how many tokens, whether it
    is the last one of its sequence). An empty sequence is one segment without tokens; a place for
    none has a number above 0, no tokens and is no last one.
    """
    row = at // places
    s, index, begin, end = piece_at(offsets_ptr, row, at % places, T, P, L)
    tokens = tl.minimum(end - begin, L).to(tl.int32)
    last = (begin + L >= end) & ((tokens > 0) | (index == 0))
    return row, row * P + s, index, begin, tokens, last


@triton.jit(do_not_specialize=["places", "L"])
@no_type_check
def _join_kernel(
    product_ptr,
    state_ptr,
    start_ptr,
    offsets_ptr,
    T,
    P,
    H,
    places,
    L,
    size,
    VALUES: tl.constexpr,
    BLOCK: tl.constexpr,
    REVERSE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`state` holds each segment's c and then what it begins with, here of one head's sequence."""
    unit = tl.program_id(0).to(tl.int64)
    row, first, length = place(offsets_ptr, unit // H, T, P)
    count = tl.maximum(tl.cdiv(length, L), 1)
    lowest = (row * H + unit % H) * places + first_chunk(first, unit // H - row * P, L)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    h = tl.zeros([BLOCK], COMPUTE)
    if start_ptr is not None:
        h += tl.load(start_ptr + unit * size + i, mask=inside, other=0.0).to(COMPUTE)
    for step in range(count - 1):
        at = lowest + (count - 1 - step if REVERSE else step)
        product = tl.load(product_ptr + (at * size + i) // VALUES, mask=inside, other=0.0)
        added = tl.load(state_ptr + at * size + i, mask=inside, other=0.0)
        tl.store(state_ptr + at * size + i, h, mask=inside)
        h = product * h + added
    at = lowest + (0 if REVERSE else count - 1)
    tl.store(state_ptr + at * size + i, h, mask=inside)


def join(
    product: Tensor,
    state: Tensor,
    start: Tensor | None,
    offsets: Tensor | None,
    time: int,
    length: int,
    *,
    reverse: bool,
) -> None:
    """Puts in `state`, which holds the c of every segment, what each one begins with.

    Args:
        product: the p, [batch, heads, places, ...]; `state` may have one axis more.
        start: what the first one of each sequence begins with, in reverse the last one.
    """
    batch, heads, count = state.shape[:3]
    size = math.prod(state.shape[3:])
    block = 256
    launch(
        _join_kernel,
        (batch * in_a_row(offsets) * heads, triton.cdiv(size, block)),
        product,
        state,
        start,
        offsets,
        time,
        in_a_row(offsets),
        heads,
        count,
        length,
        size,
        VALUES=size // math.prod(product.shape[3:]),
        BLOCK=block,
        REVERSE=reverse,
        COMPUTE=triton_dtype(state.dtype),
        num_warps=2,
    )
