"""The loop: it learns, its records are right, and it says why it stopped."""

import math

import pytest
import torch
from torch import Tensor, nn

from statetrack import tasks
from statetrack.models import Tagger, paper_config
from statetrack.runs import Record
from statetrack.training import (
    EvaluationConfig,
    NonFiniteLoss,
    OptimizerConfig,
    ScheduleConfig,
    Session,
    train,
)
from statetrack.training.evaluation import BINS, evaluate, held_out, records_of, score
from statetrack.training.optimizer import decays, make_optimizer
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
    session = Session(config)
    rows = [row for part in session for row in part]
    assert session.solved and session.finished and session.step < 400
    assert session.step % 4 == 0
    assert of(rows, "test", "accuracy")[-1].step == session.step


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
    free = Session(tiny.config(log_every=1))
    clipped = Session(tiny.config(log_every=1, optimizer=OptimizerConfig(clip_norm=1e-3)))
    norms = []
    for session in (free, clipped):
        rows = next(iter(session))
        norms.append(of(rows, "train", "grad_norm")[0].value)
        total = math.sqrt(sum(float(p.grad.square().sum()) for p in session.model.parameters()))
        assert total == pytest.approx(norms[0] if session is free else 1e-3, rel=1e-2)
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

    def forward(self, tokens: Tensor, read_at: Tensor) -> tuple[Tensor, None]:
        self.scale *= 2.0
        return self.model(tokens, read_at=read_at)[0] * self.scale, None


def test_non_finite_loss_ends_the_run_with_step_and_cause() -> None:
    evaluation = EvaluationConfig(every=200, size=4, lengths=(8, 12))
    config = tiny.config(steps=200, log_every=200, checkpoint_every=None, evaluation=evaluation)
    session = Session(config)
    session.model = Exploding(session.model)  # type: ignore[assignment]
    steps = []
    original = session._train_step

    def remember(batch: tasks.Batch) -> tuple[Tensor, Tensor, Tensor]:
        loss, scores, norm = original(batch)
        steps.append(float(loss))
        return loss, scores, norm

    session._train_step = remember  # type: ignore[method-assign]
    with pytest.raises(NonFiniteLoss) as caught:
        next(iter(session))
    first = next(i for i, loss in enumerate(steps) if not math.isfinite(loss))
    assert f"at step {first} " in str(caught.value)
    assert "learning rate is likely too high" in str(caught.value)
    assert "clip_norm" in str(caught.value)


def test_an_infinite_gradient_ends_the_run() -> None:
    session = Session(tiny.config())
    original = session._train_step

    def infinite(batch: tasks.Batch) -> tuple[Tensor, Tensor, Tensor]:
        loss, scores, _ = original(batch)
        return loss, scores, torch.tensor(math.inf)

    session._train_step = infinite  # type: ignore[method-assign]
    with pytest.raises(NonFiniteLoss, match="the gradient became inf at step 1 "):
        next(iter(session))


def test_scores_that_are_not_numbers_are_wrong_and_have_no_loss() -> None:
    config = tiny.config()
    model = Tagger(config.model)
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    counts = evaluate(
        model, held_out(config, "validation", torch.device("cpu")), "fp32", dense=False
    )
    assert counts.accuracy == 0
    rows = records_of(tasks.get("parity"), counts, step=1, split="test", every_length=True)
    assert {row.metric for row in rows} == {"accuracy", "scaled_accuracy"}


def test_parameter_groups_of_the_paper() -> None:
    mamba = Tagger(paper_config("Mamba", vocab_size=3, d_model=16))
    spared = {n for n, p in mamba.named_parameters() if not decays(n, p, "all_but_state")}
    assert {name.split(".")[-1] for name in spared} == {"A_log", "D"}
    slstm = Tagger(paper_config("SLSTM", vocab_size=3, d_model=16))
    spared = {n for n, p in slstm.named_parameters() if not decays(n, p, "matrices")}
    assert "embedding.weight" in spared and "head.weight" not in spared
    assert "backbone.blocks.0.mixer.norm.weight" in spared
    assert "backbone.blocks.0.mixer.R" not in spared
    optimizer = make_optimizer(mamba, OptimizerConfig(weight_decay=0.1))
    counts = {
        g["weight_decay"]: sum(p.numel() for p in g["params"]) for g in optimizer.param_groups
    }
    assert counts[0.0] == 2 * (32 * 16 + 32)
    assert sum(counts.values()) == sum(p.numel() for p in mamba.parameters())
    everything = make_optimizer(mamba, OptimizerConfig(weight_decay=0.1, decay="all"))
    assert len(everything.param_groups) == 1


def test_decay_acts_where_it_should() -> None:
    """With a zero gradient AdamW's step is the decay alone."""
    model = Tagger(paper_config("Mamba", vocab_size=3, d_model=16))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1.0 if name.endswith(("A_log", ".D")) else 0.95
        torch.testing.assert_close(parameter.detach(), before[name] * kept)


def test_evaluation_agrees_with_the_plain_way() -> None:
    """In sorted, narrow batches or all at once: the same counts."""
    for name in ("parity", "parity_dense"):
        config = tiny.config(
            task=name, evaluation=EvaluationConfig(every=4, size=50, lengths=(3, 20), batch=7)
        )
        model = Tagger(config.model, generator=torch.Generator().manual_seed(3))
        counts = evaluate(
            model,
            held_out(config, "validation", torch.device("cpu")),
            "fp32",
            dense=tasks.get(name).dense,
        )
        whole = tasks.evaluation_set(name, 50, lengths=tasks.LengthRange(3, 20))
        said = model(whole.tokens)[0].argmax(-1)
        wrong = whole.mask & (said != whole.targets)
        plain = 1 - (wrong.sum() / whole.mask.sum()).item()
        assert counts.accuracy == pytest.approx(plain, abs=1e-6)
        curve = (wrong.cumsum(dim=1) == 0).float().mean(dim=0)
        torch.testing.assert_close(counts.alive / counts.sequences, curve)
        task = tasks.get(name)
        expected = curve[-1].item() if task.dense else task.scaled_accuracy(plain)
        assert score(task, counts) == pytest.approx(expected, abs=1e-6)
        rows = records_of(task, counts, step=1, split="validation", every_length=True)
        for row in rows:
            if row.metric == "accuracy" and row.length is not None:
                at = whole.mask[:, row.length - 1]
                hits = (said == whole.targets)[:, row.length - 1][at]
                assert row.value == pytest.approx(hits.float().mean().item())
                assert row.count == int(at.sum())
        coarse = records_of(task, counts, step=1, split="validation", every_length=False)
        bins = [r for r in coarse if r.metric == "accuracy" and r.length]
        assert len(bins) <= BINS
        assert sum(r.count or 0 for r in bins) == int(whole.mask.sum())
        weighted = sum(r.value * (r.count or 0) for r in bins) / int(whole.mask.sum())
        assert weighted == pytest.approx(plain, abs=1e-6)


def test_validation_test_and_training_never_share_a_stream() -> None:
    config = tiny.config(
        evaluation=EvaluationConfig(every=4, size=64, lengths=(3, 8), test_lengths=(3, 8))
    )
    validation = held_out(config, "validation", torch.device("cpu"))[0].tokens
    test = held_out(config, "test", torch.device("cpu"))[0].tokens
    assert not torch.equal(validation, test)


def test_learning_rate_follows_the_schedule() -> None:
    config = tiny.config(log_every=1, schedule=ScheduleConfig(warmup=0.5))
    rates = [r.value for r in of(list(train(config)), "train", "lr")]
    assert rates == [1e-3 * config.schedule.factor(step, 12) for step in range(12)]
