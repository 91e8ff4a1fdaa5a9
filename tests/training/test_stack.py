"""Runs trained together are the runs trained alone."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from statetrack import tasks
from statetrack.models import paper_config
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, Session
from statetrack.training.stack import Stack, stacks
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
    session = Session(config)
    rows = [row for rows in session for row in rows]
    return rows, {name: p.detach() for name, p in session.model.named_parameters()}


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
]


@pytest.mark.parametrize(
    "config", CASES, ids=lambda c: f"{c.task}-{c.model.backbone.mixers[0].layer}"
)
def test_together_is_alone_in_float64(config: RunConfig, float64: None) -> None:
    """Losses, all other rows and the final weights, to the last few bits."""
    configs = different(config)
    stack = Stack(configs)
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
        for name, value in stack.weights_of(run).items():
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
    stack = Stack([bad, good])
    rows = [row for rows in stack for row in rows.get(1, [])]
    assert stack.failed[1] is None and stack.step == good.steps
    assert "learning rate" in str(stack.failed[0])
    expected, _ = alone(good)
    assert [row.value for row in rows] == pytest.approx([row.value for row in expected], rel=1e-9)


def test_each_run_stops_when_it_is_solved() -> None:
    """A run that reaches its goal ends; its weights stay those of that moment."""
    for seed in range(20):  # until one is better than a guess, by luck, before its last step
        easy = tiny.config(stop_at=0.1, seed=seed)
        session = Session(easy)
        list(session)
        if session.step < easy.steps:
            break
    else:
        pytest.fail("no run was solved by luck")
    hard = dataclasses.replace(easy, stop_at=None, seed=1)
    stack = Stack([easy, hard])
    rows = list(stack)
    assert stack.solved == [True, False] and stack.step == hard.steps
    assert max(new[0][-1].step for new in rows if 0 in new) == session.step
    for name, value in stack.weights_of(0).items():
        torch.testing.assert_close(value, dict(session.model.named_parameters())[name].detach())


def test_a_run_moves_between_a_stack_and_a_session() -> None:
    """The state of one run of a stack is a session's state, both ways, and goes on the same."""
    configs = different(tiny.config())
    whole = Stack(configs)
    list(whole)
    cut = Stack(configs)
    steps = iter(cut)
    next(steps)
    next(steps)
    session = Session(configs[1])
    session.restore(*cut.state(1))
    list(session)
    for name, parameter in session.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), whole.weights_of(1)[name])
    begun = [Session(config) for config in configs]
    for one in begun:
        next(iter(one))
    resumed = Stack(configs)
    for run, one in enumerate(begun):
        resumed.restore(run, *one.state())
    list(resumed)
    for run in range(3):
        for name, value in resumed.weights_of(run).items():
            torch.testing.assert_close(value, whole.weights_of(run)[name])


def test_what_can_train_together() -> None:
    config = tiny.config()
    other = dataclasses.replace(config, batch=8)
    configs = [*different(config), other, dataclasses.replace(config, seed=9)]
    assert [len(group) for group in stacks(configs)] == [4, 1]
    assert [len(group) for group in stacks(configs, most=3)] == [3, 1, 1]
    with pytest.raises(ValueError, match="must agree in everything but seed"):
        Stack([config, other])


def test_streams_draw_what_each_would_draw_alone() -> None:
    for name in (
        "parity",
        "mod_arithmetic",
        "mod_arithmetic_brackets",
        "s5_swaps",
        "regex:(a|b)*ab",
    ):
        task = tasks.get(name)
        high = 12 if not task.fixed_length else 7

        def streams(task: tasks.Task = task) -> list[torch.Generator]:
            return [tasks.generator(task, "train", seed) for seed in (1, 2, 3)]

        together = task.sample_streams(5, high, generators=streams())
        assert together.tokens.shape[0] == 15
        for run, generator in enumerate(streams()):
            own = task.sample(5, high, generator=generator)
            rows = slice(5 * run, 5 * run + 5)
            width = own.tokens.shape[1]
            assert torch.equal(together.tokens[rows, :width], own.tokens)
            assert torch.equal(together.targets[rows, :width], own.targets)
            assert torch.equal(together.mask[rows, :width], own.mask)
            assert not together.mask[rows, width:].any()


@pytest.mark.parametrize(
    "name", ["parity", "mod_arithmetic", "mod_arithmetic_brackets", "s5_4tokens"]
)
def test_labelling_streams_together_changes_nothing(name: str) -> None:
    """What a GPU does in one go, at a width that all streams share."""
    task = tasks.get(name)
    lengths = tasks.LengthRange(16, 16)
    seeds = (1, 2, 3)
    source = tuple(tasks.generator(task, "train", seed) for seed in seeds)
    together = task.sampler(12, lengths, source, torch.device("cpu"))
    for run, seed in enumerate(seeds):
        own = task.sample(4, 16, min_length=16, generator=tasks.generator(task, "train", seed))
        rows = slice(4 * run, 4 * run + 4)
        assert torch.equal(together.tokens[rows], own.tokens)
        assert torch.equal(together.targets[rows], own.targets)


def test_reading_at_few_times_is_reading_at_all_of_them() -> None:
    config = tiny.config()
    model = Session(config).model
    tokens = torch.randint(0, 3, (4, 9), generator=torch.Generator().manual_seed(0))
    at = torch.tensor([[0, 8], [3, 4], [8, 1], [2, 2]])
    some, _ = model(tokens, read_at=at)
    everywhere, _ = model(tokens)
    torch.testing.assert_close(some, everywhere.take_along_dim(at[..., None], 1))
    assert math.isfinite(some.sum().item())
