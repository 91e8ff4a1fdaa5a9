"""The smallest runs that still go through everything."""

from typing import Any

from statetrack.models import BackboneConfig, TaggerConfig
from statetrack.training import EvaluationConfig, RunConfig


def model(
    mixer: str = "DeltaNet",
    *,
    num_layers: int = 1,
    sizes: dict[str, Any] | None = None,
    **options: Any,
) -> TaggerConfig:
    """`sizes` are fields of the backbone, `options` those of the layer."""
    if mixer == "DeltaNet":
        options = {"num_heads": 2, "conv_size": 0, **options}
    fields: dict[str, Any] = {"mixers": [(mixer, options)] * num_layers, "d_model": 8, "mlp_dim": 8}
    backbone = BackboneConfig(**(fields | (sizes or {})))
    return TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)


def config(**changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "task": "parity",
        "model": model(),
        "steps": 12,
        "batch": 4,
        "lengths": (3, 8),
        "evaluation": EvaluationConfig(every=4, size=16, lengths=(8, 12)),
        "log_every": 2,
        "checkpoint_every": 2,
    }
    return RunConfig(**(fields | changes))


def in_windows(**changes: Any) -> RunConfig:
    """Words of up to 40 bits, in windows of 8: spans of 1, 2, 4 and 8.

    A length of parity counts the answer too.
    """
    fields: dict[str, Any] = {
        "task": "parity_dense",
        "lengths": (3, 41),
        "window": 8,
        "batch": 6,
        "evaluation": EvaluationConfig(every=12, size=16, lengths=(8, 12)),
    }
    return config(**(fields | changes))
