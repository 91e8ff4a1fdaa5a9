"""Silent traces far beyond training: a convolution in the first layer alone.

Two layers with a convolution each are right to about six times the length they were trained on. A
statement is spread over several tokens, so one layer needs the convolution; the other one reads
what the first has gathered, and a convolution there only mixes neighbouring statements into it. In
a small copy on a CPU one without it was learnt sooner and carried further
(docs/measurements/log.md). The rate stays up until the last tenth of the steps.
"""

import dataclasses

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.applied import EVALUATIONS, STAYING, evaluation
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import rebuilt, tagging_run
from statetrack.training import RunConfig

__all__ = ["REPL_FAR", "repl_far"]

TASK = "repl_1_silent"


def repl_far(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """DeltaNet in both ranges, five seeds; at the paper's scale twice the steps.

    All else is as in `repl`: two layers of width 128, trained on 8 to 32 statements and judged at
    512. All versions agree.
    """
    steps = 40_000 if scale == "paper" else 20_000
    runs = []
    for between in (SIGNED, POSITIVE):
        for seed in range(5):
            config = tagging_run(
                TASK,
                "DeltaNet",
                options={"eigen_range": between},
                steps=steps,
                batch=64,
                lr=2e-3,
                clip_norm=1.0,
                schedule=STAYING,
                evaluation=evaluation(TASK, "DeltaNet", size=256, every=steps // EVALUATIONS),
                precision="bf16",
                seed=seed,
                log_every=250,
                checkpoint_every=2500,
            )
            runs.append(_without_second_convolution(config))
    return [shrink(config) for config in runs[::5]] if scale == "smoke" else runs


def _without_second_convolution(config: RunConfig) -> RunConfig:
    first, second = config.model.backbone.mixers
    bare = dataclasses.replace(second, options={**second.options, "conv_size": 0})
    return dataclasses.replace(config, model=rebuilt(config.model, mixers=(first, bare)))


REPL_FAR = Experiment(
    name="repl-far",
    summary="silent traces at sixteen times the training length: one convolution less",
    runs=repl_far,
)
