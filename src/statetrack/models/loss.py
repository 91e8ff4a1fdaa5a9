"""The cross-entropy of a linear head, without all scores in memory.

The scores of `CHUNK` tokens are there at a time. Training asks for the mean of the losses, so the
gradients of a chunk's scores are known as soon as the scores are: the forward pass computes them,
and no score is computed twice.
"""

from typing import Any

import torch
from torch import Tensor

from statetrack._typing import Float, Int

__all__ = ["CHUNK", "linear_cross_entropy"]

CHUNK = 2048
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
                wanted = targets[part, None]
                scores = (narrow_x[part] @ narrow_weight.T).float()
                log_z = scores.logsumexp(1, keepdim=True)
                losses[part] = (log_z - scores.gather(1, wanted)).squeeze(1)
                total += losses[part].sum() + z_loss * log_z.square().sum()
                if dx is None and dweight is None:
                    continue
                change = scores.sub_(log_z).exp_()
                change.mul_((1 + 2 * z_loss * log_z) / len(x))
                change.scatter_add_(1, wanted, change.new_full(wanted.shape, -1 / len(x)))
                narrow = change.to(dtype)
                if dx is not None:
                    torch.mm(narrow, narrow_weight, out=dx[part])
                if dweight is not None:
                    dweight += narrow.T @ narrow_x[part]
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
