"""The engine: it learns, its records are right, and it says why it stopped."""

import math

import pytest
import torch
from torch import Tensor, nn

from statetrack import tasks
from statetrack.models import Tagger
from statetrack.runs import Record
from statetrack.training import (
    Engine,
    EvaluationConfig,
    NonFiniteLoss,
    OptimizerConfig,
    ScheduleConfig,
    train,
)
from statetrack.training.eager import Eager
from tests.training import tiny


def of(records: list[Record], split: str, metric: str) -> list[Record]:
    return [r for r in records if r.split == split and r.metric == metric and r.length is None]


def test_same_config_same_numbers_other_seed_other_numbers() -> None:
    first, again = list(train(tiny.config())), list(train(tiny.config()))
    assert first == again
    for change in ({"seed": 1}, {"data_seed": 1}):
        other = list(train(tiny.config(**change)))
        assert of(other, "train", "loss") != of(first, "train", "loss")


def test_records_come_when_they_should() -> None:
    records = list(train(tiny.config(steps=11)))
    assert [r.step for r in of(records, "train", "loss")] == [2, 4, 6, 8, 10, 11]
    assert [r.step for r in of(records, "validation", "accuracy")] == [4, 8, 11]
    assert [r.step for r in of(records, "test", "accuracy")] == [11]
    lengths = {r.length for r in records if r.split == "test" and r.length}
    # lengths 3..12 count the answer too, and so stand for 2..11 tokens
    assert lengths <= set(range(2, 12)) and len(lengths) > 5


def test_it_learns_parity() -> None:
    config = tiny.config(
        task="parity_dense",
        steps=150,
        batch=32,
        optimizer=OptimizerConfig(lr=1e-2),
        evaluation=EvaluationConfig(every=50, size=64, lengths=(8, 20), task="parity"),
        log_every=50,
        checkpoint_every=None,
    )
    records = list(train(config))
    losses = of(records, "train", "loss")
    assert losses[-1].value < 0.2 < losses[0].value
    assert of(records, "validation", "scaled_accuracy")[-1].value > 0.8


def test_a_solved_run_stops() -> None:
    config = tiny.config(stop_at=1e-9, steps=400)
    engine = Engine([config])
    rows = [row for part in engine for row in part[0]]
    assert engine.solved == [True] and engine.active == [] and engine.step < 400
    assert engine.step % 4 == 0
    assert of(rows, "test", "accuracy")[-1].step == engine.step


def test_first_loss_is_the_mean_cross_entropy_of_the_first_batch() -> None:
    config = tiny.config(log_every=1)
    record = next(train(config))
    model = Tagger(config.model, generator=torch.Generator().manual_seed(0))
    stream = tasks.generator("parity", "train", 0)
    batch = tasks.get("parity").sample(4, 8, min_length=3, generator=stream)
    scores = model(batch.tokens)[0].log_softmax(-1)
    expected = -scores[batch.mask].gather(1, batch.targets[batch.mask][:, None]).mean()
    assert record.value == pytest.approx(expected.item(), rel=1e-6)


def test_clipping_bounds_the_step_and_not_the_record() -> None:
    free = Engine([tiny.config(log_every=1)])
    clipped = Engine([tiny.config(log_every=1, optimizer=OptimizerConfig(clip_norm=1e-3))])
    norms = []
    for engine in (free, clipped):
        rows = next(iter(engine))[0]
        norms.append(of(rows, "train", "grad_norm")[0].value)
        parameters = engine.executor.model.parameters()
        total = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))
        assert total == pytest.approx(norms[0] if engine is free else 1e-3, rel=1e-2)
    assert norms[0] == norms[1] > 1e-3


def test_bf16_runs_and_differs() -> None:
    full = of(list(train(tiny.config())), "train", "loss")
    half = of(list(train(tiny.config(precision="bf16"))), "train", "loss")
    assert full != half
    assert half[-1].value == pytest.approx(full[-1].value, abs=0.05)


class Exploding(nn.Module):
    """Scores that double with every call and overflow at the 130th."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.scale = model, 1.0

    def forward(self, tokens: Tensor, read_at: Tensor, generator: None) -> tuple[Tensor, None]:
        self.scale *= 2.0
        return self.model(tokens, read_at=read_at)[0] * self.scale, None


def test_non_finite_loss_ends_the_run_with_step_and_cause() -> None:
    evaluation = EvaluationConfig(every=200, size=4, lengths=(8, 12))
    config = tiny.config(steps=200, log_every=200, checkpoint_every=None, evaluation=evaluation)
    engine = Engine([config])
    executor = engine.executor
    assert isinstance(executor, Eager)
    executor.model = Exploding(executor.model)  # type: ignore[assignment]
    losses = []
    original = executor._train_step

    def remember(at: int) -> tuple[Tensor, Tensor, Tensor]:
        loss, scores, norm = original(at)
        losses.append(float(loss))
        return loss, scores, norm

    executor._train_step = remember  # type: ignore[method-assign]
    assert list(engine) == [{}]
    first = next(i for i, loss in enumerate(losses) if not math.isfinite(loss))
    error = str(engine.failed[0])
    assert f"at step {first} " in error
    assert "learning rate is likely too high" in error
    assert "clip_norm" in error


def test_an_infinite_gradient_ends_the_run() -> None:
    engine = Engine([tiny.config()])
    executor = engine.executor
    assert isinstance(executor, Eager)
    original = executor._train_step

    def infinite(at: int) -> tuple[Tensor, Tensor, Tensor]:
        loss, scores, _ = original(at)
        return loss, scores, torch.tensor(math.inf)

    executor._train_step = infinite  # type: ignore[method-assign]
    assert list(engine) == [{}] and engine.active == []
    assert "the gradient became inf at step 1 " in str(engine.failed[0])


def test_training_in_memory_raises_what_went_wrong() -> None:
    config = tiny.config(optimizer=OptimizerConfig(lr=1e30))
    with pytest.raises(NonFiniteLoss, match="learning rate"):
        list(train(config))


def test_a_run_goes_on_only_on_its_kind_of_device() -> None:
    engine = Engine([tiny.config()])
    next(iter(engine))
    tensors, position = engine.state(0)
    with pytest.raises(ValueError, match="started on cuda and cannot go on"):
        Engine([tiny.config()]).restore(0, tensors, position | {"device": "cuda"})


def test_learning_rate_follows_the_schedule() -> None:
    config = tiny.config(log_every=1, schedule=ScheduleConfig(warmup=0.5))
    rates = [r.value for r in of(list(train(config)), "train", "lr")]
    assert rates == [1e-3 * config.schedule.factor(step, 12) for step in range(12)]
