"""A table of vectors that a GPU can learn quickly even when there are few of them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from statetrack._typing import Float, Int

__all__ = ["Embedding", "by_product"]

FEW = 512
"""Vocabularies up to it are looked up by a product on a GPU."""
PARTS = 64
"""Products that share the look-up, and so the gradient, of a whole batch."""


class Embedding(nn.Module):
    """tokens -> weight[tokens].

    With a vocabulary of three, a third of all tokens add to the same row of the gradient, and a GPU
    does such additions one after the other. There the look-up is a product with one-hot tokens, the
    same numbers, whose gradient is a product too.
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time dim"]:
        if tokens.is_cuda and len(self.weight) <= FEW:
            return by_product(self.weight, tokens)
        return embedding(tokens, self.weight)


def by_product(
    weight: Float[Tensor, "vocab dim"], tokens: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time dim"]:
    """weight[tokens], in the precision of the weights even under autocast.

    As `PARTS` products where there are enough tokens: the gradient of the weights is a sum over all
    tokens, which one product would leave to a few blocks of the GPU.
    """
    parts = PARTS if tokens.numel() % PARTS == 0 else 1
    one_hot = tokens.reshape(parts, -1, 1) == torch.arange(len(weight), device=tokens.device)
    with torch.autocast(tokens.device.type, enabled=False):
        rows = torch.bmm(one_hot.to(weight.dtype), weight.expand(parts, *weight.shape))
    return rows.view(*tokens.shape, -1)
