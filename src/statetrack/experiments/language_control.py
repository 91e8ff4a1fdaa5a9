"""The sign alone: a trained model with the β or the gates of [-1, 1] that may not go below 0.

With [-1, 1] DeltaNet has β = 2σ(x) instead of σ(x). So it may reflect, but it also begins at β = 1
instead of 0.5 and moves twice as fast. `CappedDeltaNet` is trained with the latter without the
former, and so is `CappedGatedDeltaNet`. `never_negative` takes the sign from a model that was
trained with it. Likewise the gates of GLA, Mamba2 and mLSTM are 2s - 1 instead of s, and
`CappedGLA` is the control of the first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from statetrack.eigenvalues import CappedRange
from statetrack.layers import GLA, MLSTM, Mamba2
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.registry import get

__all__ = ["can_be_negative", "never_negative"]

KNOWN = (DeltaFamily, GLA, Mamba2, MLSTM)
"""Layers whose eigenvalues come from their `eigen_range` alone, wherever they run."""


def can_be_negative(config: Any) -> bool:
    """Whether `never_negative` has something to take from the models of a run's `config`.

    With a layer that is not `KNOWN` and has a range below 0 it is False.
    """
    below = [
        mixer
        for mixer in config.model.backbone.mixers
        if (mixer.options.get("eigen_range") or (0.0, 1.0))[0] < 0
    ]
    return bool(below) and all(issubclass(get(mixer.layer), KNOWN) for mixer in below)


@contextmanager
def never_negative(model: nn.Module) -> Iterator[None]:
    """Inside, β stops at 1 and a gate at 0 in every `KNOWN` layer; behind it all is as it was."""
    layers = [layer for layer in model.modules() if isinstance(layer, KNOWN)]
    if not layers:
        raise ValueError(
            "the model has no layer whose sign can be taken: DeltaNet, GatedDeltaNet, "
            "DeltaProduct, GLA, Mamba2 or MLSTM"
        )
    before = [layer.eigen_range for layer in layers]
    try:
        for layer, known in zip(layers, before, strict=True):
            layer.eigen_range = CappedRange(**vars(known))
        yield
    finally:
        for layer, known in zip(layers, before, strict=True):
            layer.eigen_range = known
