"""TTT-Linear: the state is a linear model that takes a gradient step on every token."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Fold, Layer, LayerState
from statetrack.layers.parts import (
    at_times,
    heads_dividing,
    linear,
    merge_heads,
    reset_linear,
    split_heads,
    wide,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import HouseholderTransitions, Transitions, not_linear
from statetrack.ops._register import without_autocast

__all__ = ["TTTLinear"]

START_STD = 0.02
NORM_EPS = 1e-6  # of the inner norm


class _Inputs(NamedTuple):
    """What a token asks, what it teaches, and how fast."""

    q: Float[Tensor, "batch time heads dim"]
    k: Float[Tensor, "batch time heads dim"]
    target: Float[Tensor, "batch time heads dim"]
    rate: Float[Tensor, "batch time heads"]


class _Progress(NamedTuple):
    """Where a sequence stands in its chunk, and what the weights gained before it and in it."""

    gained: Float[Tensor, "batch heads dim dim"]
    update: Float[Tensor, "batch heads dim dim"]
    place: Int[Tensor, "batch"]


class TTTLinear(Layer):
    """f(x) = x + LN(Wᵀ x) learns k → v while it reads: W ← W - η ∇½‖f(k) - v‖², and y = f(q).

    W [head_dim, head_dim] in each head starts from learnt weights. All tokens of a chunk of `chunk`
    tokens take their gradients at the weights with which the chunk began, so that they can be
    computed at once; y sees the steps up to its own token. `chunk=1` is the online rule.

    q and k have unit norm, so without the norm (`inner_norm=False`) one step is the delta rule:
    W ← (I - η k kᵀ) W + η k (v - k)ᵀ, with the eigenvalue 1 - η. The learning rate is
    η = (1 - low)·σ(w x) / chunk: the steps of a chunk together then have their eigenvalues in
    [low, 1] too. With the norm a step is not linear in W, and `eigen_range` sets the learning rate
    alone: low = 0 is the paper's, low = -1 reaches 2.

    The state is what W has gained since its start and, if chunks are longer than one token, the
    sum of the steps of the current chunk and the place in it.

    Sun et al. 2024 (arXiv:2407.04620), with unit norms and the learning rate of a chunk shared
    among its tokens; without rotary embedding and convolution.
    """

    packs = True

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        chunk: int = 16,
        inner_norm: bool = True,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        if chunk < 1:
            raise ValueError(f"chunk={chunk} must be at least 1, which is the online rule")
        self.eigen_range = EigenRange.of(eigen_range)
        self.num_heads, self.chunk, self.inner_norm = num_heads, chunk, inner_norm
        self.head_dim = heads_dividing(d_model, num_heads)
        if backend != "auto" and not self._is_delta_rule:
            raise ValueError(
                f"backend={backend!r} is for chunk=1 with inner_norm=False, the delta rule; the "
                "other forms of TTTLinear are plain tensor code: leave it out"
            )
        self.backend: ops.Backend = backend
        self.qkv_proj = linear(d_model, 3 * d_model)
        self.rate_proj = linear(d_model, num_heads)
        self.start = nn.Parameter(torch.empty(num_heads, self.head_dim, self.head_dim))
        sizes = (num_heads, 1, self.head_dim)
        self.norm_weight = nn.Parameter(torch.empty(sizes)) if inner_norm else None
        self.norm_bias = nn.Parameter(torch.empty(sizes)) if inner_norm else None
        self.out_proj = linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for proj in (self.qkv_proj, self.rate_proj, self.out_proj):
            reset_linear(proj, generator)
        init.normal_(self.start, std=START_STD, generator=generator)
        if self.norm_weight is not None and self.norm_bias is not None:
            init.ones_(self.norm_weight)
            init.zeros_(self.norm_bias)

    @property
    def _is_delta_rule(self) -> bool:
        return self.chunk == 1 and not self.inner_norm

    @property
    def state_size(self) -> int:
        matrices = 1 if self.chunk == 1 else 2
        return matrices * self.num_heads * self.head_dim**2

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("recurrent",) if self.chunk == 1 else ("recurrent", "update", "place")

    def folds(self) -> list[Fold]:
        return [Fold(None, (self.qkv_proj, self.rate_proj))]

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        inputs = self._inputs(x)
        with without_autocast(x.device.type):
            if self._is_delta_rule:
                y, state = self._by_delta_rule(inputs, state, packing)
            elif packing is None:
                sizes = torch.full(x.shape[:1], x.shape[1], device=x.device)
                y, state = self._by_chunks(inputs, self._progress(inputs, state), sizes)
            else:
                y, state = self._by_chunks_of_each(inputs, state, packing)
        y = merge_heads(at_times(y, read_at)).to(x.dtype)
        return self.out_proj(y), state

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        if self.inner_norm:
            not_linear("TTTLinear with inner_norm=True")
        if self.chunk > 1:
            raise ValueError(
                f"TTTLinear with chunk={self.chunk} has no transitions: a token's step depends on "
                "the state at the start of its chunk, not on the last one; chunk=1 has them"
            )
        inputs = self._inputs(x)
        return HouseholderTransitions(
            k=inputs.k[:, :, None],
            v=self._missing(inputs)[:, :, None],
            beta=inputs.rate[:, :, None],
        )

    def _inputs(self, x: Float[Tensor, "batch time d_model"]) -> _Inputs:
        parts = self.qkv_proj(x).chunk(3, dim=-1)
        q, k, v = (split_heads(wide(part), self.num_heads) for part in parts)
        q, k = ops.unit_vector(q), ops.unit_vector(k)
        rate = self.eigen_range.beta(torch.sigmoid(wide(self.rate_proj(x)))) / self.chunk
        return _Inputs(q, k, v - k, rate)

    # -- the online rule without norm ------------------------------------------------------------

    def _missing(self, inputs: _Inputs) -> Float[Tensor, "batch time heads dim"]:
        """What the start weights leave to be learnt: the values for a state that starts at zero."""
        return inputs.target - torch.einsum("bthk,hkv->bthv", inputs.k, wide(self.start))

    def _by_delta_rule(
        self, inputs: _Inputs, state: LayerState | None, packing: ops.Packing | None
    ) -> tuple[Tensor, LayerState]:
        y, gained = ops.delta_rule(
            inputs.q,
            inputs.k,
            self._missing(inputs),
            inputs.rate,
            normalize=False,
            initial_state=None if state is None else state["recurrent"],
            cu_seqlens=packing,
            backend=self.backend,
        )
        y = y + torch.einsum("bthk,hkv->bthv", inputs.q, wide(self.start))
        return inputs.q + y, {"recurrent": gained}

    # -- everything else -------------------------------------------------------------------------

    def _progress(self, inputs: _Inputs, state: LayerState | None) -> _Progress:
        if state is not None and self.chunk > 1:
            return _Progress(state["recurrent"], state["update"], state["place"])
        rows, dim = len(inputs.q), self.head_dim
        zero = inputs.q.new_zeros(rows, self.num_heads, dim, dim)
        place = torch.zeros(rows, dtype=torch.int64, device=zero.device)
        return _Progress(zero if state is None else state["recurrent"], zero, place)

    def _by_chunks(
        self, inputs: _Inputs, before: _Progress, sizes: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch time heads dim"], LayerState]:
        """Chunk by chunk; a row begins at its place in the first chunk and has `sizes` tokens."""
        time, chunk = inputs.q.shape[1], self.chunk
        count = (time + 2 * chunk - 2) // chunk  # enough for a row that begins at the last place
        slots = before.place[:, None] + torch.arange(time, device=sizes.device)
        real = torch.arange(time, device=sizes.device) < sizes[:, None]
        rate = torch.where(real[..., None], inputs.rate, 0.0)
        q, k, target = (
            _spread(part, slots, count, chunk).unbind(1)
            for part in (inputs.q, inputs.k, inputs.target)
        )
        rates = _spread(rate[..., None], slots, count, chunk).unbind(1)
        gained, update, start = before.gained, before.update, wide(self.start)
        last_chunk = ((before.place + sizes) // chunk)[:, None, None, None]
        end, end_update = torch.zeros_like(gained), torch.zeros_like(update)
        read = []
        for i in range(count):
            weights = start + gained
            step = rates[i] * self._gradient(k[i] @ weights, target[i])
            seen = (q[i] @ k[i].transpose(-1, -2)).tril()
            read.append(self._normed(q[i] @ (weights + update) - seen @ step))
            update = update - k[i].transpose(-1, -2) @ step
            end = torch.where(last_chunk == i, gained, end)
            end_update = torch.where(last_chunk == i, update, end_update)
            gained, update = gained + update, torch.zeros_like(update)
        end = torch.where(last_chunk == count, gained, end)
        y = torch.stack(read, dim=1).transpose(2, 3).flatten(1, 2)  # [batch slots heads dim]
        y = inputs.q + at_times(y, slots)
        if chunk == 1:
            return y, {"recurrent": end}
        place = (before.place + sizes) % chunk
        return y, {"recurrent": end, "update": end_update, "place": place}

    def _by_chunks_of_each(
        self, inputs: _Inputs, state: LayerState | None, packing: ops.Packing
    ) -> tuple[Float[Tensor, "batch time heads dim"], LayerState]:
        """Packed sequences in rows of their own, filled up with tokens that teach nothing."""
        offsets, longest = packing.offsets.long(), packing.longest
        batch, time = inputs.q.shape[:2]
        first, sizes = offsets[:, :-1], offsets.diff(dim=1)
        places = torch.arange(longest, device=offsets.device)
        tokens = (first[..., None] + places).clamp(max=time - 1).flatten(1)
        rows = _Inputs(*(_rows(at_times(part, tokens), longest) for part in inputs))
        y, state = self._by_chunks(rows, self._progress(rows, state), sizes.flatten())
        times = torch.arange(time, device=offsets.device).expand(batch, -1).contiguous()
        sequence = torch.searchsorted(offsets[:, 1:].contiguous(), times, right=True)
        back = sequence * longest + times - first.gather(1, sequence)
        return at_times(y.unflatten(0, (batch, -1)).flatten(1, 2), back), state

    def _normed(self, z: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
        if self.norm_weight is None or self.norm_bias is None:
            return z
        return wide(self.norm_weight) * self._unit(z)[0] + wide(self.norm_bias)

    def _gradient(
        self, z: Float[Tensor, "*shape dim"], target: Float[Tensor, "*shape dim"]
    ) -> Float[Tensor, "*shape dim"]:
        """That of ½‖LN(z) - target‖² with respect to z."""
        if self.norm_weight is None or self.norm_bias is None:
            return z - target
        unit, scale = self._unit(z)
        weight = wide(self.norm_weight)
        error = weight * (weight * unit + wide(self.norm_bias) - target)
        along = (error * unit).mean(-1, keepdim=True)
        return scale * (error - error.mean(-1, keepdim=True) - unit * along)

    def _unit(self, z: Float[Tensor, "*shape dim"]) -> tuple[Tensor, Tensor]:
        """z with mean 0 and variance 1, and what it was scaled by."""
        centred = z - z.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + NORM_EPS)
        return centred * scale, scale


def _spread(
    x: Float[Tensor, "batch time heads dim"],
    slots: Int[Tensor, "batch time"],
    count: int,
    chunk: int,
) -> Float[Tensor, "batch count heads chunk dim"]:
    """Every token in its slot of a row of chunks, and zeros in the others."""
    batch, _, heads, dim = x.shape
    grid = x.new_zeros(batch, count * chunk, heads, dim)
    grid = grid.scatter(1, slots[..., None, None].expand_as(x), x)
    return grid.unflatten(1, (count, chunk)).transpose(2, 3)


def _rows(x: Float[Tensor, "batch tokens *rest"], size: int) -> Float[Tensor, "rows size *rest"]:
    return x.unflatten(1, (-1, size)).flatten(0, 1)
