"""Batches drawn many at once are the same batches wherever a run is cut, and for every executor."""

import pytest
import torch

from statetrack import tasks
from statetrack.runs import Record
from statetrack.tasks import Batch
from statetrack.training import Engine, feed
from statetrack.training.eager import Eager
from statetrack.training.feed import Feed
from statetrack.training.stacked import Stacked
from tests.training import tiny

CPU = torch.device("cpu")
TOGETHER = 5
CONFIGS = [tiny.config(seed=seed, data_seed=seed) for seed in (3, 4)]


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "batches_at_once", lambda config, device: TOGETHER)


def assert_equal(one: Batch, other: Batch) -> None:
    for name in ("tokens", "targets", "mask"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.usefixtures("in_blocks")
def test_a_step_reads_its_part_of_the_block() -> None:
    config = CONFIGS[0]
    low, high = config.train_lengths
    stream = tasks.generator("parity", "train", config.data_seed)
    found = Feed([config], CPU)
    for _ in range(3):
        block = tasks.get("parity").sample(
            TOGETHER * config.batch, high, min_length=low, generator=stream
        )
        for part in range(TOGETHER):
            rows = slice(part * config.batch, (part + 1) * config.batch)
            assert_equal(
                found.next(), Batch(block.tokens[rows], block.targets[rows], block.mask[rows])
            )


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 6, 10])
def test_a_feed_goes_on_from_its_state(cut: int) -> None:
    whole, first, second = (Feed(CONFIGS, CPU) for _ in range(3))
    expected = [whole.next() for _ in range(14)]
    for _ in range(cut):
        first.next()
    for run in range(len(CONFIGS)):
        second.restore(run, first.state(run), cut)
    for batch in expected[cut:]:
        assert_equal(second.next(), batch)


def losses(rows: list[Record]) -> list[float]:
    return [row.value for row in rows if row.split == "train" and row.metric == "loss"]


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("executor", [Eager, Stacked])
def test_a_run_cut_within_a_block_goes_on_as_it_would_have(
    executor: type[Eager] | type[Stacked],
) -> None:
    config = CONFIGS[0]
    whole = [new[0] for new in Engine([config], executor=Eager)]
    cut = Engine([config], executor=executor)
    steps = iter(cut)
    for _ in range(4):
        next(steps)
    assert cut.step == 8 and cut.step % TOGETHER
    again = Engine([config], executor=Eager)
    again.restore(0, *cut.state(0))
    rest = [row for new in again for row in new[0]]
    expected = [row for new in whole[4:] for row in new]
    assert losses(rest) == pytest.approx(losses(expected), rel=1e-5)


def test_one_at_a_time_on_a_cpu() -> None:
    assert tasks.get("chess").together > 1
    assert Feed(CONFIGS, CPU).together == 1
