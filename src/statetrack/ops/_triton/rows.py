"""Where a sequence lies in memory, and bringing it near."""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["fetch", "place"]


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
