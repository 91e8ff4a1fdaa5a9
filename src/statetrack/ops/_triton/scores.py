"""Cross-entropy of rows of scores, and its gradient in their place: two readings and one writing.

A program has one row, which it reads twice: for log Z, and to write the gradient. The second
reading finds the row in the cache.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack._typing import Float, Int
from statetrack.ops._triton.runtime import on_device_of, power_of_two

__all__ = ["cross_entropy_in_place"]

BLOCK = 4096


@triton.jit
@no_type_check
def _cross_entropy_kernel(
    scores_ptr, targets_ptr, losses_ptr, log_z_ptr, V, share, z_loss,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scores_ptr += row * V
    target = tl.load(targets_ptr + row)
    lane = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, V, BLOCK):
        at = begin + lane
        s = tl.load(scores_ptr + at, mask=at < V, other=float("-inf")).to(tl.float32)
        more = tl.maximum(most, s)
        # a lane that has seen nothing but -inf adds nothing
        known = tl.where(more == float("-inf"), 0.0, more)
        total = total * tl.exp(most - known) + tl.exp(s - known)
        most = more
    top = tl.max(most, 0)
    log_z = top + tl.log(tl.sum(total * tl.exp(most - top), 0))
    inside = (target >= 0) & (target < V)
    wanted = tl.load(scores_ptr + target, mask=inside, other=float("nan")).to(tl.float32)
    tl.store(losses_ptr + row, log_z - wanted)
    tl.store(log_z_ptr + row, log_z)
    if GRADIENT:
        scale = share * (1.0 + 2.0 * z_loss * log_z)
        tl.debug_barrier()  # every thread has read the score of the target
        for begin in range(0, V, BLOCK):
            at = begin + lane
            s = tl.load(scores_ptr + at, mask=at < V, other=float("-inf")).to(tl.float32)
            change = tl.exp(s - log_z) * scale - tl.where(at == target, share, 0.0)
            tl.store(scores_ptr + at, change.to(scores_ptr.dtype.element_ty), mask=at < V)


def cross_entropy_in_place(
    scores: Float[Tensor, "tokens vocab"],
    targets: Int[Tensor, "tokens"],
    share: float,
    z_loss: float,
    *,
    gradient: bool,
) -> tuple[Float[Tensor, "tokens"], Float[Tensor, "tokens"]]:
    """-log p(target) and log Z of every row in float32; the gradient goes where the scores were.

    It is that of share · Σ (-log p(target) + z_loss · (log Z)²). A target that is no class has the
    loss NaN.
    """
    assert scores.is_contiguous()
    losses = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    log_z = torch.empty_like(losses)
    if not len(scores):
        return losses, log_z
    vocab = scores.shape[1]
    with on_device_of(scores):
        _cross_entropy_kernel[(len(scores),)](
            scores, targets.contiguous(), losses, log_z, vocab, share, z_loss,
            GRADIENT=gradient, BLOCK=min(BLOCK, power_of_two(vocab)), num_warps=8,
        )  # fmt: skip
    return losses, log_z
