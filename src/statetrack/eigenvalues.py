"""The eigenvalue range of a layer, and the maps from unit gates to eigenvalues.

This is the only file that knows about ranges. A layer makes a number s in [0, 1] (a sigmoid, an
exponential) and asks its range for the eigenvalue; the ops take any eigenvalue and never ask.

    diagonal families            a = low + (1 - low)·s          in [low, 1]
    generalized Householder      β = (1 - low)·s,  1 - β        in [low, 1]
    complex diagonal             λ = (1 + low)/2 + (1 - low)/2·z, |z| <= 1

`low = 0` is the usual range [0, 1]. `low = -1` reaches reflections: with it a linear RNN can
compute the parity of a bit string, with `low = 0` it cannot.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from statetrack._typing import Float, Inexact

__all__ = ["CappedRange", "EigenRange"]


@dataclass(frozen=True)
class EigenRange:
    """The closed interval [low, 1] that a layer's eigenvalues may reach, with -1 <= low < 1.

    `stretch` and `start` are about β alone: see there.

    >>> EigenRange.of((-1.0, 1.0)).decay(torch.tensor([0.0, 0.5, 1.0]))
    tensor([-1.,  0.,  1.])
    """

    low: float = -1.0
    stretch: float = 0.0
    start: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.stretch < math.inf:
            raise ValueError(f"a stretch of {self.stretch} must be at least 0 and finite")
        if not -1.0 <= self.low < 1.0:
            raise ValueError(
                f"eigen_range starts at {self.low}: the lower end must be at least -1 and below 1"
            )
        if self.start is not None and not 0.0 < self.start < self.width:
            raise ValueError(
                f"a start of β at {self.start} must be above 0 and below {self.width:g}, the most "
                "that β reaches; None is the middle"
            )

    @classmethod
    def of(cls, eigen_range: Any) -> "EigenRange":
        """The range written as a pair `(low, 1.0)`; anything else is refused."""
        ends = tuple(eigen_range) if isinstance(eigen_range, tuple | list) else ()
        if len(ends) != 2 or not all(isinstance(end, Real) for end in ends):
            raise ValueError(
                f"eigen_range={eigen_range!r} is not a pair of numbers; write for example "
                "(-1.0, 1.0) or (0.0, 1.0)"
            )
        low, high = float(ends[0]), float(ends[1])
        if not -1.0 <= low < high <= 1.0:
            raise ValueError(
                f"eigen_range={eigen_range!r} must satisfy -1 <= low < high <= 1: "
                "write for example (-1.0, 1.0) or (0.0, 1.0)"
            )
        if high != 1.0:
            raise ValueError(
                f"eigen_range={eigen_range!r} must end at 1.0: an eigenvalue of 1 is how a layer "
                f"keeps what it stored; write ({low}, 1.0)"
            )
        return cls(low)

    @property
    def width(self) -> float:
        """1 - low: 1 for the usual range, 2 for the extended one."""
        return 1.0 - self.low

    @property
    def pair(self) -> tuple[float, float]:
        """The range as layers and configs write it."""
        return (self.low, 1.0)

    def decay(
        self, unit: Float[Tensor, "*shape"], share: Tensor | None = None
    ) -> Float[Tensor, "*shape"]:
        """a = low + (1 - low)·s, the eigenvalues of a diagonal transition; `unit` is s in [0, 1].

        `share` in [-1, 1] has the lower end at share·low instead: 0 is the range [0, 1].
        """
        if share is None:
            return self.low + self.width * unit
        low = self.low * share
        return low + (1.0 - low) * unit

    def disc(self, unit: Inexact[Tensor, "*shape"]) -> Inexact[Tensor, "*shape"]:
        """c + r z: the unit disc moved to the one that has [low, 1] as its diameter."""
        return (1 + self.low) / 2 + self.width / 2 * unit

    def beta(
        self, unit: Float[Tensor, "*shape"], share: Tensor | None = None
    ) -> Float[Tensor, "*shape"]:
        """β = (1 - low)·s, so that I - β k kᵀ with ‖k‖ = 1 has the eigenvalue 1 - β in [low, 1].

        `unit` is s in [0, 1]. `share` in [-1, 1] has the lower end at share·low instead: 0 is the
        range [0, 1].

        `start` is the β of σ = 1/2, where layers begin; None is the middle of the range. It moves
        σ(x) to σ(x + c), so that both ends stay where they are.

        >>> EigenRange(-1.0, start=0.5).beta(torch.tensor([0.0, 0.5, 0.75, 1.0]))
        tensor([0.0000, 0.5000, 1.0000, 2.0000])

        With e = `stretch` above 0, s is clip((1 + 2e)·σ - e, 0, 1) of the σ given as `unit`. A
        sigmoid only comes near 0 and 1; this s is 0 where σ <= e / (1 + 2e), and 1 as far below 1,
        at finite weights. There it has no gradient.

        >>> EigenRange(-1.0, stretch=1.0).beta(torch.tensor([0.25, 0.5, 0.625, 0.75]))
        tensor([0.0000, 1.0000, 1.7500, 2.0000])
        """
        if self.start is not None:
            begins = (self.start / self.width + self.stretch) / (1 + 2 * self.stretch)
            unit = unit / (unit + (1 - begins) / begins * (1 - unit))
        if self.stretch:
            unit = ((1 + 2 * self.stretch) * unit - self.stretch).clamp(0.0, 1.0)
        return (self.width if share is None else 1.0 - self.low * share) * unit

    def squash(self, z: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """A smooth map from any `z` onto [low, 1]: sigmoid for low = 0, tanh for low = -1."""
        return self.decay(torch.sigmoid(self.width * z))

    def removal(
        self, decay: Float[Tensor, "*shape"], unit: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape"]:
        """a = (w - low)·s, which keeps the spectrum of Diag(w) - κ (a∘κ)ᵀ, ‖κ‖ = 1, in [low, 1].

        `decay` is w, and `unit` is s in [0, 1].
        """
        return (decay - self.low) * unit


@dataclass(frozen=True)
class CappedRange(EigenRange):
    """As [low, 1], with its `stretch` and `start`, but β stops at 1 and a decay at 0.

    >>> CappedRange(-1.0).beta(torch.tensor([0.0, 0.25, 0.5, 1.0]))
    tensor([0.0000, 0.5000, 1.0000, 1.0000])
    >>> CappedRange(-1.0).decay(torch.tensor([0.0, 0.5, 0.75, 1.0]))
    tensor([0.0000, 0.0000, 0.5000, 1.0000])
    """

    def decay(
        self, unit: Float[Tensor, "*shape"], share: Tensor | None = None
    ) -> Float[Tensor, "*shape"]:
        return super().decay(unit, share).clamp(min=0.0)

    def beta(
        self, unit: Float[Tensor, "*shape"], share: Tensor | None = None
    ) -> Float[Tensor, "*shape"]:
        return super().beta(unit, share).clamp(max=1.0)
