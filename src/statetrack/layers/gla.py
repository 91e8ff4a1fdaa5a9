"""Gated linear attention: one signed gate per key dimension."""

import math

import torch
from torch import Tensor
from torch.nn import init
from torch.nn.functional import logsigmoid, silu

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState
from statetrack.layers._gates import range_gate, range_share
from statetrack.layers.parts import (
    RMSNorm,
    at_times,
    expect_sizes,
    heads_dividing,
    linear,
    merge_heads,
    reset_linear,
    split_heads,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import DiagonalTransitions, Transitions

__all__ = ["GLA"]

GATE_TEMPERATURE = 16.0
XAVIER_GAIN = 2**-2.5


class GLA(Layer):
    """H_t = Diag(a) H_{t-1} + k vᵀ, y = Hᵀ q / √dim, normalised per head and gated by SiLU(W x).

    s = σ(W₂ W₁ x + b)^{1/16} is a gate of rank `gate_rank` near one, a = low + (1 - low)·s. With
    low = -1 the gates may turn negative, a form of this layer that log-space kernels cannot run.
    Keys have `expand_k` times the width of values. `learn_range` is that of `DeltaNet`.

    Yang et al. 2023 (arXiv:2312.06635).
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        expand_k: float = 0.5,
        gate_rank: int = 16,
        norm_eps: float = 1e-5,
        learn_range: bool = False,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = EigenRange.of(eigen_range)
        expect_sizes(gate_rank=gate_rank)
        self.num_heads, self.gate_rank = num_heads, gate_rank
        self.backend: ops.Backend = backend
        keys = int(d_model * expand_k)
        if keys < 1:
            raise ValueError(f"expand_k={expand_k} leaves no key of d_model={d_model}: take more")
        self.key_dim = heads_dividing(keys, num_heads)
        self.value_dim = heads_dividing(d_model, num_heads)
        self.q_proj, self.k_proj = linear(d_model, keys), linear(d_model, keys)
        self.v_proj = linear(d_model, d_model)
        self.decay_down = linear(d_model, gate_rank)
        self.decay_up = linear(gate_rank, keys, bias=True)
        self.gate_proj = linear(d_model, d_model)
        self.range_gate = range_gate(num_heads, learn_range)
        self.norm = RMSNorm(self.value_dim, eps=norm_eps)
        self.out_proj = linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for proj in (self.q_proj, self.k_proj, self.v_proj, self.gate_proj, self.out_proj):
            init.xavier_uniform_(proj.weight, gain=XAVIER_GAIN, generator=generator)
        reset_linear(self.decay_down, generator)
        reset_linear(self.decay_up, generator)
        if self.range_gate is not None:
            init.zeros_(self.range_gate)
        self.norm.reset_parameters()

    @property
    def state_size(self) -> int:
        return self.num_heads * self.key_dim * self.value_dim

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        k, v, decay = self._inputs(x)
        y, recurrent = ops.linear_attention(
            split_heads(self.q_proj(x), self.num_heads),
            k,
            v,
            decay,
            scale=1 / math.sqrt(self.key_dim),
            initial_state=None if state is None else state["recurrent"],
            cu_seqlens=packing,
            backend=self.backend,
        )
        y = merge_heads(self.norm(at_times(y, read_at)))
        y = y * silu(self.gate_proj(at_times(x, read_at)))
        return self.out_proj(y), {"recurrent": recurrent}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        k, v, decay = self._inputs(x)
        return DiagonalTransitions(decay=decay, k=k.to(decay.dtype), v=v.to(decay.dtype))

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = (
            split_heads(self.k_proj(x), self.num_heads),
            split_heads(self.v_proj(x), self.num_heads),
        )
        logits = self.decay_up(self.decay_down(x))
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        unit = torch.exp(logsigmoid(wide) / GATE_TEMPERATURE)
        share = range_share(self.range_gate)
        by_head = None if share is None else share[:, None]
        return k, v, self.eigen_range.decay(split_heads(unit, self.num_heads), by_head)
