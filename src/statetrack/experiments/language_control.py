"""The sign alone: a trained model with β = 2σ(x), as with [-1, 1], that may not go below 0.

With [-1, 1] DeltaNet has β = 2σ(x) instead of σ(x). So it may reflect, but it also begins at β = 1
instead of 0.5 and moves twice as fast. `CappedDeltaNet` is trained with the latter without the
former. `never_negative` takes the sign from a model that was trained with it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from statetrack.eigenvalues import CappedRange
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.registry import get

__all__ = ["can_be_negative", "never_negative"]


def can_be_negative(config: Any) -> bool:
    """Whether `never_negative` has something to take from the models of a run's `config`.

    Layers of DeltaNet's family alone are known; of another with a range below 0 it is False.
    """
    below = [
        mixer
        for mixer in config.model.backbone.mixers
        if (mixer.options.get("eigen_range") or (0.0, 1.0))[0] < 0
    ]
    return bool(below) and all(issubclass(get(mixer.layer), DeltaFamily) for mixer in below)


@contextmanager
def never_negative(model: nn.Module) -> Iterator[None]:
    """Inside, β stops at 1 in every layer of DeltaNet's family; behind it all is as it was."""
    layers = [layer for layer in model.modules() if isinstance(layer, DeltaFamily)]
    if not layers:
        raise ValueError("the model has no layer with a β: DeltaNet, GatedDeltaNet or DeltaProduct")
    before = [layer.eigen_range for layer in layers]
    try:
        for layer in layers:
            layer.eigen_range = CappedRange(layer.eigen_range.low, layer.eigen_range.stretch)
        yield
    finally:
        for layer, known in zip(layers, before, strict=True):
            layer.eigen_range = known
