"""DeltaProduct: A(x) is a product of n generalized Householder matrices."""

from statetrack import ops
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.placement import Device, Dtype, placed

__all__ = ["DeltaProduct"]


class DeltaProduct(DeltaFamily):
    """n delta-rule steps per token: A(x) = a · Π_j (I - β_j k_j k_jᵀ), each 1 - β_j in [low, 1].

    With low = -1, n = 2 reaches every rotation of a plane and n = dim every orthogonal matrix, so
    one layer can follow group actions that DeltaNet (n = 1) cannot; n is `num_householders`. Each
    step has its own k, v, β. The forget gate a (`forget_gate=True`) acts once per token, before the
    first step; with it and `output_gate=True` this is Gated DeltaProduct. The other options are
    those of `DeltaNet`.

    Siems et al. 2025 (arXiv:2502.10297).
    """

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        num_householders: int = 2,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_value_heads: int | None = None,
        forget_gate: bool = False,
        output_gate: bool = False,
        conv_size: int = 4,
        qk_silu: bool = True,
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
            num_householders=num_householders,
            forget_gate=forget_gate,
            output_gate=output_gate,
            conv_size=conv_size,
            qk_silu=qk_silu,
            qk_eps=qk_eps,
            norm_eps=norm_eps,
            learn_range=learn_range,
            beta_stretch=beta_stretch,
            beta_start=beta_start,
            backend=backend,
        )
