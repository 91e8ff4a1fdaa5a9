"""Where a sequence lies, and rows of a [T, size] array, four tokens at a time."""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["fetch", "load_four", "load_row", "place", "store_four", "store_row"]


@triton.jit
@no_type_check
def place(offsets_ptr, sequence, T, P):
    """(row of the batch, first token within it, length) of a sequence: a row, or one of P pieces.

    `offsets_ptr` [B, P + 1] is None where every row of T tokens is one sequence.
    """
    row = sequence
    first = sequence * 0
    length = T
    if offsets_ptr is not None:
        row = sequence // P
        at = offsets_ptr + sequence + row  # a row has one offset more than pieces
        first = tl.load(at).to(tl.int64)
        length = (tl.load(at + 1) - first).to(tl.int32)
    return row, first, length


@triton.jit
@no_type_check
def load_row(ptr, t, T, step, size, index, COMPUTE: tl.constexpr):
    """Row t of a [T, size] array at `index`, each row `step` numbers on; zeros from T on."""
    limit = tl.where(t < T, size, 0)
    return tl.load(ptr + t * step + index, mask=index < limit, other=0.0).to(COMPUTE)


@triton.jit
@no_type_check
def load_four(ptr, t, T, step, size, index, COMPUTE: tl.constexpr):
    """Rows t to t+3."""
    x0 = load_row(ptr, t, T, step, size, index, COMPUTE)
    x1 = load_row(ptr, t + 1, T, step, size, index, COMPUTE)
    x2 = load_row(ptr, t + 2, T, step, size, index, COMPUTE)
    x3 = load_row(ptr, t + 3, T, step, size, index, COMPUTE)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def store_row(ptr, t, T, size, index, x):
    limit = tl.where(t < T, size, 0)
    tl.store(ptr + t * size + index, x, mask=index < limit)


@triton.jit
@no_type_check
def store_four(ptr, t, T, size, index, x):
    """Rows t to t+3 at once: a store of its own for each would wait for the one before."""
    rows = tl.join(tl.join(x[0], x[2]), tl.join(x[1], x[3]))
    at = t + 2 * tl.arange(0, 2)[None, :, None] + tl.arange(0, 2)[None, None, :]
    inside = (index < size)[:, None, None] & (at < T)
    tl.store(ptr + at * size + index[:, None, None], rows, mask=inside)


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
