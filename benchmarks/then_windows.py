"""Learnt on short sequences, then read in windows: how far does it carry?

    python benchmarks/then_windows.py                         # the cube: on one core, an hour
    python benchmarks/then_windows.py --task repl_1_silent    # for a GPU

A model of `reproduce` learns on whole sequences of the task's own lengths. Then it goes on, for
less long and at a smaller rate: on sequences of up to sixteen times the length that are read a
window at a step, the state handed on without a gradient; or, to compare, on whole ones as before.
Printed are the loss at the end, the scaled accuracy at sixteen times the length, and the share of
right answers in sequences of 64 times the length, by the tokens read before them: up to what
training had, up to twice that, and so on. Runs stay in OUT; one that is there is not trained again,
and one that was interrupted goes on.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack import experiments
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.runs import Run
from statetrack.runs.labels import model_label
from statetrack.sweep import Progress
from statetrack.training import EvaluationConfig, RunConfig, run
from statetrack.training.start import started

CASES = ((SIGNED, True), (SIGNED, False), (POSITIVE, True))
"""Range, and whether it goes on in windows."""
TIMES, FAR = 16, 64
SEQUENCES = 64


class Recipe(NamedTuple):
    """The model, tokens of a window, steps and rate in windows, and what the first part has."""

    experiment: str
    model: str
    window: int
    more: int
    rate: float
    first: dict[str, Any]


SMALL = {"steps": 3200, "batch": 64, "precision": "fp32"}
RECIPES = {
    "cube": Recipe("puzzles", "DeltaProduct n=6", 32, 2400, 1e-3, SMALL),
    "repl_1_silent": Recipe("repl", "DeltaNet", 320, 5000, 3e-4, {}),
    "boxes": Recipe("boxes", "DeltaNet", 256, 5000, 3e-4, {}),
    "mod_arithmetic": Recipe("chomsky", "DeltaNet", 40, 20_000, 3e-4, {"steps": 30_000}),
}


def first_of(task: str, between: tuple[float, float], seed: int) -> RunConfig:
    recipe = RECIPES[task]
    name = f"{recipe.model} [{between[0]:g}, 1]"
    planned = experiments.get(recipe.experiment).runs("quick", "iclr")
    quick = next(c for c in planned if (c.learns.name, model_label(c)) == (task, name))
    steps = recipe.first.get("steps", quick.steps)
    shortest, longest = quick.train_lengths
    judged = EvaluationConfig(
        every=steps,
        size=SEQUENCES if quick.learns.dense else 16 * SEQUENCES,  # else one answer in each
        lengths=(TIMES * longest, TIMES * longest),
        test_lengths=(FAR * longest if quick.learns.dense else shortest, FAR * longest),
    )
    own: dict[str, Any] = {"seed": seed, "data_seed": seed, "evaluation": judged}
    return dataclasses.replace(quick, log_every=100, checkpoint_every=500, **own, **recipe.first)


def second_of(first: RunConfig, in_windows: bool) -> RunConfig:
    """The same model on other sequences than it has seen."""
    recipe = RECIPES[first.learns.name]
    shortest, longest = first.train_lengths
    longer: dict[str, Any] = {}
    if in_windows:
        longer = {"lengths": (shortest, TIMES * longest), "window": recipe.window}
    return dataclasses.replace(
        first,
        steps=recipe.more,
        data_seed=first.seed + 100,
        optimizer=dataclasses.replace(first.optimizer, lr=recipe.rate),
        evaluation=dataclasses.replace(first.evaluation, every=recipe.more),
        **longer,
    )


def right_by_tokens(done: Run, edges: list[int]) -> list[float]:
    """Between each edge and the one before it."""
    rows = [r for r in done.records if (r.split, r.metric) == ("test", "accuracy") and r.length]
    found = []
    for low, high in zip((0, *edges), edges, strict=False):
        inside = [(r.value, r.count or 0) for r in rows if low < (r.length or 0) <= high]
        found.append(sum(v * n for v, n in inside) / sum(n for _, n in inside))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="cube", choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    parser.add_argument("--out", type=Path, default=Path("build/then_windows"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    task = first_of(chosen.task, SIGNED, 0)
    trained = task.learns.num_tokens(task.train_lengths[1])
    edges = [trained * 2**n for n in range(FAR.bit_length())]
    said = " | ".join(map(str, edges))
    print(f"| range | then | seed | loss | {TIMES} times, scaled | {said} |", flush=True)

    def report(between: tuple[float, float], then: str, seed: int, done: Run) -> None:
        losses = [r.value for r in done.records if (r.split, r.metric) == ("train", "loss")]
        cells = " | ".join(f"{share:.3f}" for share in right_by_tokens(done, edges))
        scaled = done.last("scaled_accuracy", "validation")
        name = f"[{between[0]:g}, 1] | {then} | {seed}"
        print(f"| {name} | {losses[-1]:.4f} | {scaled:.3f} | {cells} |", flush=True)

    def trained_on(config: RunConfig, start: dict[str, Tensor] | None = None) -> Run:
        config = started(config, start)
        with Progress() as progress:
            progress.begin([config], chosen.out)
            device = chosen.device
            return run(config, chosen.out, device=device, watcher=progress, start=start)

    for seed in chosen.seeds:
        for between in dict.fromkeys(CASES[case][0] for case in chosen.cases):
            first = trained_on(first_of(chosen.task, between, seed))
            report(between, "", seed, first)
            for _, in_windows in (CASES[c] for c in chosen.cases if CASES[c][0] == between):
                second = trained_on(second_of(first.config, in_windows), first.weights())
                report(between, "windows" if in_windows else "whole", seed, second)


if __name__ == "__main__":
    main()
