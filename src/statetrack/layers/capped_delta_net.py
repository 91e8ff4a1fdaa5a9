"""A control for DeltaNet with [-1, 1]: the same β, but never an eigenvalue below 0."""

from statetrack.eigenvalues import CappedRange
from statetrack.layers.delta_net import DeltaNet

__all__ = ["CappedDeltaNet"]


class CappedDeltaNet(DeltaNet):
    """DeltaNet with β = min(2σ(W x), 1): the start and speed of [-1, 1], but eigenvalues in [0, 1].

    With [-1, 1] DeltaNet has β = 2σ(W x) instead of σ(W x). So it may reflect, but it also begins
    at β = 1 instead of 0.5 and moves twice as fast: this layer has the latter without the former.
    Its weights are those of DeltaNet, drawn alike. The language study trains it.
    """

    def __init__(self, d_model: int, num_heads: int = 4) -> None:
        super().__init__(d_model, num_heads, eigen_range=(-1.0, 1.0))
        self.eigen_range = CappedRange(-1.0)
