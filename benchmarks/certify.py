"""Certified lengths of small trained models, polished ones and compiled ones, as two tables.

    python benchmarks/certify.py [--no-polish]        # about three minutes on one core

The trained models are the one-layer models of benchmarks/extract.py.
"""

import argparse
import tempfile
import time

from extract import BARE, WORKS, config_of

from statetrack import tasks
from statetrack._amx import avoid_amx_trap
from statetrack.analysis import certify, polish
from statetrack.automata import read
from statetrack.compiler import compile
from statetrack.training import run

avoid_amx_trap()

MADE_FOR = 4096
MACHINES = (
    "parity", "z3", "s3", "s3_swaps", "(a|b)*ab", "(ab)*", "counter_5", "dyck_2_depth_3",
)  # fmt: skip


def trained(with_polish: bool) -> None:
    for work in WORKS:
        task, mixer, options, layers, *_, body = work
        if layers > 1 or body != BARE or options.get("eigen_range", (-1.0, 1.0))[0] == 0:
            continue
        machine = tasks.get(task).machine
        assert machine is not None
        with tempfile.TemporaryDirectory() as root:
            done = run(config_of(*work), root)
            found = certify(done, machine, task)
            cells = [task, mixer, f"{found.exact:,}", f"{found.stepwise:,}", f"{found.chunked:,}"]
            if with_polish:
                begun = time.process_time()
                better = polish(done, machine, task)
                seconds = f"{time.process_time() - begun:.0f}"
                if better.model is None:
                    cells += [f"rejected: {better.why}", "", "", seconds]
                else:
                    again = certify(better.model, machine, task)
                    lengths = f"{again.exact:,}", f"{again.stepwise:,}"
                    cells += [*lengths, f"{better.changed:.0%}", seconds]
        print("|", " | ".join(cells), "|", flush=True)


def compiled() -> None:
    for name in MACHINES:
        machine = tasks.get(name).machine if name == "s3_swaps" else read(name)
        assert machine is not None
        found = certify(compile(machine).to_tagger(max_length=MADE_FOR), machine)
        print(f"| {name} | {found.exact:,} | {found.stepwise:,} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-polish", action="store_true", help="certify alone")
    with_polish = not parser.parse_args().no_polish
    print("model | exact | float32 | chunked | polished: exact | float32 | changed by | CPU s")
    trained(with_polish)
    print("compiled machine | exact | float32")
    compiled()


if __name__ == "__main__":
    main()
