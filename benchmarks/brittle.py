"""How brittle compiled taggers are: noise on their weights, steps of training, gradients by layer.

    python benchmarks/brittle.py          # two minutes on one core

A tagger with one layer stands beside those with a layer for each level of a cascade. Noise is a
share of the largest weight of each tensor. Training is Adam on the tagger's own task, on which it
begins without a mistake: a step moves every weight by about the rate, whatever its gradient.
"""

import argparse
import copy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack.automata import read
from statetrack.compiler import compile
from statetrack.models import Tagger
from statetrack.tasks import Batch, Task

MACHINES = ("s3_swaps", "a*b*", "cerny_4")
NOISES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
RATES = (1e-6, 1e-5, 1e-4, 1e-3)
STEPS = 100
MADE_FOR, JUDGED = 256, 40
DRAWS = 5


@torch.no_grad()
def right(tagger: Tagger, batch: Batch) -> float:
    """The share of letters that are answered rightly."""
    says = tagger(batch.tokens)[0].argmax(-1)
    return float((says == batch.targets)[batch.mask].float().mean())


def loss_of(tagger: Tagger, batch: Batch) -> torch.Tensor:
    scores, _ = tagger(batch.tokens)
    return cross_entropy(scores[batch.mask], batch.targets[batch.mask])


def noisy(tagger: Tagger, share: float, draw: torch.Generator) -> Tagger:
    found = copy.deepcopy(tagger)
    with torch.no_grad():
        for parameter in found.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter += share * parameter.abs().max() * noise
    return found


def trained(tagger: Tagger, task: Task, rate: float, batch: Batch) -> tuple[int | None, float]:
    """Steps until the first mistake (none within `STEPS`), and what is right at the end."""
    found, draw = copy.deepcopy(tagger), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(found.parameters(), lr=rate)
    broken = None
    for step in range(1, STEPS + 1):
        fresh = task.sample(64, JUDGED, min_length=3, generator=draw)
        optimizer.zero_grad()
        loss_of(found, fresh).backward()
        optimizer.step()
        if broken is None and right(found, batch) < 1:
            broken = step
    return broken, right(found, batch)


def main(machines: list[str]) -> None:
    for name in machines:
        machine = read(name)
        task, tagger = tasks.from_machine(machine), compile(machine).to_tagger(MADE_FOR)
        draw = torch.Generator().manual_seed(0)
        batch = task.sample(64, JUDGED, min_length=3, generator=draw)
        size = sum(parameter.numel() for parameter in tagger.parameters())
        layers = len(tagger.config.backbone.mixers)
        print(f"{name}: {layers} layers, {size:,} weights, {right(tagger, batch):.3f} right")
        for share in NOISES:
            found = [right(noisy(tagger, share, draw), batch) for _ in range(DRAWS)]
            print(
                f"  noise {share:g}: {np.median(found):.3f} right (median of {DRAWS})", flush=True
            )
        for rate in RATES:
            broken, end = trained(tagger, task, rate, batch)
            told = "no mistake" if broken is None else f"wrong after {broken} steps"
            print(f"  rate {rate:g}: {told}; {end:.3f} right after {STEPS}", flush=True)
        loss_of(tagger, batch).backward()
        for layer, block in enumerate(tagger.backbone.blocks, 1):
            sizes = [float(p.grad.abs().max()) for p in block.parameters() if p.grad is not None]
            print(f"  layer {layer}: gradients of its tensors {min(sizes):.0e} to {max(sizes):.0e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machines", nargs="*", default=list(MACHINES))
    main(parser.parse_args().machines)
