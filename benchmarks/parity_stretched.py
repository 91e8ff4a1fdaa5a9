"""Parity to 65,536 bits by training alone: DeltaNet as it is, and with its β stretched.

    python benchmarks/parity_stretched.py       # about eight minutes on one core

The share of random words of just that length that are answered without a mistake, bit after bit;
and for each head β of a 0, β of a 1, and the cosine between the keys of the two.
"""

import argparse
import dataclasses
import tempfile

import torch
from extract import BARE, ONE, SIGNED, UNSIGNED, config_of

from statetrack._amx import avoid_amx_trap
from statetrack.analysis import horizon
from statetrack.layers.transitions import HouseholderTransitions
from statetrack.models import Tagger
from statetrack.training import OptimizerConfig, run

avoid_amx_trap()

TASK = "parity_dense"
LENGTHS = (256, 1024, 4096, 16_384, 65_536)
WORDS, RATE = 64, 3e-3
BITS = torch.tensor([[1, 2]])  # the tokens of 0 and 1
CASES = (
    # range, stretch, greatest length of training, batch: about equally many bits a step
    (SIGNED, 0.0, 256, 16),
    (SIGNED, 1.0, 40, 64),
    (SIGNED, 1.0, 256, 16),
    (UNSIGNED, 1.0, 256, 16),
)


@torch.no_grad()
def heads_of(model: Tagger) -> str:
    block = model.backbone.blocks[0]
    seen = block.mixer.transitions(block.mixer_norm(model.embedding(BITS)))
    assert isinstance(seen, HouseholderTransitions)
    beta, (zero, one) = seen.beta[0, :, 0], seen.k[0, :, 0]
    cosines = (zero * one).sum(-1)
    rows = zip(*beta.tolist(), cosines.tolist(), strict=True)
    return "; ".join(f"{a:.4f} {b:.4f} {c:.4f}" for a, b, c in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    chosen = parser.parse_args()
    lengths = " | ".join(f"{length:,}" for length in LENGTHS)
    print(f"| range | stretch | trained to | seed | {lengths} | heads |", flush=True)
    for between, stretch, longest, batch in CASES:
        options = {**ONE, "eigen_range": between, "beta_stretch": stretch}
        config = config_of(TASK, "DeltaNet", options, 1, (3, longest), 1000, BARE)
        name = f"[{between[0]:g}, 1] | {stretch:g} | {longest}"
        config = dataclasses.replace(config, batch=batch, optimizer=OptimizerConfig(lr=RATE))
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            with tempfile.TemporaryDirectory() as root:
                model = run(dataclasses.replace(config, seed=seed), root).model()
            right = horizon(model, TASK, LENGTHS, sequences=WORDS).values()
            cells = " | ".join(f"{share:.3f}" for share in right)
            print(f"| {name} | {seed} | {cells} | {heads_of(model)} |", flush=True)


if __name__ == "__main__":
    main()
