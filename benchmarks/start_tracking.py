"""Where β begins: does a delta rule still learn to track state, and how soon does it learn recall?

    python benchmarks/start_tracking.py                          # four hours of two cores
    python benchmarks/start_tracking.py --tasks parity s5_swaps  # twenty minutes
    python benchmarks/start_tracking.py --tasks mqar_256         # half an hour

As a language model, DeltaNet with [-1, 1] is as good as with [0, 1] once β begins where that of
[0, 1] does (`beta_start=0.5`), or where each head learns its range from [0, 1] on (`learn_range`).
Parity and permutations need β = 2. Small copies of three tasks are trained with each of these:
parity (one answer a word), swaps of five things, and moves of the 2x2x2 cube with six reflections
each. Recall needs no reflection, and is learnt late with [-1, 1]. It also has the control whose β
begins and moves as that of [-1, 1] does, and stops at 1. Printed are, seed by seed, the scaled
accuracy at the lengths of training and on longer sequences, and of recall the steps until the loss
was half of that of a guess. Runs stay in OUT; one that is there is not trained again, and one that
was interrupted goes on.
"""

import argparse
import dataclasses
import functools
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from statetrack import tasks
from statetrack.experiments.applied import SIGNED, cell
from statetrack.experiments.chomsky import POSITIVE
from statetrack.experiments.recipes import rebuilt, tagging_run
from statetrack.runs import Run
from statetrack.sweep import Progress, run_many
from statetrack.training import EvaluationConfig, RunConfig

CONTROL = "[0, 1], 2σ(x) capped"
STARTS: dict[str, dict[str, Any]] = {
    "[0, 1]": {"eigen_range": POSITIVE},
    "[-1, 1]": {"eigen_range": SIGNED},
    "[-1, 1], β from 0.5": {"eigen_range": SIGNED, "beta_start": 0.5},
    "[-1, 1], range learnt": {"eigen_range": SIGNED, "learn_range": True},
    CONTROL: {},
}
RECALL = ("mqar_256", "mqar_forgetting_256")
FARTHER = 4
"""Times the lengths of training, of the longer sequences."""


def parity(options: dict[str, Any], seed: int) -> RunConfig:
    """As `statetrack train` does it."""
    return tagging_run(
        "parity",
        "DeltaNet",
        d_model=32,
        num_layers=1,
        options=options,
        steps=1500,
        batch=256,
        lr=1e-2,
        clip_norm=1.0,
        evaluation=judged((3, 40)),
        seed=seed,
    )


def swaps(options: dict[str, Any], seed: int) -> RunConfig:
    return tagging_run(
        "s5_swaps",
        "DeltaNet",
        d_model=64,
        num_layers=1,
        options={"num_heads": 4, **options},
        steps=1500,
        batch=64,
        lr=3e-3,
        clip_norm=1.0,
        evaluation=judged((32, 32)),
        seed=seed,
    )


def cube(options: dict[str, Any], seed: int) -> RunConfig:
    """The small copy of `then_windows.py`."""
    first = cell("quick", "cube", "DeltaProduct6", SIGNED)[0]
    (mixer,) = first.model.backbone.mixers
    mixer = dataclasses.replace(mixer, options={**mixer.options, **options})
    return dataclasses.replace(
        first,
        model=rebuilt(first.model, mixers=(mixer,)),
        steps=3200,
        batch=64,
        precision="fp32",
        evaluation=judged(first.train_lengths),
        seed=seed,
        data_seed=seed,
    )


def recall(task: str, options: dict[str, Any], seed: int) -> RunConfig:
    """Two layers as the experiment `recall` has them, half as wide, on half as many pairs."""
    shortest = tasks.get(task).train_lengths.min
    return tagging_run(
        task,
        "DeltaNet" if options else "CappedDeltaNet",
        d_model=64,
        options=options,
        lengths=(shortest, 16),
        steps=1000,
        batch=64,
        lr=3e-3,
        clip_norm=1.0,
        evaluation=judged((16, 16)),
        seed=seed,
        log_every=25,
    )


def judged(lengths: tuple[int, int]) -> EvaluationConfig:
    longest = FARTHER * lengths[1]
    return EvaluationConfig(
        every=100_000, size=512, lengths=lengths, test_lengths=(longest, longest)
    )


TASKS = {
    "parity": parity,
    "s5_swaps": swaps,
    "cube": cube,
    **{task: functools.partial(recall, task) for task in RECALL},
}


def at_rate(config: RunConfig, lr: float | None) -> RunConfig:
    optimizer = dataclasses.replace(config.optimizer, lr=lr or config.optimizer.lr)
    return dataclasses.replace(config, optimizer=optimizer)


def half_way(run: Run) -> int | None:
    """Steps until the loss was half of that of a guess."""
    enough = math.log(run.config.learns.num_classes) / 2
    losses = [r for r in run.records if (r.metric, r.split) == ("loss", "train")]
    return next((r.step for r in losses if r.value < enough), None)


def row(task: str, start: str, runs: Sequence[Run]) -> str:
    for run in runs:
        if not run.finished:
            sys.exit(f"{run.folder} has failed: {run.error}")
    columns = [task, start]
    for split in ("validation", "test"):
        values = [value for r in runs if (value := r.last("scaled_accuracy", split)) is not None]
        columns.append(", ".join(f"{value:.3f}" for value in values))
        columns.append(f"{statistics.median(values):.3f}")
    steps = [half_way(run) for run in runs]
    columns.append(", ".join(str(step or "-") for step in steps) if task in RECALL else "")
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("build/start_tracking"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lr", type=float, help="instead of the task's own")
    chosen = parser.parse_args()
    print(f"| task | β | as in training | median | {FARTHER} times as long | median | steps |")
    print("|---|---|---|--:|---|--:|---|", flush=True)
    for task in chosen.tasks:
        for start in chosen.starts:
            if start == CONTROL and task not in RECALL:
                continue
            configs = [at_rate(TASKS[task](STARTS[start], s), chosen.lr) for s in chosen.seeds]
            with Progress() as progress:
                sweep = run_many(
                    configs,
                    chosen.out,
                    workers=chosen.workers,
                    device=chosen.device,
                    watch=progress,
                )
            print(row(task, start, sweep.runs), flush=True)


if __name__ == "__main__":
    main()
