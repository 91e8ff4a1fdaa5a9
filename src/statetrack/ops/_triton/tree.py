"""A chunk halved again and again: the tree of docs/design/signed_gates.md, for kernels."""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["are_siblings", "is_right", "sibling_total"]


@triton.jit
@no_type_check
def is_right(i, W: tl.constexpr):
    """Whether token i of a chunk lies in the right one of two neighbouring blocks of W tokens."""
    return i % (2 * W) >= W


@triton.jit
@no_type_check
def are_siblings(i, j, W: tl.constexpr):
    """Whether i lies in one block of W tokens and j in the other one of its pair."""
    return (i // (2 * W) == j // (2 * W)) & (is_right(i, W) != is_right(j, W))


@triton.jit
@no_type_check
def sibling_total(prefix, tokens, W: tl.constexpr, C: tl.constexpr, BK: tl.constexpr):
    """For each token the product of all gates of its block's sibling: the prefix at its end."""
    end = tokens // (2 * W) * (2 * W) + tl.where(is_right(tokens, W), W - 1, 2 * W - 1)
    return tl.gather(prefix, tl.broadcast_to(end[:, None], [C, BK]), 0)
