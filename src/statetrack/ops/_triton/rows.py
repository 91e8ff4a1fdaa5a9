"""Where a sequence lies in memory, and bringing it near."""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["chunk_at", "fetch", "first_chunk", "piece_at", "place"]


@triton.jit
@no_type_check
def place(offsets_ptr, sequence, T, P):
    """(row of the batch, first token in it, length) of a sequence: a row, or one of P in it.

    `offsets_ptr` [B, P + 1] is None where every row of T tokens is one sequence.
    """
    row = sequence
    first = sequence * 0
    length = T
    if offsets_ptr is not None:
        row = sequence // P
        at = offsets_ptr + sequence + row  # a row has one offset more than sequences
        first = tl.load(at).to(tl.int64)
        length = (tl.load(at + 1) - first).to(tl.int32)
    return row, first, length


@triton.jit
@no_type_check
def first_chunk(first, in_row, C):
    """Where the chunks of C tokens of a sequence begin among those of its row.

    It is the row's sequence number `in_row`, from token `first` on. A row of T tokens in P
    sequences has ⌈T/C⌉ + P - 1 places for chunks, of which some stay empty.
    """
    return first // C + in_row


@triton.jit
@no_type_check
def chunk_at(offsets_ptr, row, chunk, T, P, C: tl.constexpr):
    """(first token, end of its sequence) of place `chunk` for chunks of a row, counted in the row.

    An empty place begins at its end. `offsets_ptr` is None where every row is one sequence.
    """
    _, _, begin, end = piece_at(offsets_ptr, row, chunk, T, P, C)
    return begin, end


@triton.jit
@no_type_check
def piece_at(offsets_ptr, row, chunk, T, P, C):
    """(number of its sequence in the row, of the chunk in the sequence, and as `chunk_at`)."""
    s = 0
    index = chunk
    begin = chunk * C
    end = T
    if offsets_ptr is not None:
        offsets_ptr += row * (P + 1)
        lane = tl.arange(0, 128)
        s = 0  # the last sequence whose chunks begin at or before the place
        count = P  # of sequences left to search
        while count > 1:
            step = tl.cdiv(count, 128)
            inside = lane * step < count
            first = tl.load(offsets_ptr + s + lane * step, mask=inside, other=0).to(tl.int32)
            before = inside & (first_chunk(first, s + lane * step, C) <= chunk)
            ahead = tl.maximum(tl.sum(before.to(tl.int32)) - 1, 0) * step
            s += ahead
            count = tl.minimum(step, count - ahead)
        first = tl.load(offsets_ptr + s).to(tl.int32)
        end = tl.load(offsets_ptr + s + 1).to(tl.int32)
        index = chunk - first_chunk(first, s, C)
        begin = tl.minimum(first + index * C, end)
    return s, index, begin, end


@triton.jit
@no_type_check
def fetch(at):
    """Has the line of memory at every address brought near."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [at.to(tl.int64)],
        tl.int32,
        is_pure=False,
        pack=1,
    )
