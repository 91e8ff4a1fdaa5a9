"""Runs trained together are the runs trained alone."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from statetrack.models import paper_config
from statetrack.training import Engine, EvaluationConfig, OptimizerConfig, RunConfig
from statetrack.training.stacked import Stacked, stacks
from tests.training import tiny


@pytest.fixture
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def different(config: RunConfig) -> list[RunConfig]:
    """Three runs that differ in everything that runs of a stack may differ in."""
    own = [
        (0, 5, OptimizerConfig(lr=1e-3)),
        (1, 6, OptimizerConfig(lr=1e-2, weight_decay=0.5, clip_norm=0.05)),
        (2, 5, OptimizerConfig(lr=3e-2, weight_decay=0.1, clip_norm=100.0)),
    ]
    return [
        dataclasses.replace(
            config,
            seed=seed,
            data_seed=data_seed,
            optimizer=dataclasses.replace(optimizer, decay=config.optimizer.decay),
        )
        for seed, data_seed, optimizer in own
    ]


def alone(config: RunConfig) -> tuple[list[Any], dict[str, torch.Tensor]]:
    engine = Engine([config])
    rows = [row for rows in engine for row in rows[0]]
    return rows, engine.executor.weights_of(0)


def stacked(configs: list[RunConfig]) -> Engine:
    return Engine(configs, executor=Stacked)


CASES = [
    tiny.config(),
    tiny.config(task="parity_dense"),
    tiny.config(model=tiny.model("Mamba"), task="parity"),
    tiny.config(model=tiny.model("MLSTM"), task="parity"),
    tiny.config(
        task="s3",
        model=paper_config("DeltaProduct", vocab_size=13, d_model=8, num_heads=2, num_layers=2),
        lengths=(6, 6),
        evaluation=EvaluationConfig(every=4, size=16, lengths=(8, 8)),
        optimizer=OptimizerConfig(decay="matrices"),
    ),
    tiny.config(  # read at the times of answers, some of them at times that ask nothing
        task="boxes",
        model=paper_config("DeltaNet", vocab_size=121, num_classes=101, d_model=8, num_heads=2),
        lengths=(2, 4),
    ),
]


@pytest.mark.parametrize(
    "config", CASES, ids=lambda c: f"{c.task}-{c.model.backbone.mixers[0].layer}"
)
def test_together_is_alone_in_float64(config: RunConfig, float64: None) -> None:
    """Losses, all other rows and the final weights, to the last few bits."""
    configs = different(config)
    stack = stacked(configs)
    together: list[list[Any]] = [[], [], []]
    for rows in stack:
        for run, new in rows.items():
            together[run] += new
    for run, own in enumerate(configs):
        expected, weights = alone(own)
        assert len(together[run]) == len(expected)
        for got, wanted in zip(together[run], expected, strict=True):
            assert dataclasses.replace(got, value=0.0) == dataclasses.replace(wanted, value=0.0)
            assert got.value == pytest.approx(wanted.value, rel=1e-9, abs=1e-12)
        for name, value in stack.executor.weights_of(run).items():
            torch.testing.assert_close(value, weights[name], rtol=1e-9, atol=1e-12)


def test_the_runs_differ(float64: None) -> None:
    """Or the test above would compare nothing."""
    ends = [alone(own)[1] for own in different(tiny.config())]
    for name in ("embedding.weight", "head.weight"):
        assert not torch.allclose(ends[0][name], ends[1][name])
        assert not torch.allclose(ends[0][name], ends[2][name])


def test_a_run_that_diverges_is_marked_and_disturbs_no_other(float64: None) -> None:
    good = tiny.config(seed=3)
    bad = dataclasses.replace(good, seed=4, optimizer=OptimizerConfig(lr=1e300))
    stack = stacked([bad, good])
    rows = [row for rows in stack for row in rows.get(1, [])]
    assert stack.failed[1] is None and stack.step == good.steps
    assert "learning rate" in str(stack.failed[0])
    expected, _ = alone(good)
    assert [row.value for row in rows] == pytest.approx([row.value for row in expected], rel=1e-9)


def test_each_run_stops_when_it_is_solved() -> None:
    """A run that reaches its goal ends; its weights stay those of that moment."""
    for seed in range(20):  # until one is better than a guess, by luck, before its last step
        easy = tiny.config(stop_at=0.1, seed=seed)
        alone = Engine([easy])
        list(alone)
        if alone.step < easy.steps:
            break
    else:
        pytest.fail("no run was solved by luck")
    hard = dataclasses.replace(easy, stop_at=None, seed=1)
    stack = stacked([easy, hard])
    rows = list(stack)
    assert stack.solved == [True, False] and stack.step == hard.steps
    assert max(new[0][-1].step for new in rows if 0 in new) == alone.step
    for name, value in stack.executor.weights_of(0).items():
        torch.testing.assert_close(value, alone.executor.weights_of(0)[name])


def test_a_run_moves_between_executors() -> None:
    """The state of one run of a stack is that of a run alone, both ways, and goes on the same."""
    configs = different(tiny.config())
    whole = stacked(configs)
    list(whole)
    cut = stacked(configs)
    steps = iter(cut)
    next(steps)
    next(steps)
    one = Engine([configs[1]])
    one.restore(0, *cut.state(1))
    list(one)
    for name, value in one.executor.weights_of(0).items():
        torch.testing.assert_close(value, whole.executor.weights_of(1)[name])
    begun = [Engine([config]) for config in configs]
    for one in begun:
        next(iter(one))
    resumed = stacked(configs)
    for run, one in enumerate(begun):
        resumed.restore(run, *one.state(0))
    list(resumed)
    for run in range(3):
        for name, value in resumed.executor.weights_of(run).items():
            torch.testing.assert_close(value, whole.executor.weights_of(run)[name])


def test_what_can_train_together() -> None:
    config = tiny.config()
    other = dataclasses.replace(config, batch=8)
    configs = [*different(config), other, dataclasses.replace(config, seed=9)]
    assert [len(group) for group in stacks(configs)] == [4, 1]
    assert [len(group) for group in stacks(configs, most=3)] == [3, 1, 1]
    with pytest.raises(ValueError, match="must agree in everything but seed"):
        stacked([config, other])


def test_reading_at_few_times_is_reading_at_all_of_them() -> None:
    config = tiny.config()
    model = config.build()
    tokens = torch.randint(0, 3, (4, 9), generator=torch.Generator().manual_seed(0))
    at = torch.tensor([[0, 8], [3, 4], [8, 1], [2, 2]])
    some, _ = model(tokens, read_at=at)
    everywhere, _ = model(tokens)
    torch.testing.assert_close(some, everywhere.take_along_dim(at[..., None], 1))
    assert math.isfinite(some.sum().item())
