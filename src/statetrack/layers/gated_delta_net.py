"""Gated DeltaNet: A(x) = a (I - β k kᵀ), a forget gate times a generalized Householder matrix."""

from statetrack import ops
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.placement import Device, Dtype, placed

__all__ = ["GatedDeltaNet"]


class GatedDeltaNet(DeltaFamily):
    """DeltaNet with a forget gate per head and an output gate.

    H_t = a (I - β k kᵀ) H_{t-1} + β k vᵀ with a = exp(-e^{A} softplus(W x + b)) in (0, 1) and
    β = (1 - low)·σ(W x): the eigenvalues are a and a(1 - β), within [low, 1].
    The output is RMSNorm(Hᵀ q) · SiLU(W x), projected back; `output_gate=False` leaves the last
    factor out. The other options are those of `DeltaNet`.

    Yang et al. 2024 (arXiv:2412.06464).
    """

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_value_heads: int | None = None,
        output_gate: bool = True,
        conv_size: int = 4,
        qk_eps: float = 0.0,
        norm_eps: float = 1e-6,
        learn_range: bool = False,
        beta_stretch: float = 0.0,
        beta_start: float | None = None,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(
            d_model,
            num_heads,
            eigen_range=eigen_range,
            head_dim=head_dim,
            value_dim=value_dim,
            num_value_heads=num_value_heads,
            num_householders=1,
            forget_gate=True,
            output_gate=output_gate,
            conv_size=conv_size,
            qk_silu=True,
            qk_eps=qk_eps,
            norm_eps=norm_eps,
            learn_range=learn_range,
            beta_stretch=beta_stretch,
            beta_start=beta_start,
            backend=backend,
        )
