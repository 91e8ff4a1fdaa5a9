"""A control for GLA with [-1, 1]: the same gates, but never one below 0."""

from statetrack.eigenvalues import CappedRange
from statetrack.layers.gla import GLA

__all__ = ["CappedGLA"]


class CappedGLA(GLA):
    """GLA with gates max(2s - 1, 0): the start and speed of [-1, 1], but eigenvalues in [0, 1].

    With [-1, 1] the gates of GLA are 2s - 1 instead of s. So they may be negative, but they also
    begin at 0.91 instead of 0.96 and move twice as fast: this layer has the latter without the
    former. Its weights are those of GLA, drawn alike. The language study trains it.
    """

    def __init__(self, d_model: int, num_heads: int = 4) -> None:
        super().__init__(d_model, num_heads, eigen_range=(-1.0, 1.0))
        self.eigen_range = CappedRange(-1.0)
