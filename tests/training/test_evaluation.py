"""Evaluation: sets that nobody trains on, counts that agree with the plain way."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from statetrack import tasks
from statetrack.automata import Machine
from statetrack.models import Tagger, paper_config
from statetrack.training import EvaluationConfig, RunConfig, evaluation
from statetrack.training.evaluation import (
    BINS,
    Counts,
    held_out,
    label_hits,
    loss_and_accuracy,
    records_of,
    score,
    tally,
)
from tests.training import tiny


def counted(model: Tagger, config: RunConfig) -> Counts:
    def predict(tokens: Tensor, read_at: Tensor | None) -> Tensor:
        return model(tokens, read_at=read_at)[0][None]

    batches = held_out(config, "validation", torch.device("cpu"))
    return tally(predict, batches, runs=1, task=tasks.get(config.task)).counts()[0]


def test_scores_that_are_not_numbers_are_wrong_and_have_no_loss() -> None:
    config = tiny.config()
    model = Tagger(config.model)
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    counts = counted(model, config)
    assert counts.accuracy == 0
    rows = records_of(tasks.get("parity"), counts, step=1, split="test", every_length=True)
    assert {row.metric for row in rows} == {"accuracy", "scaled_accuracy"}


def test_evaluation_agrees_with_the_plain_way() -> None:
    """In sorted, narrow batches or all at once: the same counts."""
    for name in ("parity", "parity_dense"):
        config = tiny.config(
            task=name, evaluation=EvaluationConfig(every=4, size=50, lengths=(3, 20), batch=7)
        )
        model = Tagger(config.model, generator=torch.Generator().manual_seed(3))
        counts = counted(model, config)
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


@pytest.mark.parametrize("name, lengths", [("boxes", (3, 5)), ("chess", (4, 7))])
def test_read_at_few_times_or_at_all_the_counts_are_the_same(
    name: str, lengths: tuple[int, int]
) -> None:
    task = tasks.get(name)
    model = paper_config(
        "DeltaNet", vocab_size=task.vocab_size, num_classes=task.num_classes, d_model=8, num_heads=2
    )
    settings = EvaluationConfig(every=4, size=12, lengths=lengths, batch=5)
    config = tiny.config(task=name, model=model, lengths=lengths, evaluation=settings)
    tagger = Tagger(model, generator=torch.Generator().manual_seed(3)).double()

    def predict(tokens: Tensor, read_at: Tensor | None) -> Tensor:
        scores = tagger(tokens, read_at=read_at)[0]
        return scores + torch.arange(2)[:, None, None, None] * scores.flip(-1)  # two runs

    batches = held_out(config, "validation", torch.device("cpu"))
    counted = []
    for most in (None, int(max(batch.mask.sum(dim=1).max() for batch in batches))):
        chosen = [dataclasses.replace(batch, most=most) for batch in batches]
        counted.append(tally(predict, chosen, runs=2, task=task).counts())
    for everywhere, few in zip(*counted, strict=True):
        assert few.loss == pytest.approx(everywhere.loss, rel=1e-12)
        for part in ("right", "asked", "alive", "parts"):
            one, other = getattr(everywhere, part), getattr(few, part)
            assert one is other is None or torch.equal(one, other)


def test_validation_test_and_training_never_share_a_stream() -> None:
    config = tiny.config(
        evaluation=EvaluationConfig(every=4, size=64, lengths=(3, 8), test_lengths=(3, 8))
    )
    validation = held_out(config, "validation", torch.device("cpu"))[0].tokens
    test = held_out(config, "test", torch.device("cpu"))[0].tokens
    assert not torch.equal(validation, test)


def test_runs_that_read_together_share_the_room_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvaluationConfig(every=4, size=50, lengths=(8, 8), batch=16)
    config = tiny.config(evaluation=settings)

    def rows(runs: int) -> list[int]:
        cpu = torch.device("cpu")
        return [len(batch.tokens) for batch in held_out(config, "validation", cpu, runs=runs)]

    (width,) = {
        batch.tokens.shape[1] for batch in held_out(config, "validation", torch.device("cpu"))
    }
    assert rows(1) == rows(5) == [16, 16, 16, 2]
    monkeypatch.setattr(evaluation, "MOST_TOKENS", 60 * width)
    assert rows(1) == rows(3) == [16, 16, 16, 2]
    assert rows(5) == [12, 12, 12, 12, 2] and rows(100) == [1] * 50
    monkeypatch.setattr(evaluation, "MOST_TOKENS", 2**18)
    monkeypatch.setattr(evaluation, "MOST_SCORES", 30 * config.judge.num_classes)
    assert rows(1) == [16, 16, 16, 2] and rows(3) == [10] * 5


def test_a_machine_without_a_name_is_evaluated() -> None:
    """Its config holds the table of the machine where other configs hold a name."""
    machine = Machine.from_table([[1, 0], [2, 0], [2, 0]], accepting=[2], alphabet="ab")
    model = paper_config("Diagonal", vocab_size=3, num_classes=2, d_model=4)
    config = RunConfig(task=machine, model=model, steps=1, batch=1)
    (batch, *_) = held_out(config, "validation", torch.device("cpu"))
    assert tasks.get(machine).lengths(256, 40).min == batch.num_tokens.min()
    assert set(batch.targets[batch.mask].tolist()) == {0, 1}


def test_answers_by_operations_agree_with_the_plain_way() -> None:
    """A model that knows what at most two swaps have moved, against the tokens themselves."""
    settings = EvaluationConfig(every=4, size=40, lengths=(9, 9), test_lengths=(9, 12), batch=16)
    task = tasks.get("boxes")
    model = paper_config("DeltaNet", vocab_size=121, num_classes=101, d_model=8, num_layers=1)
    config = RunConfig(
        task="boxes", model=model, steps=4, batch=2, log_every=2, evaluation=settings
    )
    config = dataclasses.replace(config, checkpoint_every=None)
    batches = held_out(config, "test", torch.device("cpu"))
    assert all(
        batch.depths is None for batch in held_out(config, "validation", torch.device("cpu"))
    )

    def predict(tokens: Tensor, read_at: Tensor | None) -> Tensor:
        batch = next(b for b in batches if b.tokens is tokens)
        assert batch.depths is not None
        knows = (batch.depths.operations <= 2) & batch.mask
        said = torch.where(knows, batch.targets.clamp(min=0), 100)
        assert read_at is not None
        return torch.nn.functional.one_hot(said.gather(1, read_at), 101).float()[None]

    counts = tally(predict, batches, runs=1, task=task).counts()[0]
    rows = records_of(task, counts, step=4, split="test", every_length=True)
    deep = {r.operations: r for r in rows if r.metric == "accuracy" and r.operations is not None}
    assert [deep[n].value for n in (0, 1, 2, 4)] == [1, 1, 1, 0]
    assert sum(r.count or 0 for r in deep.values()) == int(counts.asked.sum())
    ages = torch.cat([b.depths.age[b.mask] for b in batches if b.depths is not None])
    oracle = {r.operations: r.value for r in rows if r.metric == "window_accuracy"}
    for known in (1, 4, 8):
        within = (ages <= known).double().mean().item()
        assert oracle[known] == pytest.approx(within + task.chance * (1 - within))
    assert max(oracle) == 16 and oracle[16] == 1
    places = {(r.metric, r.length, r.length_min, r.operations) for r in rows}
    assert len(places) == len(rows)


def test_many_lengths_are_told_in_ranges() -> None:
    asked = torch.ones(3000, dtype=torch.long)
    counts = Counts(asked, asked, asked, 1, 0.0)
    rows = records_of(tasks.get("parity"), counts, step=1, split="test", every_length=True)
    lengths = [row for row in rows if row.length is not None]
    assert len(lengths) == 250 and sum(row.count or 0 for row in lengths) == 3000
    assert (lengths[0].length_min, lengths[0].length, lengths[-1].length) == (1, 12, 3000)


LABELS = (3, 3, 2, 4)


def several_labels() -> tuple[tasks.Task, Tensor, Tensor]:
    """A task whose answers have four labels, scores and targets."""
    task = dataclasses.replace(
        tasks.get("parity_dense"), name="labelled", labels=LABELS, parts={"first": (0, 2)}
    )
    stream = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 6, sum(LABELS), generator=stream)
    targets = torch.stack(
        [torch.randint(0, size, (5, 6), generator=stream) for size in LABELS], dim=-1
    )
    targets[3, 4:] = tasks.IGNORE
    return task, scores, targets


def test_several_labels_agree_with_one_after_the_other() -> None:
    task, scores, targets = several_labels()
    pieces = scores.split(LABELS, dim=-1)
    mask = targets[..., 0] != tasks.IGNORE
    for run in range(2):
        losses = [
            torch.nn.functional.cross_entropy(piece[run][mask], targets[..., n][mask])
            for n, piece in enumerate(pieces)
        ]
        hits = torch.stack([p[run].argmax(-1) == targets[..., n] for n, p in enumerate(pieces)], -1)
        loss, accuracy = loss_and_accuracy(scores[run], targets, LABELS)
        torch.testing.assert_close(loss, torch.stack(losses).mean())
        exact = hits.all(-1)[mask].float().mean()
        torch.testing.assert_close(accuracy, exact)

        batch = tasks.Batch(torch.zeros(5, 6, dtype=torch.long), targets, mask)
        counts = tally(lambda tokens, read_at: scores, [batch], runs=2, task=task).counts()[run]
        assert counts.accuracy == pytest.approx(exact.item())
        assert counts.loss == pytest.approx(loss.item(), rel=1e-5)
        rows = records_of(task, counts, step=1, split="test", every_length=True)
        first = [r for r in rows if r.metric == "first_accuracy"]
        assert first[0].value == pytest.approx(hits[..., :2].all(-1)[mask].float().mean().item())
        assert len(first) == 1 + 6


def test_labels_that_are_not_numbers_are_wrong() -> None:
    _, scores, targets = several_labels()
    scores[..., 0] = math.nan
    assert not label_hits(scores[0], targets, LABELS)[..., 0].any()
