"""Every recipe runs, and carries the paper's numbers where it carries the paper's name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from statetrack import experiments
from statetrack.experiments import EXPERIMENTS, Scale, Version
from statetrack.experiments.chomsky import chomsky
from statetrack.experiments.demo import demo
from statetrack.experiments.parity_diagonal import parity_diagonal
from statetrack.experiments.picture import bars
from statetrack.experiments.states import states
from statetrack.experiments.words import householders, s5, z60
from statetrack.report.tables import group_runs, row
from statetrack.sweep import run_many
from statetrack.training import RunConfig


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_scale_runs(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    sweep = run_many(experiment.runs("smoke", "iclr"), tmp_path, workers=0)
    assert [run.error for run in sweep.failed] == []
    for run in sweep.runs:
        assert run.last(experiment.metric) is not None
        assert run.curve()
    table = [row(group) for group in group_runs(sweep.runs)]
    assert len(table) == len(sweep.runs)  # no two runs fall into one cell
    assert all(line.missing == 0 and line.best is not None for line in table)
    assert {line.metric for line in table} == {experiment.metric}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_scales_and_versions_are_distinct_runs(name: str) -> None:
    for scale in get_args(Scale):
        for version in get_args(Version):
            runs = EXPERIMENTS[name].runs(scale, version)
            assert len({config.fingerprint for config in runs}) == len(runs)
            if scale == "paper":
                assert all(config.stop_at is None for config in runs)


def layer_of(config: RunConfig) -> str:
    return config.model.backbone.mixers[0].layer


def options_of(config: RunConfig) -> Mapping[str, Any]:
    return config.model.backbone.mixers[0].options


def one(runs: list[RunConfig], task: str, mixer: str) -> RunConfig:
    return next(c for c in runs if (c.task, layer_of(c)) == (task, mixer))


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


@pytest.mark.parametrize("cell", PROTOCOL)
def test_chomsky_protocol(cell: tuple[Version, str, str]) -> None:
    version, task, mixer = cell
    runs = chomsky("paper", version)
    config = one(runs, task, mixer)
    rates = {c.optimizer.lr for c in runs if (c.task, layer_of(c)) == (task, mixer)}
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
        assert options_of(config)["conv_size"] == conv
    assert {c.seed for c in runs} == {0, 1, 2}
    assert any(layer_of(c) == "Attention" for c in runs) == (version == "iclr")


def test_word_problem_protocol() -> None:
    final, first = (
        [c for c in s5("paper", version) if layer_of(c) != "DeltaProduct"]
        for version in ("iclr", "workshop")
    )
    assert {c.task for c in final} == {"s5", "s5_swaps", "s5_3perms", "s5_4tokens"}
    assert {c.steps for c in final} == {312_500}
    assert one(first, "s5_swaps", "DeltaNet").steps == 30 * 3125
    assert one(first, "s5", "DeltaNet").steps == 90 * 3125
    assert {c.seed for c in first} == {0} and {c.seed for c in final} == {0, 1, 2}
    config = one(final, "s5_4tokens", "DeltaNet")
    assert config.lengths == (64, 64) and config.evaluation.lengths == (500, 500)
    assert (config.batch, config.optimizer.lr, config.optimizer.weight_decay) == (512, 1e-4, 0.01)
    assert config.optimizer.clip_norm == 1.0 and config.evaluation.size == 40_000
    options = options_of(config)
    assert (options["conv_size"], options["qk_silu"], options["num_heads"]) == (0, False, 4)
    assert {c.model.backbone.num_layers for c in final if layer_of(c) == "DeltaNet"} == {1, 5}
    baseline = one(final, "s5", "FullMatrix")
    assert baseline.model.backbone.num_layers == 1
    assert options_of(baseline)["eigen_range"] is None
    assert options_of(baseline)["state_dim"] == 32
    assert {c.task for c in z60("paper", "iclr")} == {"z60", "z60_2tokens"}


def test_the_recipe_for_all_of_s5() -> None:
    """Not the paper's, so the same in all its versions."""
    ours = [c for c in s5("paper", "iclr") if layer_of(c) == "DeltaProduct"]
    assert ours == [c for c in s5("paper", "workshop") if layer_of(c) == "DeltaProduct"]
    assert {options_of(c)["eigen_range"] for c in ours} == {(0.0, 1.0), (-1.0, 1.0)}
    for config in ours:
        assert config.task == "s5" and config.evaluation.lengths == (500, 500)
        backbone = config.model.backbone
        assert (backbone.num_layers, backbone.mlp, backbone.d_model) == (1, "none", 64)
        assert options_of(config)["num_householders"] == 4
        assert config.optimizer.weight_decay == 0.0 and config.schedule.final == 0.0


def test_householder_protocol() -> None:
    runs = householders("paper", "iclr")
    counts = {options_of(c)["num_householders"] for c in runs}
    assert counts == {1, 2, 3, 4} and {c.task for c in runs} == {"s3", "s4", "a5", "s5"}
    assert all(
        (c.batch, c.lengths, c.model.backbone.num_layers) == (2048, (128, 128), 1) for c in runs
    )


def test_diagonal_protocol() -> None:
    runs = parity_diagonal("paper", "iclr")
    assert all((c.model.backbone.d_model, c.batch, c.steps) == (10, 256, 20_000) for c in runs)
    warm = {options_of(c)["eigen_range"]: c.schedule.warmup for c in runs}
    assert warm == {(0.0, 1.0): 0.1, (-1.0, 1.0): 0.0}
    assert all(not c.model.backbone.residual and c.model.backbone.num_layers == 1 for c in runs)


def test_states_settle_or_alternate() -> None:
    by_label = {t.label: t for t in states(64)}
    assert by_label["a = 0.5"].gap < 1e-12
    assert by_label["a = -1"].states[-4:] == (1.0, 0.0, 1.0, 0.0)
    ones = range(1, 65)
    assert by_label["parity, compiled"].states == tuple(-1.0 if t % 2 else 1.0 for t in ones)
    with pytest.raises(ValueError, match="at least 2"):
        states(1)


def test_names_aliases_and_misses() -> None:
    assert experiments.get("figure-1").name == "parity-diagonal"
    assert experiments.get("Table_3").name == "chomsky"
    with pytest.raises(ValueError, match="did you mean 'householders'"):
        experiments.get("housholders")


def test_picture() -> None:
    assert bars({1: 1.0, 2: 1.0, 3: 0.0, 4: -1.0}, width=2, height=2) == ["█ ", "█ "]
    assert bars({4: 0.5}, width=4, height=2, longest=4) == ["    ", "   █"]
    assert bars({}, width=3, height=1) == ["   "]
    assert bars({1: 1.0}, width=1, height=1, unicode=False) == ["#"]


def test_the_demo_recipe() -> None:
    runs = demo()
    assert len({c.fingerprint for c in runs}) == 4
    assert all(c.train_lengths == (3, 40) for c in runs)
    assert all(c.evaluation.lengths == (41, 256) for c in runs)
    assert {c.seed for c in demo(7)} == {7}
    # both ranges of a layer are trained alike
    assert len({(layer_of(c), c.steps, c.batch, c.optimizer, c.schedule) for c in runs}) == 2
