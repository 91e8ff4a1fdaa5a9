"""A control for Gated DeltaNet with [-1, 1]: the same β, but never an eigenvalue below 0."""

from statetrack.eigenvalues import CappedRange
from statetrack.layers.gated_delta_net import GatedDeltaNet

__all__ = ["CappedGatedDeltaNet"]


class CappedGatedDeltaNet(GatedDeltaNet):
    """Gated DeltaNet with β = min(2σ(W x), 1), as `CappedDeltaNet` is to DeltaNet.

    It has the start and speed of [-1, 1], but eigenvalues in [0, 1]. Its weights are those of Gated
    DeltaNet, drawn alike. The language study trains it.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
    ) -> None:
        super().__init__(
            d_model,
            num_heads,
            eigen_range=(-1.0, 1.0),
            head_dim=head_dim,
            value_dim=value_dim,
        )
        self.eigen_range = CappedRange(-1.0)
