"""Training in windows: the state is handed on, without a gradient, and a run may be cut."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from statetrack import tasks
from statetrack.models import TaggerConfig
from statetrack.training import Engine
from statetrack.training.eager import Eager
from statetrack.training.executor import Executor
from statetrack.training.stacked import Stacked, can_stack, stacks
from statetrack.training.start import started
from statetrack.training.windowed import Windowed
from tests.training import tiny

CPU = torch.device("cpu")


def trained(engine: Engine) -> dict[str, Tensor]:
    list(engine)
    return {name: value.clone() for name, value in engine.executor.weights_of(0).items()}


@pytest.mark.parametrize("layer", ["DeltaNet", "Mamba", "GLA", "MLSTM", "SLSTM", "TTTLinear"])
def test_a_window_goes_on_from_the_one_before_without_its_gradient(layer: str) -> None:
    """Row 1 takes two windows: as if the first had been read with no gradient."""
    options = {} if layer == "Mamba" else {"num_heads": 2}
    executor = Windowed([tiny.in_windows(model=tiny.model(layer, **options), batch=4)], CPU)
    model = executor.model
    executor._answers(0)
    scores, _ = executor._answers(1)
    tokens = torch.cat([executor.windows.at(step)[0][1:2] for step in (0, 1)], dim=1)
    whole, _ = model(tokens)
    mine = scores.view(4, 8, -1)[1]
    torch.testing.assert_close(mine, whole[0, 8:])
    with torch.no_grad():
        _, state = model(tokens[:, :8])
    again, _ = model(tokens[:, 8:], state)
    weights = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(mine.square().sum(), weights, materialize_grads=True),
        torch.autograd.grad(again.square().sum(), weights, materialize_grads=True),
    )


def test_a_word_begins_with_an_empty_state() -> None:
    executor = Windowed([tiny.in_windows(batch=4)], CPU)
    executor._answers(0)
    executor.carried = tuple(
        {key: torch.full_like(value, torch.nan) for key, value in layer.items()}
        for layer in executor.carried
    )
    scores, _ = executor._answers(1)
    finite = scores.view(4, 8, -1).isfinite().all(dim=(1, 2))
    assert finite.tolist() == [True, False, False, False]


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize(
    "model", [tiny.model(), tiny.model(conv_size=4), tiny.model(sizes={"dropout": 0.5})]
)
def test_a_run_goes_on_where_it_was_cut(cut: int, model: TaggerConfig) -> None:
    own = tiny.in_windows(model=model)
    expected = trained(Engine([own]))
    engine = Engine([own])
    first = iter(engine)
    for _ in range(cut):
        next(first)
    rest = Engine([own])
    rest.restore(0, *engine.state(0))
    for name, value in trained(rest).items():
        assert torch.equal(value, expected[name]), name


def test_given_weights_are_begun_with() -> None:
    given = trained(Engine([tiny.in_windows()]))
    own = started(tiny.in_windows(), given)
    engine = Engine([own], starts=[given])
    for name, value in engine.executor.weights_of(0).items():
        assert torch.equal(value, given[name])
    list(engine)


def test_runs_with_windows_train_alone() -> None:
    pair = [tiny.in_windows(seed=seed) for seed in (0, 1)]
    assert not can_stack(pair[0])
    assert [len(group) for group in stacks(pair)] == [1, 1]
    assert isinstance(Engine(pair[:1]).executor, Windowed)


@pytest.mark.parametrize("executor", [Eager, Stacked])
def test_an_executor_that_reads_whole_sequences_refuses(executor: type[Executor]) -> None:
    with pytest.raises(ValueError, match=f"^{executor.__name__} reads sequences whole"):
        Engine([tiny.in_windows()], executor=executor)


def test_a_state_that_grows_is_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match="window needs layers"):
        Engine([tiny.in_windows(model=tiny.model("Attention", num_heads=2))])


def test_every_kind_of_task_trains() -> None:
    """One answer a word, and several labels a token."""
    chess = tasks.get("chess")
    model = dataclasses.replace(
        tiny.model(), vocab_size=chess.vocab_size, num_classes=chess.num_classes
    )
    runs = [
        tiny.in_windows(task="parity"),
        tiny.in_windows(task="chess", model=model, lengths=(4, 30), steps=2),
    ]
    for own in runs:
        rows = [row for rows in Engine([own]) for row in rows[0]]
        assert rows and all(math.isfinite(row.value) for row in rows)
