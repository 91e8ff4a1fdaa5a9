"""Causal softmax attention, with rotary positions or none: the baseline without a state."""

import math

import torch
from torch import Tensor
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import (
    heads_dividing,
    linear,
    merge_heads,
    refuse_eigen_range,
    split_heads,
)
from statetrack.layers.transitions import Transitions, not_linear

__all__ = ["Attention"]

ROTARY_BASE = 10_000.0


class Attention(Layer):
    """softmax(q kᵀ / √dim) v over all earlier tokens. Its state is the cache of keys and values.

    The cache of a batch is as long as its longest sequence; `real` is False where a row has ended.

    Written out rather than through torch's fused kernel, which cannot be vmapped over parameters.

    >>> import torch
    >>> Attention(16, num_heads=2, rotary=False)(torch.randn(1, 3, 16))[0].shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self, d_model: int, num_heads: int = 4, *, eigen_range: object = None, rotary: bool = True
    ) -> None:
        super().__init__(d_model)
        refuse_eigen_range("Attention", eigen_range)
        self.num_heads = num_heads
        self.head_dim = heads_dividing(d_model, num_heads)
        if rotary and self.head_dim % 2:
            raise ValueError(
                f"rotary positions need an even head size, but d_model/num_heads = {self.head_dim};"
                " change num_heads or pass rotary=False"
            )
        self.rotary = rotary
        self.qkv_proj = linear(d_model, 3 * d_model)
        self.out_proj = linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.normal_(self.qkv_proj.weight, std=0.02, generator=generator)
        init.normal_(self.out_proj.weight, std=0.02, generator=generator)

    @property
    def state_size(self) -> int:
        """Numbers kept per token seen: unlike the others, this state grows."""
        return 2 * self.num_heads * self.head_dim

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("k", "v", "real")

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        q, k, v = (split_heads(part, self.num_heads) for part in self.qkv_proj(x).chunk(3, dim=-1))
        batch, time = x.shape[:2]
        real = torch.ones(batch, time, dtype=torch.bool, device=x.device)
        if state is not None:
            real = torch.cat([state["real"], real], dim=1)
        past = real.shape[1] - time
        if self.rotary:
            positions = real.cumsum(1)[:, past:] - 1
            q, k = _rotate(q, positions), _rotate(k, positions)
        if state is not None:
            k, v = torch.cat([state["k"], k], dim=1), torch.cat([state["v"], v], dim=1)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.head_dim)
        causal = torch.ones(time, past + time, dtype=torch.bool, device=x.device).tril(past)
        seen = causal & real[:, None, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).to(v.dtype)
        y = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out_proj(merge_heads(y)), {"k": k, "v": v, "real": real}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return not_linear("Attention")


def _rotate(
    x: Float[Tensor, "batch time heads dim"], positions: Int[Tensor, "batch time"]
) -> Float[Tensor, "batch time heads dim"]:
    """Turns each pair of coordinates by an angle that grows with the position."""
    half = x.shape[-1] // 2
    rates = ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (positions.to(torch.float32)[..., None] * rates)[:, :, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
