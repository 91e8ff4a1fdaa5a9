"""How a tagging run is put together: every experiment and `statetrack train` go through here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from statetrack import tasks
from statetrack.layers import registry
from statetrack.models import TaggerConfig, paper_config
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, ScheduleConfig
from statetrack.training.config import Precision, WeightDecayRule

__all__ = ["XLSTM", "decay_rule", "rebuilt", "tagger", "tagging_run"]

XLSTM = ("MLSTM", "SLSTM")
COSINE, EVALUATION = ScheduleConfig(), EvaluationConfig()


def tagging_run(
    task: str,
    layer: str,
    *,
    steps: int,
    batch: int,
    d_model: int = 128,
    num_layers: int = 2,
    options: Mapping[str, Any] | None = None,
    block: Mapping[str, Any] | None = None,
    lengths: tuple[int, int] | None = None,
    window: int | None = None,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    decay: WeightDecayRule | None = None,
    clip_norm: float | None = None,
    schedule: ScheduleConfig = COSINE,
    evaluation: EvaluationConfig = EVALUATION,
    precision: Precision = "fp32",
    seed: int = 0,
    stop_at: float | None = None,
    log_every: int = 50,
    checkpoint_every: int | None = 1000,
) -> RunConfig:
    """A run of the paper's model around `layer` on `task`.

    The model takes its vocabulary and classes from the task, see `tagger` for `options` and
    `block`. `decay` says which parameters decay, by default as the paper has it for this layer (see
    `decay_rule`). `seed` is that of the weights and of the training data. All else is as in
    `RunConfig`.

    >>> tagging_run("parity", "deltanet", steps=1000, batch=64).model.vocab_size
    3
    """
    return RunConfig(
        task=task,
        model=tagger(
            task, layer, d_model=d_model, num_layers=num_layers, options=options, block=block
        ),
        steps=steps,
        batch=batch,
        lengths=lengths,
        window=window,
        optimizer=OptimizerConfig(
            lr=lr,
            weight_decay=weight_decay,
            decay=decay_rule(layer) if decay is None else decay,
            clip_norm=clip_norm,
        ),
        schedule=schedule,
        evaluation=evaluation,
        precision=precision,
        seed=seed,
        data_seed=seed,
        log_every=log_every,
        checkpoint_every=checkpoint_every,
        stop_at=stop_at,
    )


def tagger(
    task: str,
    layer: str,
    *,
    d_model: int = 128,
    num_layers: int = 2,
    options: Mapping[str, Any] | None = None,
    block: Mapping[str, Any] | None = None,
) -> TaggerConfig:
    """The paper's model around `layer`, with the vocabulary and the classes of `task`.

    `options` are the layer's own. `block` changes what the paper puts around it.

    >>> tagger("parity", "DeltaNet", options={"num_heads": 2}, block={"mlp": "none"}).backbone.mlp
    'none'
    """
    vocabulary = tasks.get(task)
    model = paper_config(
        layer,
        vocab_size=vocabulary.vocab_size,
        num_classes=vocabulary.num_classes,
        d_model=d_model,
        num_layers=num_layers,
        **(options or {}),
    )
    return rebuilt(model, **(block or {}))


def rebuilt(model: TaggerConfig, **changes: Any) -> TaggerConfig:
    """`model` with these fields of its backbone changed."""
    return dataclasses.replace(model, backbone=dataclasses.replace(model.backbone, **changes))


def decay_rule(layer: str) -> WeightDecayRule:
    """Which parameters decay in the paper's runs of `layer`.

    >>> decay_rule("mlstm"), decay_rule("DeltaNet")
    ('matrices', 'all_but_state')
    """
    return "matrices" if registry.get(layer).__name__ in XLSTM else "all_but_state"
