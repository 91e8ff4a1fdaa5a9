"""Language models on brackets, with and without the machine that follows them.

    python benchmarks/grammar_tracker.py [--steps 600] [--seeds 2] [--out FILE.json]

Texts are random brackets of two kinds, nested at most `DEPTH` deep. Which brackets may close is in
the text so far, at any distance. Models are trained at length 64 and read texts of up to 2048
tokens. The loss is above the least possible, the entropy of the source, which is known here.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack.automata import named, over_tokens
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig

DEPTH = 4
KINDS = 2
TRAINED = 64
LENGTHS = (64, 256, 1024, 2048)
OPENING, CLOSING = "([", ")]"
VOCABULARY = ["(", ")", "[", "]"]
MODELS: dict[str, list[Any]] = {
    "DeltaNet [0, 1]": [("DeltaNet", {"eigen_range": (0, 1), "num_heads": 2})] * 2,
    "DeltaNet [-1, 1]": [("DeltaNet", {"num_heads": 2})] * 2,
    "Tracker, DeltaNet [-1, 1]": ["Tracker", ("DeltaNet", {"num_heads": 2})],
}


def texts(batch: int, time: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [batch, time + 1], and -log p of each but the first under the source itself."""
    depth = torch.zeros(batch, dtype=torch.long)
    stack = torch.zeros(batch, DEPTH + 1, dtype=torch.long)
    rows = torch.arange(batch)
    tokens = torch.empty(batch, time + 1, dtype=torch.long)
    surprise = torch.empty(batch, time + 1)
    for t in range(time + 1):
        free = (depth > 0) & (depth < DEPTH)
        coin = torch.randint(0, 2, (batch,), generator=generator).bool()
        opens = torch.where(free, coin, depth == 0)
        kind = torch.randint(0, KINDS, (batch,), generator=generator)
        kind = torch.where(opens, kind, stack[rows, depth])
        surprise[:, t] = free * math.log(2) + opens * math.log(KINDS)
        depth = depth + torch.where(opens, 1, -1)
        stack[rows[opens], depth[opens]] = kind[opens]
        tokens[:, t] = 2 * kind + (~opens).long()
    return tokens, surprise[:, 1:]


def model_of(mixers: list[Any], seed: int) -> CausalLM:
    machine = over_tokens(named(f"dyck_{KINDS}_depth_{DEPTH}"), VOCABULARY)
    layers = [("Tracker", machine.options) if m == "Tracker" else m for m in mixers]
    backbone = BackboneConfig(mixers=layers, d_model=32, mlp_dim=64)
    config = CausalLMConfig(
        vocab_size=len(VOCABULARY), backbone=backbone, embedding_std=0.1, projection_std=None
    )
    return CausalLM(config, generator=torch.Generator().manual_seed(seed))


def train(model: CausalLM, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        tokens, _ = texts(32, TRAINED, generator)
        losses, _ = model.losses(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def judge(model: CausalLM) -> Iterator[tuple[int, float, float]]:
    """For each length the loss above the least at the last 64 tokens, and wrong brackets there.

    A bracket is wrong if the most likely closing one is not the one that closes.
    """
    tokens, least = texts(32, max(LENGTHS), torch.Generator().manual_seed(7))
    scores, _ = model(tokens[:, :-1])
    target = tokens[:, 1:]
    losses = -scores.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1)
    closing = target % 2 == 1
    wrong = (scores[..., 1] > scores[..., 3]) != (target == 1)
    for length in LENGTHS:
        place = slice(length - 64, length)
        above = (losses - least)[:, place].mean()
        share = wrong[:, place][closing[:, place]].float().mean()
        yield length, float(above), float(share)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for name, mixers in MODELS.items():
        for seed in range(given.seeds):
            model = model_of(mixers, seed)
            began = time.process_time()
            train(model, given.steps, seed)
            seconds = time.process_time() - began
            for length, above, wrong in judge(model):
                rows.append(
                    {"model": name, "seed": seed, "length": length, "above": above, "wrong": wrong}
                )
            size = sum(p.numel() for p in model.parameters())
            shown = ", ".join(
                f"{row['length']}: +{row['above']:.4f} ({100 * row['wrong']:.1f} % wrong)"
                for row in rows[-len(LENGTHS) :]
            )
            print(f"{name}, seed {seed}, {size} weights, {seconds:.0f} s: {shown}", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
