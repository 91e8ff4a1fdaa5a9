"""Loss curves of small runs, against numbers that were stored once: what a rebuild must not change.

The numbers are those of one machine. There, a rebuild that keeps the order of operations gives them
bit for bit; other CPUs add in other orders, and come within TOLERANCE. If a change is meant to
change the numbers, `python -m tests.training.test_golden` stores new ones.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack import tasks
from statetrack.layers import registry
from statetrack.models import paper_config
from statetrack.training import Engine, EvaluationConfig, OptimizerConfig, RunConfig
from statetrack.training.eager import Eager
from statetrack.training.executor import Executor
from statetrack.training.stacked import Stacked

STORED = Path(__file__).parent / "golden.json"
TOLERANCE = 1e-3  # of each loss; without vector instructions the worst curve is off by 2e-5

Curve = list[list[Any]]  # rows of step, split and loss

SIZES: dict[str, dict[str, int]] = {
    "DeltaProduct": {"num_householders": 2},
    "FullMatrix": {"state_dim": 4},
    "Mamba": {"d_state": 4},
    "Mamba2": {"head_dim": 8, "d_state": 8},
}


def config(layer: str, task: str = "parity", *, seed: int = 0, lr: float = 3e-3) -> RunConfig:
    chosen = tasks.get(task)
    model = paper_config(
        layer,
        vocab_size=chosen.vocab_size,
        num_classes=chosen.num_classes,
        d_model=16,
        num_layers=2,
        **SIZES.get(layer, {}),
    )
    decay = "matrices" if layer in ("MLSTM", "SLSTM") else "all_but_state"
    fixed = chosen.fixed_length
    return RunConfig(
        task=task,
        model=model,
        steps=20,
        batch=8,
        lengths=(8, 8) if fixed else (3, 12),
        optimizer=OptimizerConfig(lr=lr, weight_decay=0.1, clip_norm=1.0, decay=decay),
        evaluation=EvaluationConfig(
            every=10, size=32, batch=16, lengths=(16, 16) if fixed else (12, 20)
        ),
        seed=seed,
        data_seed=seed,
        log_every=5,
        checkpoint_every=10,
    )


def three(layer: str, task: str = "parity") -> list[RunConfig]:
    rates = enumerate((3e-3, 1e-3, 2e-3))
    return [config(layer, task, seed=seed, lr=lr) for seed, lr in rates]


# DeltaNet's large steps on parity enlarge every rounding error a thousandfold; on s3 they do not
EAGER = {layer: config(layer) for layer in sorted(registry.BUILT_IN)} | {
    "DeltaNet": config("DeltaNet", "s3"),
    "GLA, regex": config("GLA", "regex:(a|b)*ab"),
    "Mamba, mod_arithmetic_brackets": config("Mamba", "mod_arithmetic_brackets"),
}
STACKED = {f"{layer}, stacked": three(layer) for layer in ("GLA", "Mamba", "SLSTM")} | {
    "DeltaNet, stacked": three("DeltaNet", "s3")
}


def curves(configs: Sequence[RunConfig], executor: type[Executor]) -> list[Curve]:
    """The losses of every run."""
    found: list[Curve] = [[] for _ in configs]
    for rows in Engine(configs, executor=executor):
        for run, records in rows.items():
            losses = (r for r in records if r.metric == "loss" and r.length is None)
            found[run] += [[r.step, r.split, r.value] for r in losses]
    return found


def expect_stored(name: str, got: list[Curve]) -> None:
    wanted = json.loads(STORED.read_text())[name]
    assert len(got) == len(wanted)
    for curve, stored in zip(got, wanted, strict=True):
        assert [row[:2] for row in curve] == [row[:2] for row in stored]
        losses = [row[2] for row in curve]
        assert losses == pytest.approx([row[2] for row in stored], rel=TOLERANCE)


def test_every_layer_has_a_curve() -> None:
    assert registry.BUILT_IN <= EAGER.keys()
    assert json.loads(STORED.read_text()).keys() == EAGER.keys() | STACKED.keys()


@pytest.mark.parametrize("name", EAGER)
def test_eager(name: str) -> None:
    expect_stored(name, curves([EAGER[name]], Eager))


@pytest.mark.parametrize("name", STACKED)
def test_stacked(name: str) -> None:
    expect_stored(name, curves(STACKED[name], Stacked))


def store() -> None:
    torch.set_num_threads(1)
    made = {name: curves([one], Eager) for name, one in EAGER.items()}
    made |= {name: curves(several, Stacked) for name, several in STACKED.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in made.items())
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    store()
