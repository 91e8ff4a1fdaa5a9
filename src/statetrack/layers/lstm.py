"""The LSTM of 1997, for comparison: non-linear in its state, so it tracks state and is slow."""

import torch
from torch import Tensor

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import at_times, linear, refuse_eigen_range, reset_linear
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import Transitions, not_linear
from statetrack.ops.packing import from_rows, in_rows, last_of

__all__ = ["LSTM"]


class LSTM(Layer):
    """c_t = σ(f) c_{t-1} + σ(i) tanh(z), h_t = σ(o) tanh(c_t), gates from x_t and h_{t-1}.

    Written as a loop over time, because torch's own LSTM cannot be vmapped over parameters.
    """

    packs = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: object = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        refuse_eigen_range("LSTM", eigen_range)
        self.in_proj = linear(d_model, 4 * d_model, bias=True)
        self.recurrent_proj = linear(d_model, 4 * d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        reset_linear(self.in_proj, generator)
        reset_linear(self.recurrent_proj, generator)

    @property
    def state_size(self) -> int:
        return 2 * self.d_model

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        gates = self.in_proj(x)
        if packing is not None:
            gates = in_rows(gates, packing)
        if state is None:
            start = gates.new_zeros(len(gates), 2, self.d_model, dtype=x.dtype)
        else:
            start = state["recurrent"].to(x.dtype)
        c, h = start.unbind(1)
        cells, outputs = [], []
        for t in range(gates.shape[1]):
            i, f, z, o = (gates[:, t] + self.recurrent_proj(h)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
            h = torch.sigmoid(o) * torch.tanh(c)
            cells.append(c)
            outputs.append(h)
        y, last = torch.stack(outputs, dim=1), torch.stack([c, h], dim=1)
        if packing is not None:
            both = torch.stack([torch.stack(cells, dim=1), y], dim=2)
            both = from_rows(both, packing, x.shape[1])
            y, last = both[:, :, 1], last_of(both, start, packing)
        return at_times(y, read_at).to(x.dtype), {"recurrent": last}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return not_linear("LSTM")
