"""Which models can hand a state from window to window, and what it is called in a checkpoint."""

import pytest
import torch

from statetrack import layers
from statetrack.models import BackboneConfig, Tagger, TaggerConfig
from statetrack.training.carrying import expect_to_carry, named, no_state
from tests.training import tiny


def tagger(config: TaggerConfig) -> Tagger:
    return Tagger(config, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("conv_size", [0, 4])
def test_no_state_is_what_a_model_begins_with(conv_size: int) -> None:
    model = tagger(tiny.model(num_layers=2, conv_size=conv_size))
    tokens = torch.tensor([[1, 2, 2], [2, 1, 1]])
    scores, after = model(tokens)
    empty = no_state(model(tokens[:1, :1])[1], 2)
    assert {name: value.shape for name, value in named(empty).items()} == {
        name: value.shape for name, value in named(after).items()
    }
    assert torch.equal(model(tokens, empty)[0], scores)


def test_names_tell_layers_apart() -> None:
    _, after = tagger(tiny.model(num_layers=2))(torch.tensor([[1, 2]]))
    names = list(named(after))
    assert len(names) == sum(map(len, after)) and len(set(names)) == len(names)
    assert {name.rpartition(".")[0] for name in names} == {"carried.0", "carried.1"}


@pytest.mark.parametrize("layer", ["DeltaNet", "LSTM"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_layers_that_can(layer: str, dropout: float) -> None:
    model = tagger(tiny.model(layer, sizes={"dropout": dropout}))
    expect_to_carry(model, "window")
    assert model.training


class FromOne(layers.Layer):
    """Sums, begun at one."""

    def _mix(self, x, state, read_at, packing):  # type: ignore[no-untyped-def]
        before = 1.0 if state is None else state["recurrent"][:, None]
        y = before + x.cumsum(1)
        return y, {"recurrent": y[:, -1]}

    @property
    def state_size(self) -> int:
        return self.d_model

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """There are none."""


def test_a_state_that_grows_is_refused() -> None:
    with pytest.raises(ValueError, match="^this option needs layers whose state has one size"):
        expect_to_carry(tagger(tiny.model("Attention", num_heads=2)), "this option")


def test_a_state_with_another_beginning_is_refused() -> None:
    backbone = BackboneConfig(mixers=[FromOne], d_model=8, mlp_dim=8)
    config = TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)
    with pytest.raises(ValueError, match="begins at zero"):
        expect_to_carry(tagger(config), "this option")
