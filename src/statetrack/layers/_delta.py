"""The common body of DeltaNet, GatedDeltaNet and DeltaProduct; each of them only chooses."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import silu, softplus

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Fold, Layer, LayerState
from statetrack.layers._gates import range_gate, range_share, reset_step_size
from statetrack.layers.parts import (
    RMSNorm,
    ShortConvolution,
    at_times,
    expect_qk_eps,
    expect_sizes,
    heads_dividing,
    linear,
    merge_heads,
    projected,
    split_heads,
    unit_length,
    wide_projection,
)
from statetrack.layers.transitions import HouseholderTransitions, Transitions

__all__ = ["DeltaFamily"]

XAVIER_GAIN = 2**-2.5


class _Inputs(NamedTuple):
    """What the op takes; the convolution's new history comes along."""

    q: Float[Tensor, "batch time heads key"]
    k: Float[Tensor, "batch time micro heads key"]
    v: Float[Tensor, "batch time micro heads value"]
    beta: Float[Tensor, "batch time micro heads"]
    decay: Float[Tensor, "batch time heads"] | None
    history: Float[Tensor, "sequences past channels"] | None


class DeltaFamily(Layer):
    """H ← a H, then H ← (I - β_j k_j k_jᵀ) H + β_j k_j v_jᵀ for j = 1..n; y = Hᵀ q / √dim.

    H [head_dim, value_dim] in each head; `head_dim` is d_model / num_heads where left out, and
    `value_dim` is `head_dim`. With `num_value_heads`, a multiple of `num_heads`, so many heads each
    have their own v, β, a and state, and neighbours share q and k.

    q and k have unit norm. With `qk_eps` they are x / √(‖x‖² + qk_eps) instead, which is a little
    shorter; checkpoints of other libraries were trained with 1e-6.

    Abstract: the classes built on it fix n (`num_householders`) and which gates there are.
    """

    packs = True
    splits = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        eigen_range: Any,
        head_dim: int | None,
        value_dim: int | None,
        num_value_heads: int | None,
        num_householders: int,
        forget_gate: bool,
        output_gate: bool,
        conv_size: int,
        qk_silu: bool,
        qk_eps: float,
        norm_eps: float,
        learn_range: bool,
        beta_stretch: float,
        beta_start: float | None,
        backend: ops.Backend,
    ) -> None:
        super().__init__(d_model)
        expect_sizes(
            num_householders=num_householders,
            num_heads=num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
        )
        if learn_range and beta_start is not None:
            raise ValueError(
                f"learn_range begins at β = 0.5, so beta_start={beta_start} cannot be had: leave "
                "one of them out"
            )
        self.eigen_range = EigenRange(EigenRange.of(eigen_range).low, beta_stretch, beta_start)
        self.num_heads = num_heads
        self.head_dim = head_dim or heads_dividing(d_model, num_heads)
        self.value_dim = value_dim or self.head_dim
        self.num_value_heads = num_heads if num_value_heads is None else num_value_heads
        if self.num_value_heads < 1 or self.num_value_heads % num_heads:
            raise ValueError(
                f"num_value_heads={num_value_heads} must be a multiple of num_heads={num_heads}"
            )
        self.num_householders = num_householders
        self.output_gate = output_gate
        self.qk_silu, self.qk_eps = qk_silu, expect_qk_eps(qk_eps)
        self.beta_stretch, self.beta_start = beta_stretch, beta_start
        self.backend: ops.Backend = backend
        heads = self.num_value_heads
        inner = heads * self.value_dim
        channels = sum(self._channels())
        self.qkv_proj = linear(d_model, channels)
        self.beta_proj = linear(d_model, num_householders * heads)
        self.conv = ShortConvolution(channels, conv_size, bias=False) if conv_size else None
        self.decay_proj = linear(d_model, heads) if forget_gate else None
        self.A_log = nn.Parameter(torch.empty(heads)) if forget_gate else None
        self.dt_bias = nn.Parameter(torch.empty(heads)) if forget_gate else None
        self.gate_proj = linear(d_model, inner) if output_gate else None
        self.range_gate = range_gate(heads, learn_range)
        self.norm = RMSNorm(self.value_dim, eps=norm_eps)
        self.out_proj = linear(inner, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Xavier-uniform projections of gain 2^-2.5; each of q, k_j and v_j counts as its own."""
        weights = list(self.qkv_proj.weight.detach().split(self._channels()))
        weights += [self.beta_proj.weight, self.out_proj.weight]
        weights += [proj.weight for proj in (self.decay_proj, self.gate_proj) if proj is not None]
        for weight in weights:
            init.xavier_uniform_(weight, gain=XAVIER_GAIN, generator=generator)
        if self.conv is not None:
            self.conv.reset_parameters(generator)
        if self.A_log is not None and self.dt_bias is not None:
            with torch.no_grad():
                self.A_log.uniform_(1.0, 16.0, generator=generator).log_()
            reset_step_size(self.dt_bias, generator)
        if self.range_gate is not None:
            init.zeros_(self.range_gate)
        self.norm.reset_parameters()

    @property
    def state_size(self) -> int:
        history = 0 if self.conv is None else self.conv.weight.shape[0] * (self.conv.width - 1)
        return self.num_value_heads * self.head_dim * self.value_dim + history

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent",) if self.conv is None else ("conv", "recurrent")

    def folds(self) -> list[Fold]:
        maybe = (self.qkv_proj, self.beta_proj, self.decay_proj, self.gate_proj)
        return [
            Fold(None, tuple(proj for proj in maybe if proj is not None)),
            Fold(self.norm, (self.out_proj,)),
        ]

    def _channels(self) -> list[int]:
        """How the channels of `qkv_proj` are cut: q, then k_1..k_n, then v_1..v_n."""
        key, value = self.num_heads * self.head_dim, self.num_value_heads * self.value_dim
        return [key] * (1 + self.num_householders) + [value] * self.num_householders

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        state = state or {}
        inputs = self._inputs(x, state, packing)
        y, recurrent = ops.delta_product(
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
        y = merge_heads(self.norm(at_times(y, read_at)))
        if self.gate_proj is not None:
            y = y * silu(self.gate_proj(at_times(x, read_at)))
        new_state = {"recurrent": recurrent}
        if inputs.history is not None:
            new_state["conv"] = inputs.history
        return projected(self.out_proj, y), new_state

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        inputs = self._inputs(x, state or {})
        dtype = inputs.beta.dtype
        k = inputs.k.to(dtype)
        return HouseholderTransitions(
            k=k if self.qk_eps else ops.unit_vector(k),
            v=inputs.v.to(dtype),
            beta=inputs.beta,
            decay=inputs.decay,
        )

    def _inputs(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState,
        packing: ops.Packing | None = None,
    ) -> _Inputs:
        qkv, history = projected(self.qkv_proj, x), None
        keys, values = self.num_heads * self.head_dim, self.num_value_heads * self.value_dim
        n = self.num_householders
        sizes = (keys, n * keys, n * values)
        if self.conv is not None:
            activation = "silu" if self.qk_silu else None
            (q, k, v), history = self.conv(
                qkv, state.get("conv"), activation=activation, packing=packing, sizes=sizes
            )
        else:
            q, k, v = (silu(qkv) if self.qk_silu else qkv).split(sizes, dim=-1)
        if not self.qk_silu:
            v = silu(v)
        micro = (self.num_householders, self.num_value_heads)
        unit = wide_projection(self.beta_proj, x, sigmoid=True).unflatten(-1, micro)
        beta = self.eigen_range.beta(unit, range_share(self.range_gate))
        decay = None
        if self.decay_proj is not None and self.A_log is not None and self.dt_bias is not None:
            step = softplus(wide_projection(self.decay_proj, x) + self.dt_bias)
            decay = torch.exp(-torch.exp(self.A_log) * step)
        return _Inputs(
            q=self._by_value_head(split_heads(q, self.num_heads)),
            k=self._by_value_head(k.unflatten(-1, (n, self.num_heads, self.head_dim))),
            v=v.unflatten(-1, (*micro, self.value_dim)),
            beta=beta,
            decay=decay,
            history=history,
        )

    def _by_value_head(self, x: Float[Tensor, "*shape heads key"]) -> Float[Tensor, "*shape _ key"]:
        """Queries or keys, normalised here if `qk_eps` is given, once for each head they serve."""
        if self.qk_eps:
            x = unit_length(x, self.qk_eps)
        shared = self.num_value_heads // self.num_heads
        return x if shared == 1 else x.repeat_interleave(shared, dim=-2)
