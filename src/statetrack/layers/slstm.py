"""sLSTM: a memory with recurrent, non-linear gates. It tracks state, one token at a time."""

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import (
    HeadNorm,
    at_times,
    heads_dividing,
    merge_heads,
    refuse_eigen_range,
    split_heads,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import Transitions, not_linear

__all__ = ["SLSTM"]


class SLSTM(Layer):
    """Gates z, i, f, o from x and from the last output h, both block-diagonal by head.

    c_t = f c_{t-1} + i tanh(z), n_t = f n_{t-1} + i, h = σ(o) c / n, normalised per head.
    `depth` in [0, 1] is the layer's place in its stack, 0 for the first and 1 for the last: it
    spreads the initial forget gates.

    Beck et al. 2024 (arXiv:2405.04517), without the convolution.
    """

    packs = True

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: object = None,
        depth: float = 0.0,
        norm_eps: float = 1e-5,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        refuse_eigen_range("SLSTM", eigen_range)
        self.num_heads = num_heads
        self.head_dim = heads_dividing(d_model, num_heads)
        self.depth = depth
        self.backend: ops.Backend = backend
        shape = (4, num_heads, self.head_dim, self.head_dim)
        self.W = nn.Parameter(torch.empty(shape))
        self.R = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(4, num_heads, self.head_dim))
        self.norm = HeadNorm(num_heads, self.head_dim, eps=norm_eps)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        std = (2 / (5 * self.head_dim)) ** 0.5
        init.normal_(self.W, std=std, generator=generator)
        init.zeros_(self.R)
        init.zeros_(self.bias)
        place = torch.linspace(0.0, 1.0, self.head_dim)
        with torch.no_grad():  # forget gates from nearly open to nearly closed along each head
            self.bias[2] = 5.0 - 12.0 * place ** (0.3 + 1.3 * self.depth)
        self.norm.reset_parameters()

    @property
    def state_size(self) -> int:
        return 4 * self.num_heads * self.head_dim

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        heads = split_heads(x, self.num_heads)
        gates = torch.einsum("bthd,ghde->btghe", heads, self.W.to(x.dtype)) + self.bias.to(x.dtype)
        start = None if state is None else state["recurrent"]
        h, last = ops.slstm_scan(gates, self.R, start, cu_seqlens=packing, backend=self.backend)
        return merge_heads(self.norm(at_times(h, read_at))).to(x.dtype), {"recurrent": last}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return not_linear("SLSTM")
