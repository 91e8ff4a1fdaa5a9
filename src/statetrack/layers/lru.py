"""The linear recurrent unit: complex eigenvalues that do not depend on the input."""

import math

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Inexact, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import at_times, expect_sizes, linear, wide
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import RotationTransitions, Transitions

__all__ = ["LRU"]


class LRU(Layer):
    """h_t = λ ∘ h_{t-1} + γ ∘ (B x_t) with complex h, and y = Re(C h) + D ∘ x.

    λ = exp(-e^ν + i e^θ) are learnt numbers in the unit disc, `state_dim` of them (d_model where
    left out). They start on the ring between the radii `r_min` and `r_max`, at angles below
    `max_phase`. γ is learnt too and starts at √(1 - |λ|²), which makes h as large as its input.

    The λ are the same for every token: they count time modulo m, but not how often a token came
    modulo m, which parity asks for. `eigen_range` is about the disc they lie in. λ is moved to the
    disc that has [low, 1] as its diameter, c + r λ with c its centre and r its radius. (-1, 1) is
    the unit disc and the layer of the paper; with (0, 1) no λ has a negative real part.

    The state holds real and imaginary parts, [batch, state_dim, 2, 1]: each number is a head whose
    transition is a rotation of the plane, scaled.

    Orvieto et al. 2023 (arXiv:2303.06349), without the block around it.
    """

    packs = True
    splits = True

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        state_dim: int | None = None,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self.eigen_range = EigenRange.of(eigen_range)
        expect_sizes(state_dim=state_dim)
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(
                f"r_min={r_min} and r_max={r_max} must satisfy 0 <= r_min < r_max <= 1"
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase={max_phase} must be above 0 and at most 2π")
        self.state_dim = d_model if state_dim is None else state_dim
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        self.backend: ops.Backend = backend
        self.in_proj = linear(d_model, 2 * self.state_dim)  # real parts, then imaginary parts
        self.nu_log = nn.Parameter(torch.empty(self.state_dim))
        self.theta_log = nn.Parameter(torch.empty(self.state_dim))
        self.gamma_log = nn.Parameter(torch.empty(self.state_dim))
        self.D = nn.Parameter(torch.empty(d_model))
        self.out_proj = linear(2 * self.state_dim, d_model)  # Re C, then -Im C
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """λ uniform on the ring, the maps normal with the variances of the paper."""
        init.normal_(self.in_proj.weight, std=(2 * self.d_model) ** -0.5, generator=generator)
        init.normal_(self.out_proj.weight, std=self.state_dim**-0.5, generator=generator)
        init.normal_(self.D, generator=generator)
        limits = torch.finfo(self.nu_log.dtype)
        with torch.no_grad():
            area = self.nu_log.uniform_(self.r_min**2, self.r_max**2, generator=generator)
            area = area.clamp(limits.tiny, 1 - limits.eps)  # both ends have no logarithm
            self.nu_log.copy_(torch.log(-0.5 * torch.log(area)))
            self.theta_log.uniform_(0.0, self.max_phase, generator=generator)
            self.theta_log.clamp_(min=limits.tiny).log_()
            room = (1 - self._eigenvalues().abs().square()).clamp(min=limits.eps)
            self.gamma_log.copy_(0.5 * torch.log(room))

    @property
    def state_size(self) -> int:
        return 2 * self.state_dim

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        inputs = self._inputs(x)
        decay = self._eigenvalues().to(inputs.dtype).expand_as(inputs)
        start = None if state is None else _complex(state["recurrent"].squeeze(-1))
        states, last = ops.diagonal_scan(
            decay, inputs, start, cu_seqlens=packing, backend=self.backend
        )
        parts = torch.cat([states.real, states.imag], dim=-1).to(x.dtype)
        y = self.out_proj(at_times(parts, read_at)) + self.D.to(x.dtype) * at_times(x, read_at)
        return y, {"recurrent": torch.view_as_real(last)[..., None]}

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        inputs = self._inputs(x)
        return RotationTransitions(self._eigenvalues().expand_as(inputs), inputs)

    def _eigenvalues(self) -> Inexact[Tensor, "state"]:
        """λ, complex."""
        radius, angle = torch.exp(-torch.exp(wide(self.nu_log))), torch.exp(wide(self.theta_log))
        return self.eigen_range.disc(torch.complex(radius * angle.cos(), radius * angle.sin()))

    def _inputs(self, x: Tensor) -> Inexact[Tensor, "batch time state"]:
        """γ ∘ (B x), complex."""
        parts = wide(self.in_proj(x)).unflatten(-1, (2, self.state_dim))
        scaled = torch.exp(wide(self.gamma_log)) * parts
        return torch.complex(scaled[..., 0, :], scaled[..., 1, :])


def _complex(pairs: Float[Tensor, "*shape two"]) -> Inexact[Tensor, "*shape"]:
    return torch.complex(pairs[..., 0], pairs[..., 1])
