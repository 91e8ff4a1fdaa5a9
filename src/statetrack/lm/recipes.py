"""Named recipes: sizes with the hyperparameters that go with them."""

import dataclasses
from pathlib import Path
from typing import Any

from statetrack._suggest import did_you_mean
from statetrack.lm.config import PretrainConfig, PretrainOptimizerConfig
from statetrack.lm.shards import Manifest
from statetrack.models import lm_config
from statetrack.training.config import ScheduleConfig

__all__ = ["RECIPES", "pretrain_config"]

RECIPES: dict[str, dict[str, Any]] = {
    "20M": {"batch": 32, "length": 1024, "steps": 6_000, "lr": 2e-3, "warmup": 0.1, "std": 0.02},
    "60M": {"batch": 64, "length": 2048, "steps": 4_000, "lr": 3e-3, "warmup": 0.1, "std": 0.02},
    "340M": {
        "batch": 80,
        "length": 2048,
        "steps": 200_000,
        "lr": 3.1e-3,
        "warmup": 0.025,
        "std": 0.006,
    },
    "1.3B": {
        "batch": 256,
        "length": 2048,
        "steps": 200_000,
        "lr": 1e-3,
        "warmup": 0.025,
        "std": 0.006,
    },
}
"""Size -> batch, length, steps, rate, share of the steps in which it rises, and the standard
deviation of the first weights; 340M is the paper's DeltaNet, the others are ours."""


def pretrain_config(
    data: Path | str,
    size: str = "20M",
    mixer: Any = "DeltaNet",
    *,
    mixer_options: dict[str, Any] | None = None,
    tie_embeddings: bool = False,
    lr: float | None = None,
    warmup: float | None = None,
    std: float | None = None,
    **changes: Any,
) -> PretrainConfig:
    """A run of a named size on the shards in `data`; `changes` are fields of `PretrainConfig`.

    AdamW with betas (0.9, 0.95) and weight decay 0.1, clipping at 1, a warm-up and a cosine to a
    tenth of the peak. The vocabulary is the tokenizer's. `std` is that of the first weights, but
    for Mamba and Mamba2, which draw their projections themselves.
    """
    if size not in RECIPES:
        near = did_you_mean(size, RECIPES)
        raise ValueError(f"size={size!r} is unknown; {near}there are {', '.join(RECIPES)}")
    given = {"lr": lr, "warmup": warmup, "std": std}
    usual = RECIPES[size] | {name: value for name, value in given.items() if value is not None}
    rate, rising, deviation = (usual.pop(name) for name in given)
    model = lm_config(
        mixer,
        size,
        vocab_size=Manifest.read(data).vocab_size,
        tie_embeddings=tie_embeddings,
        **(mixer_options or {}),
    )
    if model.projection_std is not None:
        model = dataclasses.replace(model, embedding_std=deviation, projection_std=deviation)
    optimizer = changes.pop("optimizer", PretrainOptimizerConfig(lr=rate))
    if lr is not None:
        optimizer = dataclasses.replace(optimizer, lr=lr)
    fields: dict[str, Any] = {
        **usual,
        "model": model,
        "data": str(data),
        "schedule": ScheduleConfig(warmup=rising, final=0.1),
        "precision": "bf16",
        **changes,
    }
    return PretrainConfig(optimizer=optimizer, **fields)
