"""Trains small models, extracts the machine of each, and prints it as a row of a table.

    python benchmarks/extract.py            # about two minutes on one core

Besides what `extract` found, the share of 64 random sequences that the model answers without a
mistake, at lengths far beyond training.
"""

import tempfile
import time
from typing import Any

from statetrack import tasks
from statetrack._amx import avoid_amx_trap
from statetrack.analysis import extract, horizon
from statetrack.models import BackboneConfig, TaggerConfig
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, run

avoid_amx_trap()

ONE = {"num_heads": 2, "conv_size": 0}
TWO = {**ONE, "num_householders": 2}
SIGNED, UNSIGNED = (-1.0, 1.0), (0.0, 1.0)
BARE: dict[str, Any] = {"mlp": "none"}
MLP: dict[str, Any] = {"mlp_dim": 64}

WORKS: list[tuple[str, str, dict[str, Any], int, tuple[int, int], int, dict[str, Any]]] = [
    # task, mixer, its options, layers, lengths, steps, backbone
    ("parity_dense", "DeltaNet", {**ONE, "eigen_range": SIGNED}, 1, (3, 16), 500, BARE),
    ("parity_dense", "DeltaNet", {**ONE, "eigen_range": UNSIGNED}, 1, (3, 16), 500, BARE),
    ("parity_dense", "DeltaNet", {"num_heads": 2}, 2, (3, 20), 500, MLP),
    ("z3", "DeltaProduct", TWO, 1, (16, 16), 500, BARE),
    ("s3_swaps", "DeltaNet", ONE, 1, (16, 16), 800, BARE),
    ("s3", "DeltaProduct", TWO, 1, (16, 16), 1000, BARE),
    ("regex:(a|b)*ab", "DeltaNet", ONE, 1, (3, 20), 400, MLP),
    ("regex:(ab)*", "DeltaNet", ONE, 1, (3, 20), 400, MLP),
    ("regex:(ab)*", "DeltaNet", {"num_heads": 2}, 1, (3, 20), 400, MLP),
]


def config_of(
    task: str,
    mixer: str,
    options: dict[str, Any],
    layers: int,
    lengths: tuple[int, int],
    steps: int,
    body: dict[str, Any],
) -> RunConfig:
    """A line of `WORKS` as a run."""
    learns = tasks.get(task)
    backbone = BackboneConfig(mixers=[(mixer, options)] * layers, d_model=32, **body)
    return RunConfig(
        task=task,
        model=TaggerConfig(
            vocab_size=learns.vocab_size, num_classes=learns.num_classes, backbone=backbone
        ),
        steps=steps,
        batch=64,
        lengths=lengths,
        optimizer=OptimizerConfig(lr=5e-3),
        evaluation=EvaluationConfig(every=steps, size=64),
        log_every=100,
        checkpoint_every=None,
    )


def main() -> None:
    for work in WORKS:
        task, mixer, options, layers, *_ = work
        config, learns = config_of(*work), tasks.get(task)
        with tempfile.TemporaryDirectory() as root:
            trained = run(config, root)
            begun = time.monotonic()
            found = extract(trained)
            seconds = time.monotonic() - begun
            right = horizon(trained.model(), learns, (64, 256, 1024), sequences=64)
        name = f"{mixer} {options.get('eigen_range', SIGNED)}, {layers} layer"
        name += ", convolution" * ("conv_size" not in options)
        states = "none" if found.machine is None else str(found.machine.num_states)
        same = "-" if found.machine is None else "no" if found.difference else "yes"
        breaks = "-" if found.breaks is None else str(len(found.breaks.word))
        shares = " / ".join(f"{share:.2f}" for share in right.values())
        cells = (
            task.replace("|", "\\|"),
            name,
            states,
            same,
            found.trusted_to or "-",
            breaks,
            shares,
        )
        print(
            "|", " | ".join(map(str, cells)), f"| {found.queries:,} | {seconds:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
