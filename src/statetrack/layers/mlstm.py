"""mLSTM: a matrix memory with an exponential input gate and a signed forget gate."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import silu

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import (
    HeadNorm,
    ShortConvolution,
    at_times,
    expect_sizes,
    heads_dividing,
    linear,
    merge_heads,
    split_heads,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import DiagonalTransitions, Transitions
from statetrack.ops.context import joined
from statetrack.ops.packing import last_of, position, previous, sequences_in

__all__ = ["MLSTM"]

LOG_FLOOR = -60.0  # for the stabiliser only: smaller gates are as good as zero


class _Inputs(NamedTuple):
    """Queries, keys, values with a last column of ones (for n), gates, and the block's branches."""

    q: Float[Tensor, "batch time heads key"]
    k: Float[Tensor, "batch time heads key"]
    v: Float[Tensor, "batch time heads value"]
    i: Float[Tensor, "batch time heads"]
    f: Float[Tensor, "batch time heads"]
    convolved: Float[Tensor, "batch time channels"]
    z: Float[Tensor, "batch time channels"]
    history: Float[Tensor, "sequences past channels"] | None


class MLSTM(Layer):
    """C_t = f C_{t-1} + i k vᵀ, n_t = f n_{t-1} + i k, y = Cᵀq / max(|nᵀq|, 1), with i = e^ĩ.

    The block around it is the xLSTM's: x is projected to twice d_model, one half goes through a
    short convolution and SiLU and makes q and k, its unconvolved self makes v (all by
    block-diagonal maps with blocks of `block_size`), the other half gates the result.

    The forget gate is f = low + (1 - low)·σ(f̃); the published layer has low = 0. A signed gate
    acts on the normaliser n as well as on C, so a head that flips sign flips both, and the sign
    cancels in Cᵀq / nᵀq wherever |nᵀq| > 1: there the normalised read-out only sees the sign
    *relative* to later writes. Where |nᵀq| <= 1 the divisor is the constant 1 and the sign is seen.
    The absolute value in the divisor keeps the sign of Cᵀq, so parity is not lost altogether.

    C and n are kept divided by e^m with m_t = max(log|f| + m_{t-1}, ĩ); y does not depend on m.

    Beck et al. 2024 (arXiv:2405.04517).
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
        expand: int = 2,
        conv_size: int = 4,
        block_size: int = 4,
        norm_eps: float = 1e-5,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = EigenRange.of(eigen_range)
        expect_sizes(expand=expand)
        self.num_heads = num_heads
        self.d_inner = expand * d_model
        self.head_dim = heads_dividing(self.d_inner, num_heads)
        if block_size < 1 or self.d_inner % block_size:
            raise ValueError(f"block_size={block_size} must divide expand·d_model = {self.d_inner}")
        self.backend: ops.Backend = backend
        self.up_proj = linear(d_model, 2 * self.d_inner)
        self.conv = ShortConvolution(self.d_inner, conv_size, bias=True) if conv_size else None
        blocks = (self.d_inner // block_size, block_size, block_size)
        self.q_weight, self.k_weight, self.v_weight = (
            nn.Parameter(torch.empty(blocks)) for _ in range(3)
        )
        self.input_gate = linear(3 * self.d_inner, num_heads, bias=True)
        self.forget_gate = linear(3 * self.d_inner, num_heads, bias=True)
        self.norm = HeadNorm(num_heads, self.head_dim, eps=norm_eps)
        self.skip = nn.Parameter(torch.empty(self.d_inner))
        self.down_proj = linear(self.d_inner, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        d_model = self.up_proj.in_features
        small = math.sqrt(2 / (5 * d_model))
        init.normal_(self.up_proj.weight, std=small, generator=generator)
        for weight in (self.q_weight, self.k_weight, self.v_weight):
            std = math.sqrt(2 / (5 * weight.shape[-1]))
            init.normal_(weight, std=std, generator=generator)
        if self.conv is not None:
            self.conv.reset_parameters(generator)
        init.zeros_(self.input_gate.weight)
        init.normal_(self.input_gate.bias, std=0.1, generator=generator)
        init.zeros_(self.forget_gate.weight)
        with torch.no_grad():
            self.forget_gate.bias.copy_(torch.linspace(3.0, 6.0, self.num_heads))
        self.norm.reset_parameters()
        init.ones_(self.skip)
        init.normal_(self.down_proj.weight, std=2 / math.sqrt(d_model), generator=generator)

    @property
    def state_size(self) -> int:
        history = 0 if self.conv is None else self.d_inner * (self.conv.width - 1)
        return self.num_heads * (self.head_dim * (self.head_dim + 1) + 1) + history

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent", "m") if self.conv is None else ("recurrent", "m", "conv")

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        state = state or {}
        inputs = self._inputs(x, state, packing)
        m, before, last_m = _stabiliser(inputs.i, inputs.f, state.get("m"), packing)
        mixed, recurrent = ops.linear_attention(
            inputs.q,
            inputs.k * torch.exp(inputs.i - m)[..., None],
            inputs.v,
            (inputs.f * torch.exp(before - m))[..., None],
            initial_state=state.get("recurrent"),
            cu_seqlens=packing,
            backend=self.backend,
        )
        mixed, m, convolved, z = (
            at_times(part, read_at) for part in (mixed, m, inputs.convolved, inputs.z)
        )
        numerator, normaliser = mixed[..., :-1], mixed[..., -1:]
        # max(|nᵀq|, 1), both sides divided by e^m as C and n are
        y = numerator / torch.maximum(normaliser.abs(), torch.exp(-m)[..., None])
        y = merge_heads(self.norm(y.to(x.dtype)))
        y = (y + self.skip.to(y.dtype) * convolved) * silu(z)
        new_state = {"recurrent": recurrent, "m": last_m}
        if inputs.history is not None:
            new_state["conv"] = inputs.history
        return self.down_proj(y), new_state

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        """Of (C, n) itself, which is e^m times `state["recurrent"]`; the eigenvalues are f."""
        inputs = self._inputs(x, state or {})
        return DiagonalTransitions(
            decay=inputs.f[..., None].expand(-1, -1, -1, self.head_dim),
            k=inputs.k * torch.exp(inputs.i)[..., None],
            v=inputs.v,
        )

    def _inputs(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState,
        packing: ops.Packing | None = None,
    ) -> _Inputs:
        branch, z = self.up_proj(x).chunk(2, dim=-1)
        if self.conv is None:
            convolved, history = silu(branch), None
        else:
            convolved, history = self.conv(
                branch, state.get("conv"), activation="silu", packing=packing
            )
        q, k = _block_diagonal(self.q_weight, convolved), _block_diagonal(self.k_weight, convolved)
        v = _block_diagonal(self.v_weight, branch)
        gate_input = torch.cat([q, k, v], dim=-1)
        i, f = self.input_gate(gate_input), self.forget_gate(gate_input)
        wide = torch.promote_types(i.dtype, torch.float32)
        q, k, v = (split_heads(part, self.num_heads) for part in (q, k, v))
        return _Inputs(
            q=q,
            k=k.to(wide) / math.sqrt(self.head_dim),  # and e^ĩ in it, which is no half precision
            v=torch.cat([v, torch.ones_like(v[..., :1])], dim=-1),
            i=i.to(wide),
            f=self.eigen_range.decay(torch.sigmoid(f.to(wide))),
            convolved=convolved,
            z=z,
            history=history,
        )


def _block_diagonal(
    weight: Float[Tensor, "blocks size size"], x: Float[Tensor, "batch time features"]
) -> Float[Tensor, "batch time features"]:
    """x times a block-diagonal matrix.

    A GPU takes one product with all the zeros in it: it is done long before many tiny ones are.
    """
    if x.is_cuda:
        return x @ with_zeros(weight.to(x.dtype))
    parts = x.unflatten(-1, weight.shape[:2])
    return torch.einsum("btni,nio->btno", parts, weight.to(x.dtype)).flatten(-2)


def with_zeros(
    weight: Float[Tensor, "blocks size size"],
) -> Float[Tensor, "features features"]:
    """The block-diagonal matrix."""
    spread = torch.diag_embed(weight.movedim(0, -1))  # [row, column, block, block]
    return spread.permute(2, 0, 3, 1).flatten(2).flatten(0, 1)


def _stabiliser(
    i: Float[Tensor, "batch time heads"],
    f: Float[Tensor, "batch time heads"],
    start: Float[Tensor, "sequences heads"] | None,
    packing: ops.Packing | None,
) -> tuple[
    Float[Tensor, "batch time heads"],
    Float[Tensor, "batch time heads"],
    Float[Tensor, "sequences heads"],
]:
    """m_t = max(log|f_t| + m_{t-1}, ĩ_t) for all t at once, m_{t-1}, and the last m of each.

    All are without gradient. With F the running sum of log|f|, m_t - F_t is the running maximum of
    ĩ_t - F_t. Packed sequences share no sums: there, what 1, 2, 4, … tokens do is put together.
    """
    i, f = i.detach(), f.detach()
    log_f = f.abs().log().clamp(min=LOG_FLOOR)
    if start is None:
        first = i.new_full((sequences_in(i, packing), i.shape[2]), -torch.inf)
    else:
        first = start.detach()
    if packing is None:
        F = log_f.cumsum(dim=1)
        top = torch.cummax(i - F, dim=1).values
        before, _ = joined(F[:, -1], F[:, -1] + top[:, -1], first, _later)
        m = F + torch.maximum(top, before[:, None])
    else:
        m = _running_maximum(i, log_f, first, packing)
    return m, previous(m, first, packing), last_of(m, first, packing)


def _later(p: Tensor, c: Tensor, m: Tensor) -> Tensor:
    """m behind a segment, from its sum of log|f|, its own maximum and the m before it."""
    return torch.maximum(c, p + m)


def _running_maximum(
    i: Float[Tensor, "batch time heads"],
    log_f: Float[Tensor, "batch time heads"],
    first: Float[Tensor, "sequences heads"],
    packing: ops.Packing,
) -> Float[Tensor, "batch time heads"]:
    """m_t = max(log_f_t + m_{t-1}, i_t) in each packed sequence, from m_0 = `first`."""
    place = position(packing, i.shape[1])[..., None]
    m = torch.where(place == 0, torch.maximum(i, log_f + previous(i, first, packing)), i)
    width = 1  # tokens that m and log_f are about
    while width < min(packing.longest, i.shape[1]):
        wider = place >= width
        m_before, f_before = (torch.cat([x[:, :width], x[:, :-width]], 1) for x in (m, log_f))
        m = torch.where(wider, torch.maximum(m, log_f + m_before), m)
        log_f = torch.where(wider, log_f + f_before, log_f)
        width *= 2
    return m
