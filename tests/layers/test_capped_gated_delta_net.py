"""The control has what [-1, 1] has but its sign."""

import torch

from statetrack.layers import GatedDeltaNet, get
from statetrack.layers.capped_gated_delta_net import CappedGatedDeltaNet
from statetrack.layers.registry import LAYERS
from statetrack.layers.transitions import HouseholderTransitions
from statetrack.models import lm_config


def test_configs_know_it_and_nobody_is_offered_it() -> None:
    assert get("CappedGatedDeltaNet") is CappedGatedDeltaNet
    assert "CappedGatedDeltaNet" not in LAYERS


def test_it_begins_as_the_extended_model_and_never_reflects() -> None:
    sizes = {"num_heads": 2, "head_dim": 3, "value_dim": 6}
    control = CappedGatedDeltaNet(8, **sizes)
    extended = GatedDeltaNet(8, **sizes, eigen_range=(-1.0, 1.0))
    for layer in (control, extended):
        layer.reset_parameters(torch.Generator().manual_seed(3))
    weights = extended.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in control.state_dict().items())
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(4))
    wide, capped = extended.transitions(x), control.transitions(x)
    assert isinstance(wide, HouseholderTransitions) and isinstance(capped, HouseholderTransitions)
    assert (wide.beta > 1).any() and torch.equal(capped.beta, wide.beta.clamp(max=1.0))
    assert wide.decay is not None and capped.decay is not None
    assert torch.equal(capped.decay, wide.decay), "the forget gate is the same"
    assert not torch.equal(control(x)[0], extended(x)[0])


def test_the_language_study_has_it_in_the_same_size() -> None:
    control, usual = (lm_config(name, "60M") for name in ("CappedGatedDeltaNet", "GatedDeltaNet"))
    names = ("num_heads", "head_dim", "value_dim")
    ours, theirs = (config.backbone.mixers[0].options for config in (control, usual))
    assert [ours[name] for name in names] == [theirs[name] for name in names]
