"""RWKV-7: a diagonal plus rank-one transition, A(x) = Diag(w) - κ (a∘κ)ᵀ."""

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState, Shared
from statetrack.layers.parts import (
    at_times,
    expect_qk_eps,
    expect_sizes,
    heads_dividing,
    linear,
    merge_heads,
    reset_linear,
    split_heads,
    unit_length,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import RankOneTransitions, Transitions
from statetrack.ops.packing import last_of, previous, sequences_in

__all__ = ["RWKV7"]

SLOWEST = 0.6065306597126334  # e^{-1/2}: decays lie between e^{-0.61} = 0.545 and 1


class RWKV7(Layer):
    """H_t = (Diag(w) - κ (a∘κ)ᵀ) H_{t-1} + k̃ vᵀ, y = Hᵀ r plus a bonus for the current token.

    w in (0.545, 1) is a decay per key dimension, κ the unit vector along which the state is
    rewritten, and a = (w - low) ∘ σ(…) how much of it. With this a every eigenvalue lies in
    [low, 1]: A is similar to the symmetric Diag(w) - zzᵀ with z = √a∘κ, whose smallest eigenvalue λ
    solves Σ z²/(w - λ) = 1, and at λ = low that sum is Σ σ κ² <= 1.

    `eigen_range=None` is the layer as published: a = σ(…) and the transpose of this A, which is
    Diag(w) - (a∘κ) κᵀ. Its eigenvalues lie between -0.455 and 1, so it neither forgets completely
    nor reflects.

    Each projection sees a learnt mix of the current and the previous token. The gates for w, a and
    the output are of rank `gate_rank`, or of ranks of their own. With a `value_rank` there is the
    value residual of the published layer, v + σ(…) ∘ (v₁ - v), with a gate of that rank and v₁ the
    values of the first RWKV7 of the stack, which itself goes without. (`transitions` knows no other
    layer, and writes v.) With `qk_eps`, κ is x / √(‖x‖² + qk_eps) instead of a unit vector.

    Peng et al. 2025 (arXiv:2503.14456).
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: tuple[float, float] | None = (-1.0, 1.0),
        gate_rank: int = 32,
        decay_rank: int | None = None,
        removal_rank: int | None = None,
        output_rank: int | None = None,
        value_rank: int | None = None,
        qk_eps: float = 0.0,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = None if eigen_range is None else EigenRange.of(eigen_range)
        expect_sizes(
            gate_rank=gate_rank,
            decay_rank=decay_rank,
            removal_rank=removal_rank,
            output_rank=output_rank,
            value_rank=value_rank,
        )
        self.num_heads, self.gate_rank = num_heads, gate_rank
        self.decay_rank = gate_rank if decay_rank is None else decay_rank
        self.removal_rank = gate_rank if removal_rank is None else removal_rank
        self.output_rank = gate_rank if output_rank is None else output_rank
        self.value_rank, self.qk_eps = value_rank, expect_qk_eps(qk_eps)
        self.head_dim = heads_dividing(d_model, num_heads)
        self.backend: ops.Backend = backend
        self.mix = nn.Parameter(torch.empty(6, d_model))  # for r, w, k, v, a, g
        self.r_proj, self.k_proj, self.v_proj = (linear(d_model, d_model) for _ in range(3))
        ranks = (self.decay_rank, self.removal_rank, self.output_rank)
        self.w_down, self.a_down, self.g_down = (linear(d_model, rank) for rank in ranks)
        self.w_up = linear(self.decay_rank, d_model, bias=True)
        self.a_up = linear(self.removal_rank, d_model, bias=True)
        self.g_up = linear(self.output_rank, d_model)
        self.v_down = None if value_rank is None else linear(d_model, value_rank)
        self.v_up = None if value_rank is None else linear(value_rank, d_model, bias=True)
        self.k_scale = nn.Parameter(torch.empty(d_model))  # κ points along k ∘ k_scale
        self.k_blend = nn.Parameter(torch.empty(d_model))  # how far a also scales the written key
        self.bonus = nn.Parameter(torch.empty(num_heads, self.head_dim))
        self.norm = nn.GroupNorm(num_heads, d_model, eps=self.head_dim * 1e-5)
        self.out_proj = linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.constant_(self.mix, 0.5)
        for module in (
            self.r_proj,
            self.k_proj,
            self.v_proj,
            self.w_down,
            self.a_down,
            self.g_down,
        ):
            reset_linear(module, generator)
        for module in (self.w_up, self.a_up, self.g_up, self.out_proj):
            reset_linear(module, generator)
        with torch.no_grad():  # decays spread along the channels, as published
            place = torch.linspace(0.0, 1.0, self.w_up.out_features)
            self.w_up.bias.copy_(-6.0 + 5.0 * place)
            if self.v_down is not None and self.v_up is not None:
                reset_linear(self.v_down, generator)
                reset_linear(self.v_up, generator)
                self.v_up.bias.copy_(0.93 - 0.4 * place)
        init.zeros_(self.a_up.bias)
        init.constant_(self.k_scale, 0.85)
        init.ones_(self.k_blend)
        init.zeros_(self.bonus)
        init.ones_(self.norm.weight)
        init.zeros_(self.norm.bias)

    @property
    def state_size(self) -> int:
        return self.num_heads * self.head_dim**2 + self.r_proj.in_features

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent", "token")

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        y, after, _ = self._mix_shared(x, state, read_at, packing, Shared())
        return y, after

    def _mix_shared(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
        shared: Shared,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState, Shared]:
        first = shared.values
        if first is None and self.value_rank is not None:
            raise ValueError(
                "RWKV7 with value_rank mixes in the values of an earlier layer, and there is none: "
                "put an RWKV7 without value_rank before it in the stack"
            )
        r, gate, A = self._inputs(x, state, first, packing)
        heads, dim = r.shape[2:]
        y, recurrent = ops.dplr(
            r,
            A.k,
            A.v,
            A.w,
            A.left,
            A.right,
            initial_state=None if state is None else state["recurrent"],
            cu_seqlens=packing,
            backend=self.backend,
        )
        bonus = (r * self.bonus * A.k).sum(-1, keepdim=True) * A.v
        y, bonus, gate = (at_times(part, read_at) for part in (y, bonus, gate))
        batch, time = y.shape[:2]
        y = y.reshape(batch * time, heads * dim).to(self.norm.weight.dtype)
        y = self.norm(y).unflatten(0, (batch, time))
        y = (y + merge_heads(bonus)).to(x.dtype) * gate
        token = last_of(x, self._token_before(x, state, packing), packing)
        after = {"recurrent": recurrent, "token": token}
        given = shared._replace(values=merge_heads(A.v)) if first is None else shared
        return self.out_proj(y), after, given

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return self._inputs(x, state)[2]

    def _token_before(
        self, x: Tensor, state: LayerState | None, packing: ops.Packing | None
    ) -> Float[Tensor, "sequences d_model"]:
        if state is None:
            return x.new_zeros(sequences_in(x, packing), self.d_model)
        return state["token"].to(x.dtype)

    def _inputs(
        self,
        x: Tensor,
        state: LayerState | None,
        first: Tensor | None = None,
        packing: ops.Packing | None = None,
    ) -> tuple[Tensor, Tensor, RankOneTransitions]:
        """r by head in float32, the output gate, and the transitions."""
        before = previous(x, self._token_before(x, state, packing), packing)
        mixed = x[None] + self.mix.to(x.dtype)[:, None, None] * (before - x)
        x_r, x_w, x_k, x_v, x_a, x_g = mixed.unbind(0)
        wide = torch.promote_types(x.dtype, torch.float32)
        w = torch.exp(-SLOWEST * torch.sigmoid(self.w_up(torch.tanh(self.w_down(x_w))).to(wide)))
        rate = torch.sigmoid(self.a_up(self.a_down(x_a)).to(wide))
        gate = self.g_up(torch.sigmoid(self.g_down(x_g)))
        k = self.k_proj(x_k).to(wide)
        written = k * (1 + (rate - 1) * self.k_blend)

        v = self.v_proj(x_v).to(wide)
        if self.v_down is not None and self.v_up is not None and first is not None:
            v = torch.lerp(v, first, torch.sigmoid(self.v_up(self.v_down(x_v)).to(wide)))

        def by_head(part: Tensor) -> Tensor:
            return split_heads(part.to(wide), self.num_heads)

        removal = rate if self.eigen_range is None else self.eigen_range.removal(w, rate)
        transitions = RankOneTransitions(
            w=by_head(w),
            kappa=unit_length(by_head(k * self.k_scale), self.qk_eps),
            a=by_head(removal),
            k=by_head(written),
            v=by_head(v),
            transposed=self.eigen_range is None,
        )
        return by_head(self.r_proj(x_r)), gate, transitions
