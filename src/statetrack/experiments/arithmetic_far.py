"""Arithmetic modulo five far beyond the lengths of training: what keeps DeltaNet from wandering.

By the paper's recipe a model is asked for one answer a word, learns the lengths of training to a
loss of 0, and what it does beyond goes up and down from then on. Here it is asked after every
operand, and reads words of up to sixteen times the lengths a window of 40 tokens at a step: the
state is handed on, so that it has to stay right, while no gradient reaches further than 40 tokens
back. Beside that, the same questions on whole words of the paper's lengths. Judged as in the paper:
one answer a word, on 40 to 256 tokens.
"""

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import tagging_run
from statetrack.tasks.arithmetic import TRAIN
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["ARITHMETIC_FAR", "arithmetic_far"]

USUAL, LONGER = (TRAIN.min, TRAIN.max), (TRAIN.min, 16 * TRAIN.max)
WINDOW = TRAIN.max
FAR = 1024
TASKS = ("mod_arithmetic", "mod_arithmetic_brackets")
CASES = (
    (SIGNED, LONGER, WINDOW),
    (POSITIVE, LONGER, WINDOW),
    (SIGNED, USUAL, None),
)
"""Range, lengths of training, window."""


def arithmetic_far(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """DeltaNet with three layers, five seeds; all versions agree.

    At the quick scale they are 64 wide and take 16,000 steps of 64, 25 minutes of one CPU core;
    at the paper's 128 wide, and 20,000 steps of 256.
    """
    large = scale == "paper"
    runs = [
        tagging_run(
            f"{task}_dense",
            "DeltaNet",
            d_model=128 if large else 64,
            num_layers=3,
            options={"eigen_range": between},
            lengths=lengths,
            window=window,
            steps=20_000 if large else 16_000,
            batch=256 if large else 64,
            lr=4e-3,
            clip_norm=1.0,
            schedule=ScheduleConfig(warmup=0.1, final=1e-3),
            evaluation=EvaluationConfig(
                every=1000, task=task, size=2048, test_lengths=(TRAIN.min, FAR)
            ),
            seed=seed,
            log_every=200,
        )
        for task in TASKS
        for between, lengths, window in CASES
        for seed in range(5)
    ]
    return [shrink(config) for config in runs[::5]] if scale == "smoke" else runs


ARITHMETIC_FAR = Experiment(
    name="arithmetic-far",
    summary="arithmetic modulo five, asked after every operand and read in windows",
    runs=arithmetic_far,
)
