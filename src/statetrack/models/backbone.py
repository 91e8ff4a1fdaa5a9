"""The only block: norm, mixer, residual; norm, MLP, residual."""

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import gelu, silu

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers import LayerState, registry
from statetrack.layers._base import RMSNorm, at_times, in_halves, linear
from statetrack.models.config import TaggerConfig

__all__ = ["MLP", "Backbone", "Block", "LayerNorm", "make_norm"]


class LayerNorm(nn.Module):
    """Mean 0 and variance 1 over the last axis, then a weight and no bias; in float32."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = nn.functional.layer_norm(wide, wide.shape[-1:], eps=self.eps)
        return (normed * self.weight).to(x.dtype)


def make_norm(config: TaggerConfig) -> RMSNorm | LayerNorm:
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(config.d_model, eps=config.norm_eps)


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), with SiLU or GELU."""

    def __init__(self, config: TaggerConfig) -> None:
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
        gate, up = in_halves(self.up_proj, x)
        return self.down_proj(self.activation(gate) * up)


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where the config has an MLP."""

    def __init__(self, config: TaggerConfig, index: int) -> None:
        super().__init__()
        layer = registry.get(config.mixer)
        place = (
            {"depth": index / max(config.num_layers - 1, 1)} if registry.has_depth(layer) else {}
        )
        self.residual = config.residual
        self.mixer_norm = make_norm(config)
        self.mixer = layer(config.d_model, **config.mixer_options, **place)
        self.mlp_norm = make_norm(config) if config.mlp != "none" else None
        self.mlp = MLP(config) if config.mlp != "none" else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part in (self.mixer_norm, self.mixer, self.mlp_norm, self.mlp):
            if part is not None:
                part.reset_parameters(generator)

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None = None,
        read_at: Int[Tensor, "batch asked"] | None = None,
        pieces: ops.Pieces | None = None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        """Mixes all of x; what comes after mixing is done at the times `read_at` alone if given."""
        mixed, state = self.mixer(self.mixer_norm(x), state, read_at=read_at, pieces=pieces)
        x = at_times(x, read_at) + mixed if self.residual else mixed
        if self.mlp is not None and self.mlp_norm is not None:
            changed = self.mlp(self.mlp_norm(x))
            x = x + changed if self.residual else changed
        return x, state


class Backbone(nn.Module):
    """A stack of blocks and, unless the config says otherwise, a last norm."""

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.norm = make_norm(config) if config.final_norm else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for block in self.blocks:
            assert isinstance(block, Block)
            block.reset_parameters(generator)
        if self.norm is not None:
            self.norm.reset_parameters(generator)

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: tuple[LayerState, ...] | None = None,
        read_at: Int[Tensor, "batch asked"] | None = None,
        pieces: ops.Pieces | None = None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], tuple[LayerState, ...]]:
        """Outputs at every time, or at the times `read_at` alone; states after the last token."""
        states = []
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            before = None if state is None else state[index]
            x, new = block(x, before, read_at if index == last else None, pieces)
            states.append(new)
        return x if self.norm is None else self.norm(x), tuple(states)
