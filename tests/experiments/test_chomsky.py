"""Table 3 by the paper's numbers."""

from functools import cache

import pytest

from statetrack.experiments import Version
from statetrack.experiments.chomsky import chomsky
from statetrack.training import RunConfig
from tests.experiments.cases import one

# version, task, mixer -> layers, steps, batch, weight decay, clipping, learning rates
PROTOCOL = {
    ("shipped", "parity", "DeltaNet"): (2, 20_000, 256, 0.0, None, {1e-3}),
    ("shipped", "mod_arithmetic", "Mamba"): (2, 100_000, 256, 0.1, None, {1e-3}),
    ("shipped", "parity", "SLSTM"): (2, 20_000, 256, 0.1, None, {1e-3}),
    ("ran", "mod_arithmetic", "Mamba"): (2, 100_000, 1024, 0.1, None, {1e-2, 1e-3, 1e-4}),
    ("ran", "parity", "Mamba"): (2, 20_000, 256, 0.0, None, {1e-2, 1e-3, 1e-4}),
    ("workshop", "parity", "DeltaNet"): (2, 100_000, 1024, 0.1, None, {1e-2, 1e-3, 1e-4}),
    ("workshop", "mod_arithmetic", "SLSTM"): (2, 100_000, 512, 0.1, None, {1e-2, 1e-3, 1e-4}),
    ("iclr", "parity", "DeltaNet"): (2, 100_000, 1024, 0.1, None, {1e-2, 1e-3, 5e-4, 1e-4}),
    ("iclr", "mod_arithmetic", "DeltaNet"): (3, 100_000, 1024, 0.1, 1.0, {1e-2, 1e-3, 5e-4, 1e-4}),
    ("iclr", "mod_arithmetic", "MLSTM"): (3, 100_000, 512, 0.1, None, {1e-2, 1e-3, 5e-4, 1e-4}),
    ("iclr", "mod_arithmetic_brackets", "Attention"): (
        *(3, 100_000, 1024, 0.1, 1.0),
        {1e-2, 1e-3, 5e-4, 1e-4},
    ),
}


@cache
def paper_runs(version: Version) -> list[RunConfig]:
    return chomsky("paper", version)


@pytest.mark.parametrize("cell", PROTOCOL)
def test_chomsky_protocol(cell: tuple[Version, str, str]) -> None:
    version, task, mixer = cell
    runs = paper_runs(version)
    config = one(runs, task, mixer)
    rates = {
        c.optimizer.lr for c in runs if (c.task, c.model.backbone.mixers[0].layer) == (task, mixer)
    }
    got = (
        config.model.backbone.num_layers,
        config.steps,
        config.batch,
        config.optimizer.weight_decay,
        config.optimizer.clip_norm,
        rates,
    )
    assert got == PROTOCOL[cell]
    assert config.lengths == (3, 40) and config.evaluation.lengths == (40, 256)
    assert config.evaluation.size == 8192 and config.evaluation.every == 1000
    assert config.precision == "bf16" and config.model.backbone.d_model == 128
    assert config.schedule.warmup == 0.1 and config.schedule.final == 1e-3
    assert config.optimizer.betas == (0.9, 0.999) and config.optimizer.eps == 1e-8
    rule = "matrices" if mixer in ("MLSTM", "SLSTM") else "all_but_state"
    assert config.optimizer.decay == rule
    if mixer == "Mamba":
        conv = 1 if version in ("shipped", "ran") else 4
        assert config.model.backbone.mixers[0].options["conv_size"] == conv
    assert {c.seed for c in runs} == {0, 1, 2}
    assert any(c.model.backbone.mixers[0].layer == "Attention" for c in runs) == (version == "iclr")
