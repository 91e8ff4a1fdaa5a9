"""Figure 1: one diagonal block learns parity with tanh gates and never with sigmoid gates."""

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import tagging_run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["PARITY_DIAGONAL", "parity_diagonal"]


def parity_diagonal(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """Width 10, batch 256, learning rate 1e-3; 20 000 steps and three seeds at the paper's scale.

    The sigmoid model warms up over a tenth of the steps, the tanh model not at all, as in the
    published configs. All versions agree.
    """
    paper = scale == "paper"
    runs = [
        tagging_run(
            "parity",
            "Diagonal",
            d_model=10,
            num_layers=1,
            options={"eigen_range": between},
            steps=20_000 if paper else 8000,
            batch=256,
            lr=1e-3,
            schedule=ScheduleConfig(warmup=0.1 if between == POSITIVE else 0.0),
            evaluation=EvaluationConfig(every=500 if paper else 200, size=8192 if paper else 2048),
            precision="bf16" if paper else "fp32",
            seed=seed,
            log_every=250 if paper else 50,
            checkpoint_every=5000 if paper else 1000,
        )
        for between in (POSITIVE, SIGNED)
        for seed in ((0, 1, 2) if paper else (0,))
    ]
    return [shrink(config) for config in runs] if scale == "smoke" else runs


PARITY_DIAGONAL = Experiment(
    name="parity-diagonal",
    aliases=("figure-1", "figure1"),
    summary="the simplest model: parity with tanh gates, not with sigmoid gates",
    runs=parity_diagonal,
)
