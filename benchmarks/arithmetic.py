"""Arithmetic modulo five: what keeps DeltaNet [-1, 1] from wandering beyond the training lengths?

    python benchmarks/arithmetic.py                # for a GPU: some minutes
    python benchmarks/arithmetic.py --cases 2      # one case

The model of `reproduce chomsky`, three layers, learns on up to 40 tokens and is judged from 40 to
256. At the paper's settings its loss is 0 there, and what it does beyond goes up and down from one
evaluation to the next. A case changes one thing that could move weights when the loss no longer
does: AdamW's eps (without it, steps have their full size however small the gradient is) or a β that
reaches 0 and 2; every case is trained with the paper's weight decay and without. Printed are the
scaled accuracy at the end, the most on the way, the least of the last quarter, and the loss. Runs
stay in OUT; one that is there is not trained again, and one that was interrupted goes on.
"""

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch

from statetrack.experiments import chomsky
from statetrack.runs import Run
from statetrack.sweep import Progress, run_many
from statetrack.training import RunConfig


class Case(NamedTuple):
    """AdamW's eps, and options of the layers."""

    name: str
    eps: float
    options: dict[str, Any]


CASES = (
    Case("as in the paper", 1e-8, {}),
    Case("eps", 1e-6, {}),
    Case("stretched", 1e-8, {"beta_stretch": 1.0}),
    Case("stretched, eps", 1e-6, {"beta_stretch": 1.0}),
)
DECAYS = (0.1, 0.0)


def configs(case: Case, decay: float, chosen: argparse.Namespace) -> list[RunConfig]:
    """A run for every seed."""
    first = chomsky.cell("quick", "iclr", "mod_arithmetic", ("DeltaNet", chomsky.SIGNED))[0]
    backbone = first.model.backbone
    mixers = [
        dataclasses.replace(mixer, options={**mixer.options, **case.options})
        for mixer in backbone.mixers
    ]
    model = dataclasses.replace(first.model, backbone=dataclasses.replace(backbone, mixers=mixers))
    rates: dict[str, Any] = {"lr": chosen.rate, "weight_decay": decay, "eps": case.eps}
    return [
        dataclasses.replace(
            first,
            model=model,
            steps=chosen.steps,
            batch=chosen.batch,
            optimizer=dataclasses.replace(first.optimizer, **rates),
            seed=seed,
            data_seed=seed,
        )
        for seed in chosen.seeds
    ]


def row(case: Case, decay: float, runs: list[Run]) -> str:
    """The seeds of a case, one after the other in every column."""
    ends, mosts, leasts, losses = [], [], [], []
    for run in runs:
        rows = [r for r in run.records if r.metric == "scaled_accuracy" and r.split == "validation"]
        whole = [r.value for r in rows if r.length is None]
        ends.append(whole[-1])
        mosts.append(max(whole))
        leasts.append(min(whole[-max(1, len(whole) // 4) :]))
        taught = [r.value for r in run.records if (r.split, r.metric) == ("train", "loss")]
        losses.append(taught[-1])
    cells = [", ".join(f"{value:.3f}" for value in column) for column in (ends, mosts, leasts)]
    lost = ", ".join(f"{loss:.1e}" for loss in losses)
    middle = f"{statistics.median(ends):.3f}"
    return f"| {case.name} | {decay} | {middle} | {' | '.join(cells)} | {lost} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("build/arithmetic"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    said = "median | at the end | the most | the least of the last quarter | loss"
    print(f"| case | weight decay | {said} |", flush=True)
    for case in (CASES[index] for index in chosen.cases):
        planned = [configs(case, decay, chosen) for decay in DECAYS]
        together = [config for runs in planned for config in runs]  # one stack on a GPU
        with Progress() as progress:
            done = run_many(together, chosen.out, workers=0, device=chosen.device, watch=progress)
        for number, decay in enumerate(DECAYS):
            seeds = len(chosen.seeds)
            runs = done.runs[number * seeds : (number + 1) * seeds]
            print(row(case, decay, runs), flush=True)


if __name__ == "__main__":
    main()
