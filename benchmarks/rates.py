"""Which learning rate a language model takes, for both ranges alike, and what it begins with.

    python benchmarks/rates.py --shards shards --out rates.jsonl

Short runs of the language study (DeltaNet of 74M parameters, batches of 32 x 2048 tokens, its own
warm-up and cosine over 20M tokens, bf16, compiled): under two minutes each on a busy H200. A row
has the loss on the validation text, by domain too, and the greatest norm of a gradient. Rows that
are in the file already are not made again; `--part 0 2` makes every other one, for a process beside
it.
"""

import argparse
import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from warmup import make_rows

from statetrack import lm
from statetrack.lm.recipes import pretrain_config
from statetrack.training import Engine

USUAL, EXTENDED = [0.0, 1.0], [-1.0, 1.0]  # as a line of the file has them
BEFORE, NOW = (0.025, 0.006), (0.1, 0.02)
"""Share of the steps in which the rate rises; standard deviation of the first weights."""
VARIANTS = (
    (USUAL, *NOW, 1.5e-3, 0),
    (USUAL, *NOW, 3e-3, 0),
    (EXTENDED, *NOW, 3e-3, 0),
    (EXTENDED, *NOW, 1.5e-3, 0),
    (USUAL, *NOW, 6e-3, 0),
    (USUAL, *BEFORE, 1.5e-3, 0),
    (USUAL, *NOW, 3e-3, 1),
    (EXTENDED, *NOW, 6e-3, 0),
    (USUAL, *BEFORE, 1.5e-3, 1),
    (EXTENDED, *NOW, 3e-3, 1),
)
"""Range, warm-up, first weights, rate, seed: what tells most comes first."""


def config(arguments: argparse.Namespace, variant: tuple[Any, ...]) -> lm.PretrainConfig:
    ends, warmup, std, lr, seed = variant
    batch = arguments.batch
    found = pretrain_config(
        arguments.shards,
        arguments.size,
        "DeltaNet",
        mixer_options={"eigen_range": ends},
        lr=lr,
        warmup=warmup,
        std=std,
        batch=batch,
        seed=seed,
        data_seed=seed,
        compile="blocks" if torch.cuda.is_available() else "no",
        checkpoint_every=None,
    )
    steps = max(1, round(arguments.tokens / (batch * found.length)))
    every = found.log_every * math.ceil(steps / found.log_every)  # after the last step alone
    evaluation = lm.PretrainEvaluationConfig(every=every)
    return dataclasses.replace(found, steps=steps, evaluation=evaluation)


def measured(run: lm.PretrainConfig) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    held_out: dict[str, float] = {}
    curve: list[tuple[int, float]] = []
    greatest = 0.0
    for rows in Engine([run], device=device):
        for row in rows[0]:
            if row.metric == "grad_norm":
                greatest = max(greatest, row.value)
            elif row.metric == "loss" and row.split == "validation":
                if row.length is None:
                    held_out[row.domain or "all"] = round(row.value, 5)
            elif row.metric == "loss" and row.overall:
                curve.append((row.step, round(row.value, 4)))
    return {"validation": held_out, "grad_norm": round(greatest, 3), "train": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="60M")
    parser.add_argument("--tokens", type=float, default=2e7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"))
    arguments = parser.parse_args()
    names = ("eigen_range", "warmup", "std", "lr", "seed")
    first, parts = arguments.part
    make_rows(
        arguments.out,
        (
            (
                dict(zip(names, variant, strict=True)),
                partial(measured, config(arguments, variant)),
            )
            for variant in VARIANTS[first::parts]
        ),
    )


if __name__ == "__main__":
    main()
