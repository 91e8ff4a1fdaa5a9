"""Parts that models are built from: norms, the MLP, dropout, the table of token vectors.

The norms themselves stand in `statetrack.layers.parts`, as layers have them too.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import embedding, gelu, silu

from statetrack._typing import Float, Int
from statetrack.layers.parts import (
    LayerNorm,
    RMSNorm,
    has_hooks,
    in_halves,
    in_kernels,
    linear,
    of_few_rows,
)
from statetrack.models.config import BackboneConfig

__all__ = ["MLP", "Embedding", "dropout", "look_up", "make_norm"]

FEW = 512
"""Vocabularies up to it have a gradient by products on a GPU."""
PARTS = 64
"""Products that share the gradient of a whole batch."""


def make_norm(config: BackboneConfig) -> RMSNorm | LayerNorm:
    if config.norm == "rms":
        return RMSNorm(config.d_model, eps=config.norm_eps)
    return LayerNorm(config.d_model, eps=config.norm_eps, bias=config.norm_bias)


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), with SiLU or GELU."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.activation = silu if config.mlp == "swiglu" else gelu
        self.in_std, self.out_std = config.mlp_in_std, config.mlp_out_std
        self.up_proj = linear(config.d_model, 2 * config.mlp_dim)
        self.down_proj = linear(config.mlp_dim, config.d_model)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.normal_(self.up_proj.weight, std=self.in_std, generator=generator)
        init.normal_(self.down_proj.weight, std=self.out_std, generator=generator)

    def forward(
        self, x: Float[Tensor, "batch time d_model"]
    ) -> Float[Tensor, "batch time d_model"]:
        if self.activation is silu and in_kernels(x):
            from statetrack.ops._triton.few import gated_by_silu

            return self.down_proj(gated_by_silu(self.up_proj(x)))
        gate, up = in_halves(self.up_proj, x)
        return self.down_proj(self.activation(gate) * up)

    def onto(
        self, x: Float[Tensor, "batch time d_model"], norm: nn.Module
    ) -> Float[Tensor, "batch time d_model"] | None:
        """x + self(norm(x)) as two kernels, for a few tokens; None where they cannot do it."""
        if not isinstance(norm, RMSNorm) or norm.groups > 1 or self.activation is not silu:
            return None
        if has_hooks(self) or has_hooks(norm) or not of_few_rows(x, self.up_proj, self.down_proj):
            return None
        from statetrack.ops._triton.few import few_rows

        hidden = few_rows(x, self.up_proj.weight, norm=norm.weight, eps=norm.eps, gated=True)
        return few_rows(hidden, self.down_proj.weight, onto=x)


def dropout(
    x: Float[Tensor, "*shape"], share: float, generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """x with `share` of its numbers set to zero and the others scaled up to make good for it."""
    kept = torch.empty_like(x).bernoulli_(1 - share, generator=generator)
    return x * kept / (1 - share)


class Embedding(nn.Embedding):
    """tokens -> weight[tokens]. Its owner draws the weights.

    A table that other libraries know: they resize it and put adapters on it.
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__(vocab_size, dim, _weight=torch.empty(vocab_size, dim))

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time dim"]:
        if _by_products(self.weight, tokens):
            return look_up(self.weight[None], tokens[None])[0]
        return embedding(tokens, self.weight)


def look_up(
    weight: Float[Tensor, "runs vocab dim"], tokens: Int[Tensor, "runs batch time"]
) -> Float[Tensor, "runs batch time dim"]:
    """weight[run, tokens[run]] of every run.

    With a vocabulary of three, a third of all tokens add to the same row of the gradient, and a GPU
    does such additions one after the other: there it is made by products.
    """
    if _by_products(weight, tokens):
        found: Tensor = LookUp.apply(weight, tokens)
        return found
    return torch.vmap(embedding)(tokens, weight)


def _by_products(weight: Tensor, tokens: Tensor) -> bool:
    return tokens.is_cuda and weight.shape[-2] <= FEW


class LookUp(torch.autograd.Function):
    """`look_up` with the gradient dWᵀ = Σ_t dy_t ⊗ one_hot(token_t), as `PARTS` products.

    One product would leave the sum over all tokens to a few blocks of the GPU.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, tokens: Tensor) -> Tensor:
        runs = torch.arange(len(tokens), device=tokens.device)
        known = torch.where(tokens < 0, weight.shape[1], tokens)  # -1 is no token, nor the last one
        return weight[runs[:, None, None], known]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        weight, tokens = inputs
        ctx.save_for_backward(tokens)
        ctx.vocab_size = weight.shape[1]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        runs, size = len(tokens), tokens[0].numel()
        parts = PARTS if size % PARTS == 0 else 1
        rows = tokens.reshape(runs * parts, 1, -1)
        one_hot = rows == torch.arange(ctx.vocab_size, device=tokens.device)[:, None]
        with torch.autocast(dy.device.type, enabled=False):
            sums = torch.bmm(one_hot.to(dy.dtype), dy.reshape(runs * parts, -1, dy.shape[-1]))
        return sums.unflatten(0, (runs, parts)).sum(1), None
