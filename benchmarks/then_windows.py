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
import sys
from pathlib import Path
from typing import Any

import torch

from statetrack import experiments
from statetrack.experiments.applied import THEN_WINDOWS, TIMES, Windows, in_windows
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.runs import Run
from statetrack.runs.labels import model_label
from statetrack.sweep import Progress, run_many
from statetrack.training import EvaluationConfig, RunConfig

CASES = ((SIGNED, True), (SIGNED, False), (POSITIVE, True))
"""Range, and whether it goes on in windows."""
FAR = 64
SEQUENCES = 64
FIRST: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cube": ("puzzles", "DeltaProduct n=6", {"steps": 3200, "batch": 64, "precision": "fp32"}),
    "repl_1_silent": ("repl", "DeltaNet", {}),
    "boxes": ("boxes", "DeltaNet", {}),
    "mod_arithmetic": ("chomsky", "DeltaNet", {"steps": 30_000}),
}
"""Task -> the experiment that has it, the model, and in what the first part differs from it."""
THEN = {task: windows for task, (_, windows) in THEN_WINDOWS.items()}
THEN["mod_arithmetic"] = Windows(40, 20_000, 3e-4)


def first_of(task: str, between: tuple[float, float], seed: int) -> RunConfig:
    experiment, model, changes = FIRST[task]
    name = f"{model} [{between[0]:g}, 1]"
    planned = experiments.get(experiment).runs("quick", "iclr")
    quick = next(c for c in planned if (c.learns.name, model_label(c)) == (task, name))
    steps = changes.get("steps", quick.steps)
    shortest, longest = quick.train_lengths
    judged = EvaluationConfig(
        every=steps,
        size=SEQUENCES if quick.learns.dense else 16 * SEQUENCES,  # else one answer in each
        lengths=(TIMES * longest, TIMES * longest),
        test_lengths=(FAR * longest if quick.learns.dense else shortest, FAR * longest),
    )
    own: dict[str, Any] = {"seed": seed, "data_seed": seed, "evaluation": judged}
    return dataclasses.replace(quick, log_every=100, checkpoint_every=500, **own, **changes)


def second_of(first: RunConfig, windowed: bool) -> RunConfig:
    """The same model on other sequences than it has seen."""
    then = THEN[first.learns.name]
    whole: dict[str, Any] = {} if windowed else {"lengths": first.lengths, "window": None}
    return dataclasses.replace(
        in_windows(first, then, then.steps),
        evaluation=dataclasses.replace(first.evaluation, every=then.steps),
        log_every=first.log_every,
        checkpoint_every=first.checkpoint_every,
        **whole,
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
    parser.add_argument("--task", default="cube", choices=list(FIRST))
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
        if not done.finished:
            sys.exit(f"{done.folder} has failed: {done.error}")
        losses = [r.value for r in done.records if (r.split, r.metric) == ("train", "loss")]
        cells = " | ".join(f"{share:.3f}" for share in right_by_tokens(done, edges))
        scaled = done.last("scaled_accuracy", "validation")
        name = f"[{between[0]:g}, 1] | {then} | {seed}"
        print(f"| {name} | {losses[-1]:.4f} | {scaled:.3f} | {cells} |", flush=True)

    for seed in chosen.seeds:
        for between in dict.fromkeys(CASES[case][0] for case in chosen.cases):
            first = first_of(chosen.task, between, seed)
            runs = {"": first}
            for _, windowed in (CASES[c] for c in chosen.cases if CASES[c][0] == between):
                runs["windows" if windowed else "whole"] = second_of(first, windowed)
            configs, device = list(runs.values()), chosen.device
            with Progress() as progress:
                sweep = run_many(configs, chosen.out, workers=0, device=device, watch=progress)
            for then, done in zip(runs, sweep.runs, strict=True):
                report(between, then, seed, done)


if __name__ == "__main__":
    main()
