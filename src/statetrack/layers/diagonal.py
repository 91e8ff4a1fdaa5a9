"""The simplest model that shows the point: a diagonal recurrence (the paper's figure 1)."""

import torch
from torch import Tensor
from torch.nn.functional import linear as linear_map

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import at_times, linear, reset_linear
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import DiagonalTransitions, Transitions

__all__ = ["Diagonal"]

GATE_GAIN = 10.0  # lets a gate saturate within a few thousand training steps


class Diagonal(Layer):
    """h_t = f(10 W x + b) ∘ h_{t-1} + (W' x + b') ∘ x, and y = h.

    f is the sigmoid for eigen_range (0, 1) and tanh for (-1, 1).
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = EigenRange.of(eigen_range)
        self.backend: ops.Backend = backend
        self.decay_proj = linear(d_model, d_model, bias=True)
        self.input_proj = linear(d_model, d_model, bias=True)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        reset_linear(self.decay_proj, generator)
        reset_linear(self.input_proj, generator)

    @property
    def state_size(self) -> int:
        return self.decay_proj.out_features

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        decay, inputs = self._inputs(x)
        start = None if state is None else state["recurrent"].flatten(1)
        states, last = ops.diagonal_scan(
            decay, inputs, start, cu_seqlens=packing, backend=self.backend
        )
        return at_times(states, read_at).to(x.dtype), {"recurrent": last[:, None, :, None]}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        decay, inputs = self._inputs(x)
        one = torch.ones_like(inputs[:, :, None, :1])
        return DiagonalTransitions(decay=decay[:, :, None], k=inputs[:, :, None], v=one)

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = GATE_GAIN * linear_map(x, self.decay_proj.weight) + self.decay_proj.bias
        return self.eigen_range.squash(gate), self.input_proj(x) * x
