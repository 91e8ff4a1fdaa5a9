"""Runs in a few words."""

from typing import Any

__all__ = ["label", "model_label"]


def label(config: Any) -> str:
    """A run in a few words.

    >>> from statetrack.models import paper_config
    >>> from statetrack.training import RunConfig
    >>> model = paper_config("DeltaNet", vocab_size=3)
    >>> label(RunConfig(task="parity", model=model, steps=1, batch=1))
    'parity DeltaNet [-1, 1]'
    """
    return f"{config.task} {model_label(config)}"


def model_label(config: Any) -> str:
    """The mixer, with its eigenvalue range and number of Householder factors if it has them."""
    options = config.model.mixer_options
    low_high = options.get("eigen_range")
    between = "" if low_high is None else f" [{low_high[0]:g}, {low_high[1]:g}]"
    factors = f" n={options['num_householders']}" if "num_householders" in options else ""
    return f"{config.model.mixer}{factors}{between}"
