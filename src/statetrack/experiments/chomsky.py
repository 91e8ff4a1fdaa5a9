"""Table 3: parity and modular arithmetic, trained up to length 40 and judged from 40 to 256."""

from dataclasses import dataclass
from typing import Any

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.recipes import XLSTM, tagging_run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["CHOMSKY", "MODELS", "TASKS", "cell", "chomsky"]

TASKS = ("parity", "mod_arithmetic", "mod_arithmetic_brackets")
POSITIVE, SIGNED = (0.0, 1.0), (-1.0, 1.0)
Model = tuple[str, tuple[float, float] | None]
MODELS: tuple[Model, ...] = (
    ("MLSTM", POSITIVE),
    ("SLSTM", None),
    ("Mamba", POSITIVE),
    ("Mamba", SIGNED),
    ("DeltaNet", POSITIVE),
    ("DeltaNet", SIGNED),
)
TRANSFORMER: Model = ("Attention", None)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What the versions of the paper decide differently, for one task and one model."""

    layers: int
    steps: int
    batch: int
    weight_decay: float
    clip_norm: float | None
    rates: tuple[float, ...]
    mamba_conv: int


def protocol(version: Version, task: str, mixer: str) -> Protocol:
    """The settings of one cell of the table.

    >>> protocol("iclr", "mod_arithmetic", "DeltaNet").layers
    3
    """
    parity = task == "parity"
    if version in ("shipped", "ran"):
        return Protocol(
            layers=2,
            steps=20_000 if parity else 100_000,
            batch=256 if parity or version == "shipped" else 1024,
            weight_decay=0.0 if parity and mixer not in XLSTM else 0.1,
            clip_norm=None,
            rates=(1e-3,) if version == "shipped" else (1e-2, 1e-3, 1e-4),
            mamba_conv=1,
        )
    final = version == "iclr"
    return Protocol(
        layers=3 if final and not parity else 2,
        steps=100_000,
        batch=512 if mixer == ("MLSTM" if final else "SLSTM") else 1024,
        weight_decay=0.1,
        clip_norm=1.0 if final and not parity and mixer not in XLSTM else None,
        rates=(1e-2, 1e-3, 5e-4, 1e-4) if final else (1e-2, 1e-3, 1e-4),
        mamba_conv=4,
    )


def chomsky(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """mLSTM, sLSTM, Mamba and DeltaNet with both ranges, and a Transformer; three tasks.

    At the paper's scale every learning rate of its list with three seeds. The Transformer is in
    the final version alone. The paper draws its validation set anew for every seed and looks at it
    every 200 steps; here all runs see the same one, every 1000 steps, and the number of the last
    step counts as there.
    """
    models = MODELS if version != "iclr" else (*MODELS, TRANSFORMER)
    return [
        config for task in TASKS for model in models for config in cell(scale, version, task, model)
    ]


def cell(scale: Scale, version: Version, task: str, model: Model) -> list[RunConfig]:
    """The runs of one task and one model: learning rates times seeds."""
    mixer, between = model
    paper = protocol(version, task, mixer)
    conv = {"conv_size": paper.mamba_conv} if mixer == "Mamba" else {}
    options: dict[str, Any] = conv | ({} if between is None else {"eigen_range": between})
    rates = paper.rates if scale == "paper" else (1e-3,)
    steps = paper.steps if scale == "paper" else 10_000
    runs = [
        tagging_run(
            task,
            mixer,
            num_layers=paper.layers,
            options=options,
            steps=steps,
            batch=paper.batch if scale == "paper" else 256,
            lr=rate,
            weight_decay=paper.weight_decay,
            clip_norm=paper.clip_norm,
            schedule=ScheduleConfig(warmup=0.1, final=1e-3),
            evaluation=EvaluationConfig(every=1000),
            precision="bf16",
            seed=seed,
            log_every=500,
            checkpoint_every=5000,
        )
        for rate in rates
        for seed in ((0, 1, 2) if scale == "paper" else (0,))
    ]
    return [shrink(config) for config in runs] if scale == "smoke" else runs


CHOMSKY = Experiment(
    name="chomsky",
    aliases=("table-3", "table3"),
    summary="parity and modular arithmetic with every model of the paper",
    runs=chomsky,
)
