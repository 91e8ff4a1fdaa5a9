"""Runs in a few words."""

import itertools
from typing import Any

__all__ = ["eigen_range", "label", "model_label"]


def label(config: Any) -> str:
    """A run in a few words.

    >>> from statetrack.models import paper_config
    >>> from statetrack.training import RunConfig
    >>> model = paper_config("DeltaNet", vocab_size=3)
    >>> label(RunConfig(task="parity", model=model, steps=1, batch=1))
    'parity DeltaNet [-1, 1]'
    """
    given = config.start is not None and config.parent is None
    begun = f", from weights {config.start[:8]}" if given else ""
    return f"{config.subject} {model_label(config)}{begun}"


def model_label(config: Any, *, with_range: bool = True) -> str:
    """The layers, each with its eigenvalue range and number of Householder factors if it has them.

    However often they repeat, they are said once. `stretched` is one with a `beta_stretch`,
    `learnt` one with `learn_range`, and `start=0.5` one with that `beta_start`. A model that goes
    on from another run is told by what it does then: `then windows`, or `then more`.

    >>> from statetrack.models import BackboneConfig, TaggerConfig
    >>> from statetrack.training import RunConfig
    >>> backbone = BackboneConfig(mixers=["DeltaNet", "DeltaNet", "Attention"] * 8)
    >>> model = TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)
    >>> model_label(RunConfig(task="parity", model=model, steps=1, batch=1))
    'DeltaNet [-1, 1] x2 + Attention'
    """
    names = [_mixer_label(mixer, with_range) for mixer in config.model.backbone.mixers]
    period = next(n for n in range(1, len(names) + 1) if names == names[:n] * (len(names) // n))
    counted = [(name, len(list(same))) for name, same in itertools.groupby(names[:period])]
    layers = " + ".join(name if count == 1 else f"{name} x{count}" for name, count in counted)
    return f"{layers}{_then(config)}"


def eigen_range(config: Any) -> tuple[float, float] | None:
    """The range that all layers with one share; None where there is no such."""
    found = {mixer.options.get("eigen_range") for mixer in config.model.backbone.mixers} - {None}
    return found.pop() if len(found) == 1 else None


def _then(config: Any) -> str:
    if config.parent is None:
        return ""
    return ", then more" if config.window is None else ", then windows"


def _mixer_label(mixer: Any, with_range: bool) -> str:
    low_high = mixer.options.get("eigen_range") if with_range else None
    between = "" if low_high is None else f" [{low_high[0]:g}, {low_high[1]:g}]"
    count = mixer.options.get("num_householders")
    factors = "" if count is None else f" n={count}"
    stretched = " stretched" if mixer.options.get("beta_stretch") else ""
    learnt = " learnt" if mixer.options.get("learn_range") else ""
    begins = mixer.options.get("beta_start")
    start = "" if begins is None else f" start={begins:g}"
    return f"{mixer.layer}{factors}{stretched}{learnt}{start}{between}"
