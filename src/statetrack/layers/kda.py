"""Kimi Delta Attention: the delta rule with a forget gate for every key dimension."""

import math
from typing import NamedTuple

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
    RMSNorm,
    ShortConvolution,
    at_times,
    expect_qk_eps,
    expect_sizes,
    heads_dividing,
    linear,
    merge_heads,
    reset_linear,
    split_heads,
    unit_length,
    wide,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import RankOneTransitions, Transitions

__all__ = ["KDA"]

XAVIER_GAIN = 2**-2.5


class _Inputs(NamedTuple):
    """What the op takes; the convolution's new history comes along."""

    q: Float[Tensor, "batch time heads key"]
    k: Float[Tensor, "batch time heads key"]
    v: Float[Tensor, "batch time heads value"]
    beta: Float[Tensor, "batch time heads"]
    decay: Float[Tensor, "batch time heads key"]
    history: Float[Tensor, "sequences past channels"] | None


class KDA(Layer):
    """H_t = (I - β k kᵀ) Diag(a) H_{t-1} + β k vᵀ, y = Hᵀ q / √dim.

    q, k and v go through a short convolution and SiLU; q and k have unit norm. The gate
    a = exp(-e^{A} softplus(W₂ W₁ x + b)) in (0, 1) has a number for every key dimension, with A for
    each head. The output is RMSNorm(y) · σ(W₄ W₃ x + c), projected back. W₁ and W₃ have
    `gate_rank` rows, the size of a value where left out. With `qk_eps`, q and k are
    x / √(‖x‖² + qk_eps) instead of unit vectors.

    β = (1 - low)·σ(W x). The gate stays positive whatever `low` is, so A is similar to
    Diag(√a)(I - β k kᵀ)Diag(√a) and its eigenvalues are real, within [min(1 - β, 0), 1]: for
    low <= 0 within [low, 1]. For low > 0 the gate may still forget below low, as in GatedDeltaNet.

    Kimi Team 2025 (arXiv:2510.26692), where low = 0.
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
        head_dim: int | None = None,
        value_dim: int | None = None,
        gate_rank: int | None = None,
        conv_size: int = 4,
        norm_eps: float = 1e-5,
        qk_eps: float = 0.0,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        expect_sizes(
            num_heads=num_heads, head_dim=head_dim, value_dim=value_dim, gate_rank=gate_rank
        )
        self.eigen_range = EigenRange.of(eigen_range)
        self.num_heads, self.qk_eps = num_heads, expect_qk_eps(qk_eps)
        self.head_dim = head_dim or heads_dividing(d_model, num_heads)
        self.value_dim = value_dim or self.head_dim
        self.gate_rank = gate_rank or self.value_dim
        self.backend: ops.Backend = backend
        keys, values = num_heads * self.head_dim, num_heads * self.value_dim
        self.sizes = (keys, keys, values)
        self.qkv_proj = linear(d_model, sum(self.sizes))
        self.conv = ShortConvolution(sum(self.sizes), conv_size, bias=False) if conv_size else None
        self.beta_proj = linear(d_model, num_heads)
        self.decay_down = linear(d_model, self.gate_rank)
        self.decay_up = linear(self.gate_rank, keys)
        self.A_log = nn.Parameter(torch.empty(num_heads))
        self.dt_bias = nn.Parameter(torch.empty(keys))
        self.gate_down = linear(d_model, self.gate_rank)
        self.gate_up = linear(self.gate_rank, values, bias=True)
        self.norm = RMSNorm(self.value_dim, eps=norm_eps)
        self.out_proj = linear(values, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        weights = list(self.qkv_proj.weight.detach().split(self.sizes))
        for weight in (*weights, self.beta_proj.weight, self.out_proj.weight):
            init.xavier_uniform_(weight, gain=XAVIER_GAIN, generator=generator)
        for proj in (self.decay_down, self.decay_up, self.gate_down, self.gate_up):
            reset_linear(proj, generator)
        if self.conv is not None:
            self.conv.reset_parameters(generator)
        with torch.no_grad():
            self.A_log.uniform_(1.0, 16.0, generator=generator).log_()
        reset_step_size(self.dt_bias, generator)
        self.norm.reset_parameters()

    @property
    def state_size(self) -> int:
        history = 0 if self.conv is None else sum(self.sizes) * (self.conv.width - 1)
        return self.num_heads * self.head_dim * self.value_dim + history

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent",) if self.conv is None else ("conv", "recurrent")

    def folds(self) -> list[Fold]:
        readers = (self.qkv_proj, self.beta_proj, self.decay_down, self.gate_down)
        return [Fold(None, readers), Fold(self.norm, (self.out_proj,))]

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        state = state or {}
        inputs = self._inputs(x, state, packing)
        y, recurrent = ops.delta_rule(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.beta,
            inputs.decay,
            normalize=not self.qk_eps,
            scale=1 / math.sqrt(self.head_dim),
            initial_state=state.get("recurrent"),
            cu_seqlens=packing,
            backend=self.backend,
        )
        gate = torch.sigmoid(wide(self.gate_up(self.gate_down(at_times(x, read_at)))))
        y = merge_heads(self.norm(at_times(y, read_at))) * gate.to(y.dtype)
        new_state = {"recurrent": recurrent}
        if inputs.history is not None:
            new_state["conv"] = inputs.history
        return self.out_proj(y), new_state

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        inputs = self._inputs(x, state or {}, None)
        beta, decay = inputs.beta[..., None], inputs.decay
        k = inputs.k if self.qk_eps else ops.unit_vector(inputs.k.to(decay.dtype))
        return RankOneTransitions(
            w=decay, kappa=k, a=beta * decay, k=beta * k, v=inputs.v.to(decay.dtype)
        )

    def _by_head(
        self, x: Float[Tensor, "batch time features"]
    ) -> Float[Tensor, "batch time heads key"]:
        """Queries or keys, normalised here if `qk_eps` is given."""
        x = split_heads(x, self.num_heads)
        return unit_length(x, self.qk_eps) if self.qk_eps else x

    def _inputs(self, x: Tensor, state: LayerState, packing: ops.Packing | None) -> _Inputs:
        qkv, history = self.qkv_proj(x), None
        if self.conv is not None:
            (q, k, v), history = self.conv(
                qkv, state.get("conv"), activation="silu", packing=packing, sizes=self.sizes
            )
        else:
            q, k, v = silu(qkv).split(self.sizes, dim=-1)
        step = softplus(wide(self.decay_up(self.decay_down(x))) + self.dt_bias)
        rate = torch.exp(self.A_log)[:, None]
        return _Inputs(
            q=self._by_head(q),
            k=self._by_head(k),
            v=split_heads(v, self.num_heads),
            beta=self.eigen_range.beta(torch.sigmoid(wide(self.beta_proj(x)))),
            decay=torch.exp(-rate * split_heads(step, self.num_heads)),
            history=history,
        )
