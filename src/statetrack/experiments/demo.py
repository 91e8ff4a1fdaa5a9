"""The README's job: parity with DeltaNet and Mamba, eigenvalues in [0, 1] and in [-1, 1].

Trained on up to 39 bits, judged on 40 to 255: lengths 40 and 41 to 256 of the task, which counts
the answer too. Everything that is shown counts bits. The recipe is made for two CPU cores and a
minute or two, and differs from the paper's: one block of width 32 without convolution or MLP, and
the parity is asked after every bit (`parity_dense`), which teaches the counter much sooner. The
judgement is the paper's: one answer, after the last bit.
"""

from collections.abc import Mapping
from typing import Any

from statetrack.experiments.recipes import tagging_run
from statetrack.runs import Run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["TESTED_BITS", "TRAINED_BITS", "demo", "recipe", "scaled_curve"]

TRAINED_TO, TESTED_TO = 40, 256  # as the task counts: the bits and the answer
TRAINED_BITS, TESTED_BITS = TRAINED_TO - 1, TESTED_TO - 1
RATES = {"DeltaNet": 1e-2, "Mamba": 5e-3}
OPTIONS: dict[str, dict[str, Any]] = {
    "DeltaNet": {"num_heads": 1, "conv_size": 0},
    "Mamba": {"conv_size": 1},
}


def demo(seed: int = 0) -> list[RunConfig]:
    """The four runs: DeltaNet and Mamba, each with both ranges."""
    return [
        recipe(layer, {"eigen_range": between, **OPTIONS[layer]}, rate=rate, seed=seed)
        for layer, rate in RATES.items()
        for between in ((0.0, 1.0), (-1.0, 1.0))
    ]


def recipe(layer: str, options: Mapping[str, Any], *, rate: float, seed: int) -> RunConfig:
    """How the demo trains one block around a layer with these options."""
    return tagging_run(
        "parity_dense",
        layer,
        d_model=32,
        num_layers=1,
        options=options,
        block={"mlp": "none"},
        steps=1500,
        batch=32,
        lengths=(3, TRAINED_TO),
        lr=rate,
        decay="all_but_state",  # of no consequence: nothing decays
        clip_norm=1.0,
        schedule=ScheduleConfig(warmup=0.05),
        evaluation=EvaluationConfig(
            every=500,
            task="parity",
            size=2048,
            lengths=(TRAINED_TO + 1, TESTED_TO),
            test_lengths=(3, TESTED_TO),
        ),
        seed=seed,
        log_every=50,
        checkpoint_every=500,
    )


def scaled_curve(run: Run) -> dict[int, float]:
    """Length in bits -> accuracy on the test set, 0 for a guess and 1 for a solution."""
    return {length: 2 * value - 1 for length, value in run.curve().items()}
