"""Silent traces in stages of longer and longer ones: how far DeltaNet [-1, 1] carries then.

    python benchmarks/longer.py --out build/longer         # about six minutes of one core
    python benchmarks/longer.py --full --device cuda       # the size of `reproduce repl`

Traces of twice the length are not learnt from the start, and one that is learnt is not sharpened
by more steps at its own length. So each stage starts from the weights of the one before, and
doubles the length. After each stage: accuracy by eighths of traces sixteen times as long as those
of the first stage. What is printed also goes to OUT/longer.json; a run that is there is not trained
again.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import torch
from fading import TASK, accuracy
from torch import Tensor

from statetrack.experiments.recipes import tagging_run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig, run

TIMES = 16
STAYING = ScheduleConfig(shape="wsd", warmup=0.05, final=0.05, cooldown=0.3)


class Stage(NamedTuple):
    lengths: tuple[int, int]
    batch: int
    steps: int


SMALL = (Stage((4, 12), 32, 1600), Stage((4, 24), 16, 600), Stage((4, 48), 8, 1000))
FULL = (Stage((8, 32), 64, 15_000), Stage((8, 64), 32, 5000), Stage((8, 128), 16, 10_000))


def config(stage: Stage, seed: int, full: bool, far: int) -> RunConfig:
    return tagging_run(
        TASK,
        "DeltaNet",
        d_model=128 if full else 64,
        num_layers=2,
        options={"num_heads": 4 if full else 2, "eigen_range": (-1.0, 1.0)},
        lengths=stage.lengths,
        steps=stage.steps,
        batch=stage.batch,
        lr=1e-3 if full else 2e-3,
        clip_norm=1.0,
        schedule=STAYING,
        evaluation=EvaluationConfig(every=stage.steps, size=16, lengths=(far, far), batch=16),
        precision="bf16" if full else "fp32",
        seed=seed,
        checkpoint_every=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("build/longer"))
    arguments = parser.parse_args()
    stages = FULL if arguments.full else SMALL
    far = TIMES * stages[0].lengths[1]
    found = []
    weights: dict[str, Tensor] | None = None
    for stage in stages:
        chosen = config(stage, arguments.seed, arguments.full, far)
        print(f"training on {stage.lengths[1]} statements, {stage.steps} steps", flush=True)
        done = run(chosen, arguments.out, device=arguments.device, start=weights)
        weights = done.weights()
        model = chosen.build(torch.Generator().manual_seed(0))
        model.load_state_dict(weights)
        told = accuracy(model.eval(), far)
        found.append({"lengths": stage.lengths, "steps": stage.steps, "accuracy": told})
        print(f"{stage.lengths[0]} to {stage.lengths[1]} statements: {told}", flush=True)
        (arguments.out / "longer.json").write_text(
            json.dumps({"seed": arguments.seed, "far": far, "stages": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
