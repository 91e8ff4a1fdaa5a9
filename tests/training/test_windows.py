"""Sequences read in windows: every token once and in order, and by the number of the step."""

import dataclasses

import pytest
import torch

from statetrack import tasks
from statetrack.tasks import IGNORE
from statetrack.training.windows import Span, Windows, spans_of
from tests.training import tiny

CPU = torch.device("cpu")


def test_spans_have_every_length_once() -> None:
    found = spans_of(tasks.get("parity"), (3, 41), 8)
    assert found == [Span(1, 3, 9), Span(2, 10, 17), Span(4, 18, 33), Span(8, 34, 41)]
    assert spans_of(tasks.get("parity"), (20, 30), 8) == [Span(4, 20, 30)]


@pytest.mark.parametrize("name", ["s3", "mod_arithmetic", "repl_1_silent"])
def test_spans_count_tokens_as_the_task_does(name: str) -> None:
    task = tasks.get(name)
    low, high = task.shortest + 2, 60
    found = spans_of(task, (low, high), 16)
    assert [found[0].shortest, found[-1].longest] == [low, high]
    for one, other in zip(found, found[1:], strict=False):
        assert other.shortest == one.longest + 1
        assert other.windows > one.windows
    for span in found:
        assert span.windows * 8 < task.num_tokens(span.longest) <= span.windows * 16


def test_the_windows_of_a_row_are_a_word() -> None:
    """The parity of all bits since the word began is asked after each of them."""
    found = Windows(tiny.in_windows(), CPU)
    assert found.rows == [2, 2, 1, 1]
    windows = [
        span.windows
        for span, rows in zip(found.spans, found.rows, strict=True)
        for _ in range(rows)
    ]
    parity = torch.zeros(6, dtype=torch.long)
    length = torch.zeros(6, dtype=torch.long)
    seen = set()
    for step in range(16):
        tokens, targets, begins = found.at(step)
        assert begins.tolist() == [step % count == 0 for count in windows]
        assert tokens.shape == targets.shape == (6, 8)
        seen |= set(length[begins].tolist())
        parity[begins], length[begins] = 0, 0
        asked = targets != IGNORE
        assert torch.equal(asked, tokens != 0)  # padding is at the end of a word alone
        bits = (tokens == 2) & asked
        expected = (parity[:, None] + bits.cumsum(1)) % 2 + 1
        assert torch.equal(targets[asked], expected[asked])
        parity = (parity + bits.sum(1)) % 2
        length += asked.sum(1)
    assert 32 < max(seen) <= 40


def test_what_a_step_reads_follows_from_its_number() -> None:
    whole = Windows(tiny.in_windows(), CPU)
    expected = [whole.at(step) for step in range(12)]
    for step in (11, 3, 4, 0, 7):
        for one, other in zip(
            Windows(tiny.in_windows(), CPU).at(step), expected[step], strict=True
        ):
            assert torch.equal(one, other)
    other_seed = Windows(tiny.in_windows(data_seed=1), CPU).at(5)
    assert not torch.equal(other_seed[0], expected[5][0])


def test_tasks_that_ask_once_are_asked_at_the_end_of_a_word() -> None:
    found = Windows(tiny.in_windows(task="parity"), CPU)
    for step in range(8):
        _, targets, _ = found.at(step)
        assert (targets[:2] != IGNORE).sum(dim=1).tolist() == [1, 1]  # words of one window


def test_several_labels_per_token() -> None:
    task = tasks.get("chess")
    model = dataclasses.replace(
        tiny.model(), vocab_size=task.vocab_size, num_classes=task.num_classes
    )
    config = tiny.in_windows(task="chess", model=model, lengths=(4, 30))
    _, targets, _ = Windows(config, CPU).at(0)
    assert targets.shape == (6, 8, len(task.labels or ()))


def test_every_span_has_a_row() -> None:
    with pytest.raises(ValueError, match="they take 4 spans, and each needs a row; give batch=4"):
        Windows(tiny.in_windows(batch=3), CPU)
