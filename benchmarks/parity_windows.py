"""Parity to 65,536 bits by training alone, on words of up to 16,384 bits read in windows of 64.

    python benchmarks/parity_windows.py         # about twenty minutes on one core

Beside it whole words of up to 256: 2055 bits a step, where the windows have 1473 and the rest is
padding. The share of random words of just that length that are answered without a mistake, bit
after bit; and for each head β of a 0, β of a 1, and the cosine between the keys of the two, where
keys do not see the bits before.
"""

import argparse
import dataclasses
import tempfile

from extract import BARE, ONE, SIGNED, UNSIGNED, config_of
from parity_stretched import LENGTHS, RATE, TASK, WORDS, heads_of

from statetrack.analysis import horizon
from statetrack.training import OptimizerConfig, run

STEPS = 6000
CASES = (
    # range, width of the convolution, greatest length of training, window, batch
    (SIGNED, 0, 16_384, 64, 32),
    (SIGNED, 0, 256, None, 16),
    (SIGNED, 4, 16_384, 64, 32),
    (UNSIGNED, 0, 16_384, 64, 32),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    chosen = parser.parse_args()
    lengths = " | ".join(f"{length:,}" for length in LENGTHS)
    print(f"| range | convolution | trained to | window | seed | {lengths} | heads |", flush=True)
    for between, width, longest, window, batch in (CASES[case] for case in chosen.cases):
        options = {**ONE, "eigen_range": between, "conv_size": width}
        config = config_of(TASK, "DeltaNet", options, 1, (3, longest), STEPS, BARE)
        config = dataclasses.replace(
            config, batch=batch, window=window, optimizer=OptimizerConfig(lr=RATE, clip_norm=1.0)
        )
        name = f"[{between[0]:g}, 1] | {width or 'none'} | {longest:,} | {window or 'none'}"
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            with tempfile.TemporaryDirectory() as root:
                model = run(dataclasses.replace(config, seed=seed, data_seed=seed), root).model()
            right = horizon(model, TASK, LENGTHS, sequences=WORDS).values()
            cells = " | ".join(f"{share:.3f}" for share in right)
            heads = "" if width else heads_of(model)
            print(f"| {name} | {seed} | {cells} | {heads} |", flush=True)


if __name__ == "__main__":
    main()
