"""Why a language model with [-1, 1] begins worse, or better: the sign, the start or the speed.

    python benchmarks/beta_start.py --shards shards --out beta_start.jsonl

The small copy of the language study that `warmup.py` trains, by the recipe (a warm-up of a tenth,
first weights of 0.02, rate 0.003), stopped after 200 of 1526 steps. DeltaNet with

    usual     β = σ(x)                  begins at 0.5
    extended  β = 2σ(x)                 begins at 1, moves twice as fast, may reflect
    capped    β = min(2σ(x), 1)         begins and moves so, but never reflects
    shifted   β = 2σ(x - log 3)         `beta_start`: begins at 0.5, moves 1.5 times as fast
    learnt    β = (1 + tanh g) σ(x)     `learn_range`: as `usual` at first, each head learns its g

and GLA, whose gates begin near 1, with s = σ(x)^(1/16):

    gla usual     a = s                 begins at 0.957
    gla extended  a = 2s - 1            begins at 0.915, moves twice as fast, may be negative
    gla capped    a = max(2s - 1, 0)    begins and moves so, but never is

and Gated DeltaNet with β as DeltaNet has it (`gated usual`, `gated extended`, `gated capped`,
`gated shifted`, `gated learnt`).

Rows that are in the file already are not made again.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from warmup import USUAL, config, make_rows, measured

WARMUP, STD, LR = 0.1, 0.02, 3e-3
GATED = {"num_heads": 3, "head_dim": 64, "value_dim": 128}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "usual": USUAL,
    "extended": ("DeltaNet", {"num_heads": 4, "eigen_range": (-1.0, 1.0)}),
    "capped": ("CappedDeltaNet", {"num_heads": 4}),
    "shifted": ("DeltaNet", {"num_heads": 4, "eigen_range": (-1.0, 1.0), "beta_start": 0.5}),
    "learnt": ("DeltaNet", {"num_heads": 4, "eigen_range": (-1.0, 1.0), "learn_range": True}),
    "gla usual": ("GLA", {"num_heads": 2, "eigen_range": (0.0, 1.0)}),
    "gla extended": ("GLA", {"num_heads": 2, "eigen_range": (-1.0, 1.0)}),
    "gla capped": ("CappedGLA", {"num_heads": 2}),
    "gated usual": ("GatedDeltaNet", GATED | {"eigen_range": (0.0, 1.0)}),
    "gated extended": ("GatedDeltaNet", GATED | {"eigen_range": (-1.0, 1.0)}),
    "gated capped": ("CappedGatedDeltaNet", GATED),
    "gated shifted": ("GatedDeltaNet", GATED | {"eigen_range": (-1.0, 1.0), "beta_start": 0.5}),
    "gated learnt": ("GatedDeltaNet", GATED | {"eigen_range": (-1.0, 1.0), "learn_range": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make_rows(
        arguments.out,
        (
            (
                {"model": name, "seed": seed},
                partial(measured, config(arguments.shards, WARMUP, STD, seed, MODELS[name], LR)),
            )
            for seed in arguments.seeds
            for name in arguments.models
        ),
    )


if __name__ == "__main__":
    main()
