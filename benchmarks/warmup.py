"""What the first steps of a language model do to it: warm-up and the size of the first weights.

    python benchmarks/warmup.py --shards shards --out warmup.jsonl

A small copy of the language study (DeltaNet [0, 1] of width 256, six blocks, batches of 8 x 256
tokens, fp32, one thread), which stops after 200 of its 1526 steps: five minutes a run on one core.
Shards are those of `statetrack lm tokenize`, with a vocabulary of 4096. Rows that are in the file
already are not made again.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from statetrack import lm
from statetrack.models import BackboneConfig, CausalLMConfig
from statetrack.training import Engine
from statetrack.training.config import ScheduleConfig

STEPS, STOP = 1526, 200
VARIANTS = ((0.025, 0.006), (0.1, 0.006), (0.025, 0.02))
"""Share of the steps in which the rate rises; standard deviation of the first weights."""
USUAL = ("DeltaNet", {"num_heads": 4, "eigen_range": (0.0, 1.0)})


def config(
    shards: Path, warmup: float, std: float, seed: int, mixer: Any = USUAL, lr: float = 1.5e-3
) -> lm.PretrainConfig:
    backbone = BackboneConfig(
        mixers=[mixer] * 6, d_model=256, mlp_dim=768, mlp="swiglu", norm="rms"
    )
    model = CausalLMConfig(
        vocab_size=lm.Manifest.read(shards).vocab_size,
        backbone=backbone,
        embedding_std=std,
        projection_std=std,
    )
    return lm.PretrainConfig(
        model=model,
        data=str(shards),
        steps=STEPS,
        batch=8,
        length=256,
        seed=seed,
        data_seed=seed,
        optimizer=lm.PretrainOptimizerConfig(lr=lr),
        schedule=ScheduleConfig(warmup=warmup, final=0.1),
        evaluation=lm.PretrainEvaluationConfig(every=STOP, windows=32),
        log_every=10,
        checkpoint_every=None,
        peak_tflops=1.0,
    )


def measured(run: lm.PretrainConfig) -> dict[str, Any]:
    """The losses of training, every ten steps, and that of the validation text after the last."""
    curve: list[tuple[int, float]] = []
    for rows in Engine([run]):
        losses = [row for row in rows[0] if row.metric == "loss" and row.overall]
        curve += [(row.step, round(row.value, 4)) for row in losses if row.split == "train"]
        held_out = [row.value for row in losses if row.split == "validation"]
        if held_out:
            break
    return {"validation": held_out[0], "train": curve}


def make_rows(
    out: Path, wanted: Iterable[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]
) -> None:
    """Adds a line to `out` for every (what it is, how it is measured) that has none there yet."""
    text = out.read_text() if out.exists() else ""
    there = [json.loads(line) for line in text.splitlines()]
    for what, measure in wanted:
        if any(row | what == row for row in there):
            continue
        row = what | measure()
        print({name: value for name, value in row.items() if name != "train"}, flush=True)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make_rows(
        arguments.out,
        (
            (
                {"warmup": warmup, "std": std, "seed": seed},
                partial(measured, config(arguments.shards, warmup, std, seed)),
            )
            for seed in arguments.seeds
            for warmup, std in VARIANTS
        ),
    )


if __name__ == "__main__":
    main()
