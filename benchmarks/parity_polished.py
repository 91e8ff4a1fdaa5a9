"""Parity to 65,536 bits: one layer trained on up to 40, as it is and polished.

    python benchmarks/parity_polished.py        # about three minutes on one core

The share of random words of just that length that are answered without a mistake, bit after bit.
"""

import argparse
import dataclasses
import tempfile

from extract import BARE, ONE, SIGNED, config_of

from statetrack import tasks
from statetrack._amx import avoid_amx_trap
from statetrack.analysis import horizon, polish
from statetrack.training import run

avoid_amx_trap()

TASK = "parity_dense"
LENGTHS = (256, 1024, 4096, 16_384, 65_536)
WORDS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    machine = tasks.get(TASK).machine
    assert machine is not None
    config = config_of(TASK, "DeltaNet", {**ONE, "eigen_range": SIGNED}, 1, (3, 40), 1000, BARE)
    print("| seed | |", " | ".join(f"{length:,}" for length in LENGTHS), "|", flush=True)
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as root:
            done = run(dataclasses.replace(config, seed=seed), root)
            trained, found = done.model(), polish(done, machine, TASK)
        for name, model in (("trained", trained), ("polished", found.model)):
            if model is None:
                print(f"| {seed} | {name} | rejected: {found.why} |", flush=True)
                continue
            right = horizon(model, TASK, LENGTHS, sequences=WORDS).values()
            cells = " | ".join(f"{share:.3f}" for share in right)
            print(f"| {seed} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
