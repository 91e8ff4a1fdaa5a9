"""Figure 1: one diagonal block learns parity with tanh gates and never with sigmoid gates."""

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.models import paper_config
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, ScheduleConfig

__all__ = ["PARITY_DIAGONAL", "parity_diagonal"]


def parity_diagonal(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """Width 10, batch 256, learning rate 1e-3; 20 000 steps and three seeds at the paper's scale.

    The sigmoid model warms up over a tenth of the steps, the tanh model not at all, as in the
    published configs. All versions agree.
    """
    runs = []
    for between in (POSITIVE, SIGNED):
        model = paper_config(
            "Diagonal", vocab_size=3, d_model=10, num_layers=1, eigen_range=between
        )
        runs += [
            RunConfig(
                task="parity",
                model=model,
                steps=20_000 if scale == "paper" else 8000,
                batch=256,
                optimizer=OptimizerConfig(lr=1e-3),
                schedule=ScheduleConfig(warmup=0.1 if between == POSITIVE else 0.0),
                evaluation=EvaluationConfig(
                    every=500 if scale == "paper" else 200, size=8192 if scale == "paper" else 2048
                ),
                precision="bf16" if scale == "paper" else "fp32",
                seed=seed,
                data_seed=seed,
                log_every=250 if scale == "paper" else 50,
                checkpoint_every=5000 if scale == "paper" else 1000,
            )
            for seed in ((0, 1, 2) if scale == "paper" else (0,))
        ]
    return [shrink(config) for config in runs] if scale == "smoke" else runs


PARITY_DIAGONAL = Experiment(
    name="parity-diagonal",
    aliases=("figure-1", "figure1"),
    summary="the simplest model: parity with tanh gates, not with sigmoid gates",
    runs=parity_diagonal,
)
