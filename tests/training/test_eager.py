"""The eager executor: dropout that resumes, and layers of one's own."""

import dataclasses

import torch
from torch import Tensor, nn

from statetrack import layers
from statetrack.models import BackboneConfig, TaggerConfig, paper_config
from statetrack.training import Engine, RunConfig
from statetrack.training.eager import Eager
from statetrack.training.evaluation import loss_and_accuracy
from statetrack.training.feed import Feed
from statetrack.training.stacked import can_stack, stacks
from tests.training import tiny


def weights(engine: Engine) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in engine.executor.weights_of(0).items()}


def with_dropout() -> RunConfig:
    model = tiny.model()
    backbone = dataclasses.replace(model.backbone, dropout=0.5)
    return tiny.config(model=dataclasses.replace(model, backbone=backbone))


def test_dropout_changes_the_numbers_and_is_drawn_the_same_again() -> None:
    runs = [Engine([with_dropout()]) for _ in range(2)]
    first, again = ([row for rows in run for row in rows[0]] for run in runs)
    assert first == again
    plain = [row for rows in Engine([tiny.config()]) for row in rows[0]]
    assert [row.value for row in plain] != [row.value for row in first]


def test_dropout_goes_on_where_it_was_cut() -> None:
    whole = Engine([with_dropout()])
    list(whole)
    cut = Engine([with_dropout()])
    next(iter(cut))
    rest = Engine([with_dropout()])
    rest.restore(0, *cut.state(0))
    list(rest)
    for name, value in weights(whole).items():
        assert torch.equal(weights(rest)[name], value)


def test_evaluation_drops_nothing_out() -> None:
    engine = Engine([with_dropout()])
    tallies = [engine.executor.tally(engine.executor.validation) for _ in range(2)]
    assert torch.equal(tallies[0].loss, tallies[1].loss)
    assert engine.executor.model.training


def test_only_the_times_of_answers_are_read() -> None:
    """With the loss and the gradient of reading everywhere."""
    model = paper_config("DeltaNet", vocab_size=121, num_classes=101, d_model=8, num_heads=2)
    config = tiny.config(task="boxes", model=model, lengths=(2, 5))
    executor = Eager([config], torch.device("cpu"))
    executor.model.double()
    batch = Feed([config], torch.device("cpu")).next()
    asked = executor._answers(0)
    assert asked[0].shape[:-1].numel() <= 5 * config.batch < batch.tokens.numel()
    everywhere = executor.model(batch.tokens)[0], batch.targets
    found = []
    for scores, targets in (asked, everywhere):
        loss, right = loss_and_accuracy(scores, targets)
        gradients = torch.autograd.grad(loss, list(executor.model.parameters()))
        found.append([loss, right, *gradients])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


class Sum(layers.Layer):
    """A layer of one's own: sums of a projection."""

    def __init__(self, d_model: int, *, gain: float = 1.0) -> None:
        super().__init__(d_model)
        self.gain = gain
        self.proj = nn.Linear(d_model, d_model, bias=False)

    def _mix(self, x, state, read_at, packing):  # type: ignore[no-untyped-def]
        before = 0 if state is None else state["recurrent"][:, None]
        y = before + self.gain * self.proj(x).cumsum(1)
        return y, {"recurrent": y[:, -1]}

    @property
    def state_size(self) -> int:
        return self.d_model

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.proj.weight, std=0.1, generator=generator)


def test_a_layer_of_ones_own_trains_alone_on_every_device() -> None:
    backbone = BackboneConfig(mixers=[(Sum, {"gain": 0.5}), "DeltaNet"], d_model=8, mlp_dim=8)
    model = TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)
    configs = [tiny.config(model=model, seed=seed) for seed in range(2)]
    assert not can_stack(configs[0])
    assert [len(group) for group in stacks(configs)] == [1, 1]
    engine = Engine(configs[:1])
    assert isinstance(engine.executor, Eager)
    rows = [row for new in engine for row in new[0]]
    assert rows[-1].step == configs[0].steps
    again = RunConfig.from_json(configs[0].to_json())
    assert again == configs[0] and again.model.backbone.mixers[0].options["gain"] == 0.5
