"""Arithmetic modulo five far beyond the lengths of training: what keeps DeltaNet from wandering.

By the paper's recipe a model is asked for one answer a word, learns the lengths of training to a
loss of 0, and what it does beyond goes up and down from then on. Here it is asked after every
operand, and reads words of up to sixteen times the lengths a window of 40 tokens at a step: the
state is handed on, so that it has to stay right, while no gradient reaches further than 40 tokens
back. Beside that, the same questions on whole words of the paper's lengths.

With brackets, reading in windows from new weights is slow. So there a model first learns whole
words of the paper's lengths, with one Householder factor a token or with two. Then it goes on in
windows of 80 tokens, on words as long as those it is judged by; or on whole words of half that
length.

Judged as in the paper: one answer a word, on 40 to 256 tokens.
"""

import dataclasses
from typing import Any

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import tagging_run
from statetrack.tasks.arithmetic import EVALUATE, TRAIN
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["ARITHMETIC_FAR", "arithmetic_far"]

USUAL, LONGER = (TRAIN.min, TRAIN.max), (TRAIN.min, 16 * TRAIN.max)
WINDOW = TRAIN.max
FAR = 1024
SEEDS = range(5)
CASES = (
    (SIGNED, LONGER, WINDOW),
    (POSITIVE, LONGER, WINDOW),
    (SIGNED, USUAL, None),
)
"""Without brackets: range, lengths of training, window."""
FACTORS = (
    ("DeltaProduct", {"num_householders": 2, "eigen_range": SIGNED}),
    ("DeltaProduct", {"num_householders": 2, "eigen_range": POSITIVE}),
    ("DeltaNet", {"eigen_range": SIGNED}),
)
"""With brackets: layer, options."""
THEN = ((EVALUATE.max, 2 * WINDOW, 20_000), (EVALUATE.max // 2, None, 12_000))
"""With brackets, how it goes on: longest word, window, steps at the quick scale."""


def arithmetic_far(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """Three layers, five seeds; all versions agree.

    At the quick scale they are 64 wide. Without brackets they take 16,000 steps of 64, 25 minutes
    of one CPU core; with them 3000 steps of 64, then 20,000 of 32 in windows or 12,000 of 32 whole
    words, twice as long. At the paper's they are 128 wide, and every part takes 20,000 steps, of
    256 and then of 128.
    """
    flat = [
        _run("mod_arithmetic", scale, seed, "DeltaNet", {"eigen_range": between}, lengths, window)
        for between, lengths, window in CASES
        for seed in SEEDS
    ]
    first = [
        _run("mod_arithmetic_brackets", scale, seed, layer, options, USUAL, None)
        for layer, options in FACTORS
        for seed in SEEDS
    ]
    if scale == "smoke":
        flat, first = ([shrink(run) for run in runs[:: len(SEEDS)]] for runs in (flat, first))
    second = [
        _going_on(run, scale, (TRAIN.min, longest), window, steps)
        for longest, window, steps in THEN
        for run in first
    ]
    return [*flat, *first, *second]


def _run(
    task: str,
    scale: Scale,
    seed: int,
    layer: str,
    options: dict[str, Any],
    lengths: tuple[int, int],
    window: int | None,
) -> RunConfig:
    large, brackets = scale == "paper", task == "mod_arithmetic_brackets"
    return tagging_run(
        f"{task}_dense",
        layer,
        d_model=128 if large else 64,
        num_layers=3,
        options=options,
        lengths=lengths,
        window=window,
        steps=20_000 if large else 3000 if brackets else 16_000,
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


def _going_on(
    first: RunConfig, scale: Scale, lengths: tuple[int, int], window: int | None, steps: int
) -> RunConfig:
    """The run that goes on where `first` has ended, with words that it has not seen."""
    return dataclasses.replace(
        first,
        start=first.fingerprint,
        lengths=lengths,
        window=window,
        steps={"smoke": first.steps, "quick": steps, "paper": first.steps}[scale],
        batch=first.batch if scale == "smoke" else first.batch // 2,
        data_seed=first.seed + 100,
    )


ARITHMETIC_FAR = Experiment(
    name="arithmetic-far",
    summary="arithmetic modulo five, asked after every operand and read in windows",
    runs=arithmetic_far,
)
