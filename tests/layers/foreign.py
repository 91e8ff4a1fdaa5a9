"""A layer as somebody else would write it: only what it must have."""

from typing import Any

import torch
from torch import Tensor, nn

from statetrack.layers import Layer


class Leaky(Layer):
    """h_t = rate·h_{t-1} + W x_t, and y = h."""

    def __init__(self, d_model: int, rate: float = 0.5) -> None:
        super().__init__(d_model)
        self.rate = rate
        self.proj = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)

    @property
    def state_size(self) -> int:
        return self.d_model

    def _mix(
        self, x: Tensor, state: dict[str, Tensor] | None, read_at: Any, packing: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = torch.zeros_like(x[:, 0]) if state is None else state["recurrent"]
        rows = []
        for inputs in self.proj(x).unbind(1):
            h = self.rate * h + inputs
            rows.append(h)
        return torch.stack(rows, dim=1), {"recurrent": h}
