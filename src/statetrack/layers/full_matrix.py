"""A free matrix per token: the most a linear RNN could do, at a cost nobody pays in practice."""

import torch
from torch import Tensor
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import at_times, expect_sizes, linear, reset_linear
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import DenseTransitions, Transitions
from statetrack.ops.packing import from_rows, in_rows

__all__ = ["FullMatrix"]

WINDOW = 16
"""Tokens between two looks at the state's size: a factor of 60 a token overflows nothing."""


class FullMatrix(Layer):
    """H_t = A(x_t) H_{t-1} from H_0 = I, with A(x) = I + W x any n × n matrix, n = `state_dim`.

    The read-out is linear in H / ‖H‖, so that a state that grows or shrinks keeps its meaning. The
    state handed on is H up to a power of 2³²: over many tokens H itself is too large for a float.

    `eigen_range=None` is the paper's baseline: nothing bounds A, and its norm drifts. A range puts
    A in the disc that has [low, 1] as its diameter, A = c I + r M / max(1, √(‖M‖₁ ‖M‖∞)) with c its
    centre and r its radius: eigenvalues stay in that disc, and every permutation matrix is
    reached when low = -1.
    """

    packs = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: tuple[float, float] | None = (-1.0, 1.0),
        state_dim: int = 32,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = None if eigen_range is None else EigenRange.of(eigen_range)
        expect_sizes(state_dim=state_dim)
        self.state_dim = state_dim
        self.backend: ops.Backend = backend
        self.matrix_proj = linear(d_model, state_dim**2)
        self.out_proj = linear(state_dim**2, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        # small steps away from the identity, so that long products neither explode nor vanish
        std = 0.1 / (self.matrix_proj.in_features * self.state_dim) ** 0.5
        init.normal_(self.matrix_proj.weight, std=std, generator=generator)
        reset_linear(self.out_proj, generator)

    @property
    def state_size(self) -> int:
        return self.state_dim**2

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        matrix = self._matrix(x)
        if packing is not None:
            matrix = in_rows(matrix, packing)
        if state is None:
            eye = torch.eye(self.state_dim, dtype=matrix.dtype, device=x.device)
            start = eye.expand(matrix.shape[0], -1, -1)
        else:
            start = state["recurrent"].squeeze(1)
        windows, ends = [], start
        for i, part in enumerate(matrix.split(WINDOW, dim=1)):
            states, last = ops.matrix_scan(part, start, backend=self.backend)
            windows.append(_direction(states.flatten(2)))
            start = _rescaled(last)
            if packing is not None:  # some sequences end in this window
                size = packing.offsets.diff(dim=1).flatten() - i * WINDOW
                end = (size - 1).clamp(0, part.shape[1] - 1)
                ended = _rescaled(at_times(states, end[:, None].long())[:, 0])
                here = (size > 0) & (size <= WINDOW)
                ends = torch.where(here[:, None, None], ended, ends)
        direction = torch.cat(windows, dim=1)
        if packing is not None:
            direction, start = from_rows(direction, packing, x.shape[1]), ends
        y = self.out_proj(at_times(direction, read_at).to(x.dtype))
        return y, {"recurrent": start.unsqueeze(1)}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return DenseTransitions(matrix=self._matrix(x).unsqueeze(2), columns=self.state_dim)

    def _matrix(
        self, x: Float[Tensor, "batch time d_model"]
    ) -> Float[Tensor, "batch time state state"]:
        raw = self.matrix_proj(x).unflatten(-1, (self.state_dim, self.state_dim))
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        eye = torch.eye(self.state_dim, dtype=raw.dtype, device=x.device)
        if self.eigen_range is None:
            return eye + raw
        free = eye + raw
        bound = (free.abs().sum(-1).amax(-1) * free.abs().sum(-2).amax(-1)).sqrt()
        inside = free / bound.clamp(min=1.0)[..., None, None]
        centre, radius = (1 + self.eigen_range.low) / 2, self.eigen_range.width / 2
        return centre * eye + radius * inside


def _direction(states: Float[Tensor, "batch time size"]) -> Float[Tensor, "batch time size"]:
    """Each state over its norm, whose square need not be a float."""
    states = states * _size(states, dim=-1).reciprocal()
    return states * states.norm(dim=-1, keepdim=True).clamp(min=1e-12).reciprocal()


def _rescaled(state: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """The state up to a power of 2³², within reach of 1."""
    return state / _power(_size(state, dim=(1, 2)))


def _size(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    return x.detach().abs().amax(dim, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def _power(size: Tensor) -> Tensor:
    """`size` rounded towards 1 to a power of 2³², by which one may divide without loss."""
    return torch.exp2(32 * torch.trunc(torch.log2(size) / 32))
