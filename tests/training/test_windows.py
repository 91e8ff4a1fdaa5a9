"""Sequences read in windows: every token once and in order, the state handed on, no gradient."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack import tasks
from statetrack.tasks import IGNORE
from statetrack.training import Engine, EvaluationConfig, RunConfig
from statetrack.training.stacked import can_stack, stacks
from statetrack.training.start import started
from statetrack.training.windowed import Windowed
from statetrack.training.windows import Span, Windows, spans_of
from tests.training import tiny

CPU = torch.device("cpu")


def config(**changes: Any) -> RunConfig:
    """Words of up to 40 bits, in windows of 8: spans of 1, 2, 4 and 8.

    A length of parity counts the answer too.
    """
    fields: dict[str, Any] = {
        "task": "parity_dense",
        "lengths": (3, 41),
        "window": 8,
        "batch": 6,
        "evaluation": EvaluationConfig(every=12, size=16, lengths=(8, 12)),
    }
    return tiny.config(**(fields | changes))


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
    found = Windows(config(), CPU)
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
    whole = Windows(config(), CPU)
    expected = [whole.at(step) for step in range(12)]
    for step in (11, 3, 4, 0, 7):
        for one, other in zip(Windows(config(), CPU).at(step), expected[step], strict=True):
            assert torch.equal(one, other)
    other_seed = Windows(config(data_seed=1), CPU).at(5)
    assert not torch.equal(other_seed[0], expected[5][0])


def trained(engine: Engine) -> dict[str, Tensor]:
    list(engine)
    return {name: value.clone() for name, value in engine.executor.weights_of(0).items()}


def test_the_first_gradient_of_a_window_is_that_of_the_whole_word_cut_there() -> None:
    """Step 1 of the two-window span: as if the first window had been read with no gradient."""
    executor = Windowed([config(batch=4)], CPU)
    model = executor.model
    executor._answers(0)
    scores, targets = executor._answers(1)
    tokens = torch.cat([executor.windows.at(step)[0][1:2] for step in (0, 1)], dim=1)
    whole, _ = model(tokens)
    mine = scores.view(4, 8, -1)[1]
    torch.testing.assert_close(mine, whole[0, 8:])
    with torch.no_grad():
        _, state = model(tokens[:, :8])
    again, _ = model(tokens[:, 8:], state)
    for one, other in zip(
        torch.autograd.grad(mine.square().sum(), list(model.parameters()), allow_unused=True),
        torch.autograd.grad(again.square().sum(), list(model.parameters()), allow_unused=True),
        strict=True,
    ):
        if other is not None:
            torch.testing.assert_close(one, other)
    assert targets.shape == (32,)


def test_a_word_begins_with_an_empty_state() -> None:
    executor = Windowed([config(batch=4)], CPU)
    executor._answers(0)
    executor.carried = tuple(
        {key: torch.full_like(value, torch.nan) for key, value in layer.items()}
        for layer in executor.carried
    )
    scores, _ = executor._answers(1)
    finite = scores.view(4, 8, -1).isfinite().all(dim=(1, 2))
    assert finite.tolist() == [True, False, False, False]


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("conv_size", [0, 4])
def test_a_run_goes_on_where_it_was_cut(cut: int, conv_size: int) -> None:
    own = config(model=tiny.model(conv_size=conv_size))
    expected = trained(Engine([own]))
    engine = Engine([own])
    first = iter(engine)
    for _ in range(cut):
        next(first)
    rest = Engine([own])
    rest.restore(0, *engine.state(0))
    for name, value in trained(rest).items():
        assert torch.equal(value, expected[name]), name


def test_dropout_goes_on_too() -> None:
    model = tiny.model(sizes={"dropout": 0.5})
    own = config(model=model)
    engine = Engine([own])
    next(iter(engine))
    rest = Engine([own])
    rest.restore(0, *engine.state(0))
    expected = trained(Engine([own]))
    for name, value in trained(rest).items():
        assert torch.equal(value, expected[name]), name


def test_given_weights_are_begun_with() -> None:
    given = trained(Engine([config()]))
    own = started(config(), given)
    engine = Engine([own], starts=[given])
    for name, value in engine.executor.weights_of(0).items():
        assert torch.equal(value, given[name])
    list(engine)


def test_tasks_that_ask_once_are_asked_at_the_end_of_a_word() -> None:
    found = Windows(config(task="parity"), CPU)
    for step in range(8):
        _, targets, _ = found.at(step)
        assert (targets[:2] != IGNORE).sum(dim=1).tolist() == [1, 1]  # words of one window
    engine = Engine([config(task="parity")])
    assert all(row.value == row.value for rows in engine for row in rows[0])


def test_several_labels_per_token() -> None:
    task = tasks.get("chess")
    model = dataclasses.replace(
        tiny.model(), vocab_size=task.vocab_size, num_classes=task.num_classes
    )
    found = Windows(config(task="chess", model=model, lengths=(4, 30)), CPU)
    _, targets, _ = found.at(0)
    assert targets.shape == (6, 8, len(task.labels or ()))
    assert trained(Engine([config(task="chess", model=model, lengths=(4, 30), steps=2)]))


def test_runs_with_windows_train_alone() -> None:
    pair = [config(seed=seed) for seed in (0, 1)]
    assert not can_stack(pair[0])
    assert [len(group) for group in stacks(pair)] == [1, 1]
    assert isinstance(Engine(pair[:1]).executor, Windowed)


@pytest.mark.parametrize("layer", ["Mamba", "GLA", "MLSTM", "SLSTM", "LSTM", "DeltaProduct"])
def test_layers_carry_their_states(layer: str) -> None:
    options = {"num_heads": 2} if layer in ("GLA", "MLSTM", "SLSTM", "DeltaProduct") else {}
    assert trained(Engine([config(model=tiny.model(layer, **options))]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": tiny.model("Attention", num_heads=2)}, "window needs layers"),
        ({"batch": 3}, "they take 4 spans"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Engine([config(**changes)])
