"""A linear recurrence h_t = a_t · h_{t-1} + x_t in about 4√T tensor operations and no logarithms.

T tokens are cut into about √T chunks of about √T tokens. Position by position, for all chunks at
once, one pass finds what each chunk does to a state (its product of a's, and where it takes an
empty state); a short loop over the chunks then gives the state in which each of them starts; a
second pass over the positions writes every h_t from there. The second pass is the recurrence as
defined, so zeros, signs and rotations stay exact, a token never reaches an earlier one, and the
only extra memory is one state and one product per chunk.
"""

from collections.abc import Callable
from math import isqrt

from torch import Tensor

__all__ = ["two_level_scan"]


def two_level_scan(
    a: Tensor,
    x: Tensor | None,
    start: Tensor,
    out: Tensor,
    *,
    multiply: Callable[[Tensor, Tensor], Tensor],
    multiply_add: Callable[[Tensor, Tensor, Tensor], Tensor],
    reverse: bool = False,
    chunked: bool = True,
) -> None:
    """Writes h_t = a_t · h_{t-1} + x_t into `out`; with `reverse`, h_t = a_t · h_{t+1} + x_t.

    `a`, `x` and `out` have axes [batch, time, ...], `start` [batch, ...] is the state before the
    first token read. `multiply(a, h)` is a·h and `multiply_add(x, a, h)` is x + a·h, both on
    tensors [batch, chunks, ...]. `x` is None where nothing is added. Not `chunked`, the scan is a
    loop over the tokens, which is the better where a product of a's costs far more than a·h.
    """

    def advance(x_s: Tensor | None, a_s: Tensor, h: Tensor) -> Tensor:
        return multiply(a_s, h) if x_s is None else multiply_add(x_s, a_s, h)

    time = out.shape[1]
    size = max(isqrt(time), 1)
    count = time // size if chunked else 0
    in_chunks = count * size
    # the tokens left over are read last, whichever way the scan runs
    whole, rest = (
        (slice(time - in_chunks, time), range(time - in_chunks - 1, -1, -1))
        if reverse
        else (slice(0, in_chunks), range(in_chunks, time))
    )
    positions = range(size - 1, -1, -1) if reverse else range(size)
    chunks = range(count - 1, -1, -1) if reverse else range(count)
    state = start
    if count:
        a_k = a[:, whole].unflatten(1, (count, size))
        x_k = None if x is None else x[:, whole].unflatten(1, (count, size))
        out_k = out[:, whole].unflatten(1, (count, size))

        first, *others = positions
        product = a_k[:, :, first]
        end = None if x_k is None else x_k[:, :, first]
        for s in others:
            end = None if x_k is None or end is None else advance(x_k[:, :, s], a_k[:, :, s], end)
            product = multiply(a_k[:, :, s], product)

        last = positions[-1]
        before = out_k[:, :, last]  # a place to put the states in which the chunks start
        for k in chunks:
            before[:, k] = state
            end_k = None if end is None else end[:, k : k + 1]
            state = advance(end_k, product[:, k : k + 1], state[:, None])[:, 0]

        h = before.clone()
        for s in positions:
            h = advance(None if x_k is None else x_k[:, :, s], a_k[:, :, s], h)
            out_k[:, :, s] = h
        state = h[:, chunks[-1]]
    for t in rest:
        x_t = None if x is None else x[:, t : t + 1]
        state = advance(x_t, a[:, t : t + 1], state[:, None])[:, 0]
        out[:, t] = state
