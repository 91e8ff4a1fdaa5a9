"""Drawing from a task: generators, lengths, errors, devices; and what the package promises."""

import doctest
import importlib
import pkgutil

import pytest
import torch

from statetrack import tasks
from statetrack.tasks import IGNORE
from tests.tasks.oracles import NAMES, draw, same


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_decides(name: str) -> None:
    assert same(draw(name, 20, 40), draw(name, 20, 40))
    assert not same(draw(name, 20, 40), draw(name, 20, 40, seed=1))
    task = tasks.get(name)
    stream = tasks.generator(task, "train", 0)
    first = task.sample(20, 40, generator=stream, device=torch.device("cpu"))
    assert same(first, draw(name, 20, 40))
    assert not same(first, task.sample(20, 40, generator=stream))  # the stream moves on


def test_no_global_randomness() -> None:
    before = torch.get_rng_state()
    for name in NAMES:
        draw(name, 5, 40)
        tasks.evaluation_set(name, 5)
    assert torch.equal(before, torch.get_rng_state())


def test_scaled_accuracy() -> None:
    assert tasks.get("parity").scaled_accuracy(0.75) == 0.5
    assert tasks.get("mod_arithmetic").scaled_accuracy(0.2) == 0
    assert tasks.get("mod_arithmetic").scaled_accuracy(0.1) == pytest.approx(-0.125)


@pytest.mark.parametrize(
    ("name", "shortest", "longest", "message"),
    [
        ("parity", 1, 40, "1..40 .* 2 <= min_length"),
        ("parity", 41, 40, "41..40 .* min_length <= max_length"),
        ("parity", None, 1, "2..1 "),
        ("mod_arithmetic", 2, 2, "3 <= min_length"),
        ("s5", 0, 10, "1 <= min_length"),
    ],
)
def test_lengths_out_of_range(name: str, shortest: int | None, longest: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(name, 4, longest, shortest=shortest)


def test_empty_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        draw("parity", 0, 40)


def test_the_generator_must_be_on_the_device() -> None:
    with pytest.raises(ValueError, match="torch.Generator\\('cuda'\\)"):
        tasks.get("parity").sample(4, 40, generator=torch.Generator(), device="cuda")


FEW_ANSWERS = (
    *("repl_1", "repl_3_silent", "boxes_mixed", "cube", "lights_out"),
    *("mqar", "mqar_forgetting", "flip_flop", "selective_copying"),
)


@pytest.mark.parametrize("name", FEW_ANSWERS)
@pytest.mark.parametrize("streams", [1, 2])
def test_few_answers_are_all_there_and_nothing_else_is_asked(name: str, streams: int) -> None:
    task = tasks.get(name)
    length = task.train_lengths.max
    generators = [tasks.generator(task, "train", seed) for seed in range(streams)]
    batch = task.sample_streams(40, length, generators=generators)
    assert task.most_answers is not None and batch.most == task.most_answers(length)
    at, targets = batch.answers
    assert at is not None and at.shape[1] == min(batch.most, batch.tokens.shape[1])
    assert (at.sort(dim=1).values.diff(dim=1) > 0).all()  # no time twice
    found = torch.full_like(batch.targets, IGNORE).scatter(1, at, targets)
    assert torch.equal(found, batch.targets)


def test_answers_of_other_tasks() -> None:
    batch = draw("s5", 4, 10)
    assert batch.answers[0] is None and torch.equal(batch.answers[1], batch.targets)
    batch = draw("parity", 4, 10).to("cpu")
    at, targets = batch.answers
    assert at is not None and torch.equal(at, batch.num_tokens[:, None] - 1)
    assert torch.equal(targets.flatten(), batch.targets[batch.mask])


def test_answers_with_several_labels() -> None:
    targets = torch.tensor([[[1, 2], [3, 4], [5, 6]], [[7, 8], [IGNORE] * 2, [9, 0]]])
    mask = targets[..., 0] != IGNORE
    tokens = torch.zeros(2, 3, dtype=torch.long)
    at, asked = tasks.Batch(tokens, targets, mask, most=2).answers
    assert at is not None and at.tolist() == [[0, 1], [0, 2]]
    assert asked.tolist() == [[[1, 2], [3, 4]], [[7, 8], [9, 0]]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [name for name in NAMES if "regex" not in name])
def test_the_gpu_never_waits_for_the_host(name: str) -> None:
    """No copy in either direction once the tables are there, and the labels of the CPU's walker."""
    task = tasks.get(name)
    stream = tasks.generator(task, "train", 0, "cuda")
    task.sample(8, 40, generator=stream, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = task.sample(64, 40, generator=stream, device="cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batch.tokens.is_cuda and batch.tokens.shape == (64, task.num_tokens(40))
    again = tasks.generator(task, "train", 0, "cuda")
    task.sample(8, 40, generator=again, device="cuda")
    assert same(batch, task.sample(64, 40, generator=again, device="cuda"))


def test_docstrings() -> None:
    names = [module.name for module in pkgutil.iter_modules(tasks.__path__)]
    attempted = 0
    for name in names:
        result = doctest.testmod(importlib.import_module(f"statetrack.tasks.{name}"))
        assert not result.failed
        attempted += result.attempted
    assert attempted >= 10
