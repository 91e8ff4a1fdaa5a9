"""Silent traces in stages of longer and longer ones: how far DeltaNet [-1, 1] carries then.

    python benchmarks/longer.py --out build/longer         # about six minutes of one core

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


STAGES = (Stage((4, 12), 32, 1600), Stage((4, 24), 16, 600), Stage((4, 48), 8, 1000))


def config(stage: Stage, seed: int, far: int) -> RunConfig:
    return tagging_run(
        TASK,
        "DeltaNet",
        d_model=64,
        num_layers=2,
        options={"num_heads": 2, "eigen_range": (-1.0, 1.0)},
        lengths=stage.lengths,
        steps=stage.steps,
        batch=stage.batch,
        lr=2e-3,
        clip_norm=1.0,
        schedule=STAYING,
        evaluation=EvaluationConfig(every=stage.steps, size=16, lengths=(far, far), batch=16),
        precision="fp32",
        seed=seed,
        checkpoint_every=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/longer"))
    arguments = parser.parse_args()
    far = TIMES * STAGES[0].lengths[1]
    found = []
    weights: dict[str, Tensor] | None = None
    for stage in STAGES:
        chosen = config(stage, arguments.seed, far)
        print(f"training on {stage.lengths[1]} statements, {stage.steps} steps", flush=True)
        done = run(chosen, arguments.out, start=weights)
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
