"""The cross-entropy of a linear head, without all scores in memory.

The scores of `CHUNK` tokens are there at a time. Training asks for the mean of the losses, so the
gradients of a chunk's scores are known as soon as the scores are: the forward pass computes them,
and no score is computed twice.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Float, Int
from statetrack.ops._triton import available

__all__ = ["CHUNK", "linear_cross_entropy"]

CHUNK = 4096
"""Tokens whose scores are in memory at once."""


def linear_cross_entropy(
    x: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, "tokens"],
    *,
    z_loss: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, "tokens"]]:
    """The mean of -log p(target) + z_loss · (log Z)², and -log p(target) of every token.

    Z is the sum of exp(score). The second result has no gradient. Scores are computed in the dtype
    of autocast if it is on, else in that of `x`, and everything behind them in float32.

    >>> x, weight = torch.randn(5, 4), torch.randn(7, 4)
    >>> targets = torch.tensor([0, 1, 2, 3, 6])
    >>> mean, each = linear_cross_entropy(x, weight, targets)
    >>> wanted = torch.nn.functional.cross_entropy(x @ weight.T, targets, reduction="none")
    >>> torch.allclose(each, wanted, atol=1e-5), torch.allclose(mean, wanted.mean(), atol=1e-5)
    (True, True)
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    found: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(x, weight, targets, z_loss, dtype)
    return found


class _Judged(NamedTuple):
    """What some tokens' scores say.

    Attributes:
        losses: -log p(target) in float32.
        log_z: log Z in float32.
        change: the gradient of the scores, in their dtype; it may lie where they were. Anything if
            no gradient was asked for.
    """

    losses: Float[Tensor, "tokens"]
    log_z: Float[Tensor, "tokens"]
    change: Float[Tensor, "tokens vocab"]


def _judged(
    scores: Float[Tensor, "tokens vocab"],
    targets: Int[Tensor, "tokens"],
    share: float,
    z_loss: float,
    *,
    gradient: bool,
) -> _Judged:
    """The losses of some tokens and the gradient of share · Σ (-log p + z_loss · (log Z)²)."""
    narrow = scores.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if scores.is_cuda and narrow and available():
        from statetrack.ops._triton.scores import cross_entropy_in_place

        losses, log_z = cross_entropy_in_place(scores, targets, share, z_loss, gradient=gradient)
        return _Judged(losses, log_z, scores)
    wide, wanted = scores.float(), targets[:, None]
    log_z = wide.logsumexp(1, keepdim=True)
    losses = (log_z - wide.gather(1, wanted)).squeeze(1)
    if gradient:
        wide = wide.sub_(log_z).exp_().mul_(share * (1 + 2 * z_loss * log_z))
        wide.scatter_add_(1, wanted, wide.new_full(wanted.shape, -share))
    return _Judged(losses, log_z.squeeze(1), wide.to(scores.dtype))


_ADDS_WIDE = "dtype_out" in torch.ops.aten.addmm.overloads()  # since PyTorch 2.8


def _add_product(
    total: Float[Tensor, "rows columns"],
    a: Float[Tensor, "rows inner"],
    b: Float[Tensor, "inner columns"],
) -> None:
    """total += a b, without rounding the product to their dtype where a GPU can leave that out."""
    if total.is_cuda and a.dtype in (torch.bfloat16, torch.float16) and _ADDS_WIDE:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


class _LinearCrossEntropy(torch.autograd.Function):
    """Letters: N tokens, s scores, p = softmax(s), t targets.

    d/ds of the mean is (p · (1 + 2 z log Z) - one_hot(t)) / N.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, z_loss: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            narrow_x, narrow_weight = x.to(dtype), weight.to(dtype)
            needs_x, needs_weight = ctx.needs_input_grad[:2]
            dx = torch.empty_like(narrow_x) if needs_x else None
            dweight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
            losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
            total = torch.zeros((), dtype=torch.float32, device=x.device)
            for start in range(0, len(x), CHUNK):
                part = slice(start, start + CHUNK)
                scores = narrow_x[part] @ narrow_weight.T
                found = _judged(
                    scores, targets[part], 1 / len(x), z_loss, gradient=needs_x or needs_weight
                )
                losses[part] = found.losses
                total += found.losses.sum() + z_loss * found.log_z.square().sum()
                if dx is not None:
                    torch.mm(found.change, narrow_weight, out=dx[part])
                if dweight is not None:
                    _add_product(dweight, found.change.T, narrow_x[part])
        ctx.save_for_backward(dx, dweight)
        ctx.dtypes = x.dtype, weight.dtype
        ctx.mark_non_differentiable(losses)
        return total / len(x), losses

    @staticmethod
    def backward(
        ctx: Any, upstream: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        dx, dweight = (
            None if gradient is None else (gradient * upstream).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return dx, dweight, None, None, None
