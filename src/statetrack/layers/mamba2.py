"""Mamba2: one decay per head, a = low + (1 - low)·exp(Δ A), and outer-product writes."""

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import silu, softplus

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState
from statetrack.layers._gates import range_gate, range_share, reset_step_size
from statetrack.layers.parts import (
    RMSNorm,
    ShortConvolution,
    at_times,
    expect_sizes,
    linear,
    merge_heads,
    reset_linear,
    split_heads,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import DiagonalTransitions, Transitions

__all__ = ["Mamba2"]


class Mamba2(Layer):
    """H_t = a H_{t-1} + B_t (Δ u_t)ᵀ per head, y = Hᵀ C + D u, then RMSNorm(y · SiLU(z)).

    A head has `head_dim` channels and keeps `d_state` numbers for each.

    B and C are shared by all heads, or with `num_groups` by so many groups of neighbouring heads.
    The norm then is one for each group, as the authors' code has it; `norm_by_group=False` makes it
    one over all channels, as transformers has it.

    With low = -1 a head can flip the sign of all it stores, which no log-space implementation of
    this layer can express. `learn_range` is that of `DeltaNet`.

    Dao and Gu 2024 (arXiv:2405.21060).
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        d_state: int = 128,
        expand: int = 2,
        head_dim: int = 64,
        num_groups: int = 1,
        norm_by_group: bool = True,
        conv_size: int = 4,
        norm_eps: float = 1e-5,
        learn_range: bool = False,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = EigenRange.of(eigen_range)
        expect_sizes(d_state=d_state, expand=expand, head_dim=head_dim)
        self.d_state = d_state
        self.d_inner = expand * d_model
        if self.d_inner % head_dim:
            raise ValueError(f"head_dim={head_dim} must divide expand·d_model = {self.d_inner}")
        self.head_dim = head_dim
        self.num_heads = self.d_inner // head_dim
        if num_groups < 1 or self.num_heads % num_groups:
            raise ValueError(
                f"num_groups={num_groups} must divide the number of heads, "
                f"expand·d_model / head_dim = {self.num_heads}"
            )
        self.num_groups, self.norm_by_group = num_groups, norm_by_group
        self.backend: ops.Backend = backend
        channels = self.d_inner + 2 * num_groups * d_state
        self.in_proj = linear(d_model, self.d_inner + channels + self.num_heads)
        self.conv = ShortConvolution(channels, conv_size, bias=True) if conv_size else None
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.D = nn.Parameter(torch.empty(self.num_heads))
        self.range_gate = range_gate(self.num_heads, learn_range)
        normed_apart = num_groups if norm_by_group else 1
        self.norm = RMSNorm(self.d_inner, eps=norm_eps, groups=normed_apart)
        self.out_proj = linear(self.d_inner, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        reset_linear(self.in_proj, generator)
        reset_linear(self.out_proj, generator)
        if self.conv is not None:
            self.conv.reset_parameters(generator)
        reset_step_size(self.dt_bias, generator)
        with torch.no_grad():
            self.A_log.uniform_(1.0, 16.0, generator=generator).log_()
        init.ones_(self.D)
        if self.range_gate is not None:
            init.zeros_(self.range_gate)
        self.norm.reset_parameters()

    @property
    def state_size(self) -> int:
        history = 0 if self.conv is None else self.conv.weight.shape[0] * (self.conv.width - 1)
        return self.d_inner * self.d_state + history

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent",) if self.conv is None else ("conv", "recurrent")

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        state = state or {}
        z, u, B, C, step, new_state = self._inputs(x, state, packing)
        y, recurrent = ops.linear_attention(
            C,
            B,
            (step[..., None] * u).to(u.dtype),
            self._decay(step),
            initial_state=state.get("recurrent"),
            cu_seqlens=packing,
            backend=self.backend,
        )
        y, u, z = (at_times(part, read_at) for part in (y, u, z))
        y = merge_heads(y + self.D.to(y.dtype)[:, None] * u)
        return self.out_proj(self.norm(y * silu(z))), new_state | {"recurrent": recurrent}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        _, u, B, _, step, _ = self._inputs(x, state or {})
        decay = self._decay(step).expand(-1, -1, -1, self.d_state)
        return DiagonalTransitions(
            decay=decay,
            k=B.repeat_interleave(self.num_heads // self.num_groups, dim=2).to(decay.dtype),
            v=(step[..., None] * u).to(decay.dtype),
        )

    def _decay(self, step: Tensor) -> Tensor:
        """a = low + (1 - low)·exp(-Δ e^{A}) as [batch, time, heads, 1]."""
        unit = torch.exp(-step * torch.exp(self.A_log))
        return self.eigen_range.decay(unit, range_share(self.range_gate))[..., None]

    def _inputs(
        self, x: Tensor, state: LayerState, packing: ops.Packing | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, LayerState]:
        """z, u by head, B and C by group, Δ in float32, and the convolution's new history."""
        shared = self.num_groups * self.d_state
        channels = self.d_inner + 2 * shared
        z, ubc, step = self.in_proj(x).split([self.d_inner, channels, self.num_heads], dim=-1)
        new_state = {}
        if self.conv is None:
            ubc = silu(ubc)
        else:
            ubc, new_state["conv"] = self.conv(
                ubc, state.get("conv"), activation="silu", packing=packing
            )
        u, B, C = ubc.split([self.d_inner, shared, shared], dim=-1)
        B, C = (split_heads(x, self.num_groups) for x in (B, C))
        wide = step.to(torch.promote_types(step.dtype, torch.float32))
        return z, split_heads(u, self.num_heads), B, C, softplus(wide + self.dt_bias), new_state
