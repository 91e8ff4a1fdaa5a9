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
    fields = {"d_model": 8, "mlp_dim": 8} | (sizes or {})
    backbone = BackboneConfig(mixers=[(mixer, options)] * num_layers, **fields)
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
