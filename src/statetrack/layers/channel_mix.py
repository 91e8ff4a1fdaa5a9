"""The MLP of RWKV, which also sees the token before: a mixer with a state of one token."""

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import relu

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import (
    at_times,
    expect_sizes,
    linear,
    refuse_eigen_range,
    reset_linear,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import Transitions, not_linear
from statetrack.ops.packing import last_of, previous, sequences_in

__all__ = ["ChannelMix"]


class ChannelMix(Layer):
    """y_t = W₂ relu(W₁ (x_t + m ∘ (x_{t-1} - x_t)))².

    An RWKV model alternates it with `RWKV7`, each in a block of its own without an MLP:

        BackboneConfig(mixers=["RWKV7", "ChannelMix"] * 12, mlp="none", norm="layer", ...)

    `hidden_dim` is 4·d_model where left out. Peng et al. 2025 (arXiv:2503.14456).
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: object = None,
        hidden_dim: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        refuse_eigen_range("ChannelMix", eigen_range)
        expect_sizes(hidden_dim=hidden_dim)
        self.hidden_dim = 4 * d_model if hidden_dim is None else hidden_dim
        self.mix = nn.Parameter(torch.empty(d_model))
        self.up_proj = linear(d_model, self.hidden_dim)
        self.down_proj = linear(self.hidden_dim, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.constant_(self.mix, 0.5)
        reset_linear(self.up_proj, generator)
        reset_linear(self.down_proj, generator)

    @property
    def state_size(self) -> int:
        return self.d_model

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("token",)

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        if state is None:
            start = x.new_zeros(sequences_in(x, packing), self.d_model)
        else:
            start = state["token"].to(x.dtype)
        before = at_times(previous(x, start, packing), read_at)
        here = at_times(x, read_at)
        mixed = here + self.mix.to(x.dtype) * (before - here)
        y = self.down_proj(relu(self.up_proj(mixed)).square())
        return y, {"token": last_of(x, start, packing)}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return not_linear("ChannelMix")
