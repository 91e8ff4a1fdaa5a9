"""Mamba: a diagonal transition per channel, a = low + (1 - low)·exp(Δ A)."""

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import silu, softplus

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Fold, Layer, LayerState
from statetrack.layers._gates import reset_step_size
from statetrack.layers.parts import (
    ShortConvolution,
    at_times,
    expect_sizes,
    in_halves,
    linear,
    reset_linear,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import DiagonalTransitions, Transitions

__all__ = ["Mamba"]


class Mamba(Layer):
    """Selective state spaces: h_t = a ∘ h_{t-1} + Δ u_t B_t, y = h·C + D u, gated by SiLU(z).

    Each of the expand·d_model channels keeps d_state numbers. low = 0 is Mamba as published;
    low = -1 lets a state flip its sign, which needs a large Δ|A|.

    `conv_size=0` leaves the convolution out. The step size Δ is a map of rank `dt_rank`, d_model /
    16 where left out.

    Gu and Dao 2023 (arXiv:2312.00752), with the range of arXiv:2411.12537.
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        d_state: int = 16,
        expand: int = 2,
        dt_rank: int | None = None,
        conv_size: int = 4,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = EigenRange.of(eigen_range)
        expect_sizes(d_state=d_state, expand=expand, dt_rank=dt_rank)
        self.d_state = d_state
        self.d_inner = expand * d_model
        self.dt_rank = -(-d_model // 16) if dt_rank is None else dt_rank
        self.backend: ops.Backend = backend
        self.in_proj = linear(d_model, 2 * self.d_inner)
        self.conv = ShortConvolution(self.d_inner, conv_size, bias=True) if conv_size else None
        self.x_proj = linear(self.d_inner, self.dt_rank + 2 * d_state)
        self.dt_proj = linear(self.dt_rank, self.d_inner, bias=True)
        self.A_log = nn.Parameter(torch.empty(self.d_inner, d_state))
        self.D = nn.Parameter(torch.empty(self.d_inner))
        self.out_proj = linear(self.d_inner, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for proj in (self.in_proj, self.x_proj, self.out_proj):
            reset_linear(proj, generator)
        if self.conv is not None:
            self.conv.reset_parameters(generator)
        bound = self.dt_rank**-0.5
        init.uniform_(self.dt_proj.weight, -bound, bound, generator=generator)
        reset_step_size(self.dt_proj.bias, generator)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, self.d_state + 1).log().expand_as(self.A_log))
        init.ones_(self.D)

    @property
    def state_size(self) -> int:
        history = 0 if self.conv is None else self.conv.width - 1
        return self.d_inner * (self.d_state + history)

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent",) if self.conv is None else ("conv", "recurrent")

    def folds(self) -> list[Fold]:
        return [Fold(None, (self.in_proj,))]

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        state = state or {}
        u, z, new_state = self._convolved(x, state, read_at, packing)
        delta, B, C = self._selection(u)
        recurrent = state.get("recurrent")
        y, last = ops.selective_scan(
            u,
            delta,
            -torch.exp(self.A_log),
            B,
            C,
            self.D,
            low=self.eigen_range.low,
            initial_state=None if recurrent is None else recurrent.squeeze(-1),
            cu_seqlens=packing,
            backend=self.backend,
        )
        y = self.out_proj(at_times(y, read_at) * silu(z))
        return y, new_state | {"recurrent": last.unsqueeze(-1)}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        """One head per channel, with d_state keys and a single value."""
        u, _, _ = self._convolved(x, state or {})
        delta, B, _ = self._selection(u)
        unit = torch.exp(-delta[..., None] * torch.exp(self.A_log))
        k = B[:, :, None, :].expand(-1, -1, self.d_inner, -1)
        return DiagonalTransitions(
            decay=self.eigen_range.decay(unit), k=k.to(unit.dtype), v=(delta * u)[..., None]
        )

    def _convolved(
        self,
        x: Tensor,
        state: LayerState,
        read_at: Tensor | None = None,
        packing: ops.Packing | None = None,
    ) -> tuple[Tensor, Tensor, LayerState]:
        """u at every time, the gate's z at the times `read_at`, and the convolution's history."""
        u, z = in_halves(self.in_proj, x, read_at)
        if self.conv is None:
            return silu(u), z, {}
        u, history = self.conv(u, state.get("conv"), activation="silu", packing=packing)
        return u, z, {"conv": history}

    def _selection(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Δ (in float32), B and C, all chosen by the input."""
        low_rank, B, C = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        step = self.dt_proj(low_rank)
        return softplus(step.to(torch.promote_types(step.dtype, torch.float32))), B, C
