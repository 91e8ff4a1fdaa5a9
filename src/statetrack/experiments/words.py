"""Figures 3 and 6 and beyond: word problems of groups, judged by faultless sequences.

The paper trains on a fixed set of 1.6 million sequences; here every batch is fresh. An epoch below
is as many steps as theirs, 3125 batches of 512. It states neither schedule nor precision for these
runs: the learning rate is constant after no warm-up, under bf16 autocast.
"""

from collections.abc import Iterable
from typing import Any

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import tagging_run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig
from statetrack.training.config import Precision

__all__ = ["HOUSEHOLDERS", "S5", "Z60", "householders", "s5", "z60"]

EPOCH = 3125
LINEAR = (("DeltaNet", POSITIVE), ("DeltaNet", SIGNED), ("Mamba", POSITIVE), ("Mamba", SIGNED))
BARE = {"mlp": "none", "residual": False, "final_norm": False}
"""The baseline is a recurrence and a linear read-out, with nothing around it."""


def s5(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """The four ways to read S5 (all elements, swaps, three points, four tokens); 1 and 5 layers.

    DeltaNet and Mamba with both ranges, and the free matrix per token as a baseline; for all
    elements also DeltaProduct with four factors in one layer, by a recipe of our own.
    """
    every = ("s5_swaps", "s5_3perms", "s5_4tokens", "s5")
    names = ("s5_swaps", "s5") if scale == "quick" else every
    depths = {"smoke": (1,), "quick": (1,), "paper": (1, 5)}[scale]
    runs = []
    for name in names:
        for mixer, between in LINEAR:
            for depth in depths:
                runs += _word_runs(scale, version, name, mixer, between, depth)
        runs += _word_runs(scale, version, name, "FullMatrix", None, 1)
    for between in (POSITIVE, SIGNED):
        runs += _product_runs(scale, between)
    return [shrink(config) for config in runs] if scale == "smoke" else runs


def z60(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """Addition modulo 60, one and two tokens each; DeltaNet and Mamba with both ranges."""
    depths = {"smoke": (1,), "quick": (1,), "paper": (1, 5)}[scale]
    runs = [
        config
        for name in ("z60", "z60_2tokens")
        for mixer, between in LINEAR
        for depth in depths
        for config in _word_runs(scale, version, name, mixer, between, depth)
    ]
    return [shrink(config) for config in runs] if scale == "smoke" else runs


def householders(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """DeltaProduct with 1 to 4 Householder factors on S3, S4, A5 and S5, one layer.

    The protocol is DeltaProduct's, not this paper's: trained at length 128, judged at 512, batch
    2048, learning rate 1e-3 falling to 0, weight decay 1e-6. Both ranges at the paper's scale.
    At the quick scale `_small_product`, which a CPU trains in minutes, at length 32 and
    judged at 128.
    """
    ranges, seeds = ((POSITIVE, SIGNED), (0, 1, 2)) if scale == "paper" else ((SIGNED,), (0,))
    runs = [
        _householder_run(scale, name, count, between, seed)
        for name in ("s3", "s4", "a5", "s5")
        for count in (1, 2, 3, 4)
        for between in ranges
        for seed in seeds
    ]
    return [shrink(config) for config in runs] if scale == "smoke" else runs


def _householder_run(
    scale: Scale, name: str, count: int, between: tuple[float, float], seed: int
) -> RunConfig:
    if scale != "paper":
        return _small_product(
            name,
            count,
            between,
            steps=15_000,
            batch=32,
            length=32,
            evaluation=EvaluationConfig(every=1500, size=500, lengths=(128, 128)),
            seed=seed,
        )
    return tagging_run(
        name,
        "DeltaProduct",
        num_layers=1,
        options={"num_householders": count, "conv_size": 0, "eigen_range": between},
        steps=4900,
        batch=2048,
        lengths=(128, 128),
        lr=1e-3,
        weight_decay=1e-6,
        schedule=ScheduleConfig(warmup=0.0, final=0.0),
        evaluation=EvaluationConfig(every=500, size=1000, lengths=(512, 512)),
        precision="bf16",
        seed=seed,
    )


def _word_runs(
    scale: Scale,
    version: Version,
    name: str,
    mixer: str,
    between: tuple[float, float] | None,
    depth: int,
) -> list[RunConfig]:
    options: dict[str, Any] = {"eigen_range": between}
    if mixer == "DeltaNet":
        options |= {"conv_size": 0, "qk_silu": False}
    paper = scale == "paper"
    restricted = name in ("s5_swaps", "s5_3perms")
    final = version == "iclr"
    epochs = 100 if final else 30 if restricted else 90
    seeds: Iterable[int] = range(3 if final and paper else 1)
    return [
        tagging_run(
            name,
            mixer,
            num_layers=depth,
            options=options,
            block=BARE if mixer == "FullMatrix" else None,
            steps=epochs * EPOCH if paper else 2 * EPOCH,
            batch=512,
            lr=1e-4 if paper else 1e-3,
            weight_decay=0.01,
            clip_norm=1.0,
            schedule=ScheduleConfig(shape="constant", warmup=0.0),
            evaluation=EvaluationConfig(
                every=10 * EPOCH if paper else EPOCH, size=40_000 if paper else 4000
            ),
            precision="bf16",
            seed=seed,
            log_every=125,
            checkpoint_every=EPOCH,
        )
        for seed in seeds
    ]


def _product_runs(scale: Scale, between: tuple[float, float]) -> list[RunConfig]:
    """All of S5 in one layer: four Householder factors a token, on long sequences."""
    paper = scale == "paper"
    return [
        _small_product(
            "s5",
            4,
            between,
            steps=30_000 if paper else 100_000,
            batch=64 if paper else 8,
            length=256 if paper else 128,
            evaluation=EvaluationConfig(every=5000, size=4000 if paper else 1000),
            precision="bf16" if paper else "fp32",
            seed=seed,
        )
        for seed in ((0, 1, 2) if paper else (0,))
    ]


def _small_product(
    name: str,
    count: int,
    between: tuple[float, float],
    *,
    steps: int,
    batch: int,
    length: int,
    evaluation: EvaluationConfig,
    seed: int,
    precision: Precision = "fp32",
) -> RunConfig:
    """One layer of DeltaProduct, eight heads of 8, by a recipe of our own.

    What makes it learnable (docs/measurements/log.md): no MLP; small heads, of which one is enough;
    a learning rate of 3e-3 that falls to 0; no weight decay; and sequences long enough that small
    errors of a reflection are seen, which is what carries it beyond the lengths of training.
    """
    return tagging_run(
        name,
        "DeltaProduct",
        d_model=64,
        num_layers=1,
        options={
            "num_householders": count,
            "num_heads": 8,
            "conv_size": 0,
            "qk_silu": False,
            "eigen_range": between,
        },
        block={"mlp": "none"},
        steps=steps,
        batch=batch,
        lengths=(length, length),
        lr=3e-3,
        clip_norm=1.0,
        schedule=ScheduleConfig(warmup=0.02, final=0.0),
        evaluation=evaluation,
        precision=precision,
        seed=seed,
        log_every=500,
        checkpoint_every=5000,
    )


S5 = Experiment(
    name="s5",
    aliases=("figure-3", "figure3"),
    summary="products in S5, read in four ways",
    runs=s5,
    metric="sequence_accuracy",
)
Z60 = Experiment(
    name="z60",
    aliases=("figure-6", "figure6"),
    summary="addition modulo 60",
    runs=z60,
    metric="sequence_accuracy",
)
HOUSEHOLDERS = Experiment(
    name="householders",
    summary="how many Householder factors a group needs in one layer",
    runs=householders,
    metric="sequence_accuracy",
)
