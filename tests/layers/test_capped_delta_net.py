"""The control has what [-1, 1] has but its sign."""

import torch

from statetrack.eigenvalues import CappedRange, EigenRange
from statetrack.layers import DeltaNet, get
from statetrack.layers.capped_delta_net import CappedDeltaNet
from statetrack.layers.registry import LAYERS
from statetrack.layers.transitions import HouseholderTransitions


def test_configs_know_it_and_nobody_is_offered_it() -> None:
    assert get("CappedDeltaNet") is CappedDeltaNet and "CappedDeltaNet" not in LAYERS


def test_it_begins_as_the_extended_model_and_never_reflects() -> None:
    control = CappedDeltaNet(8, 2)
    extended = DeltaNet(8, 2, eigen_range=(-1.0, 1.0))
    for layer in (control, extended):
        layer.reset_parameters(torch.Generator().manual_seed(3))
    weights = extended.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in control.state_dict().items())
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(4))
    wide = extended.transitions(x)
    capped = control.transitions(x)
    assert isinstance(wide, HouseholderTransitions) and isinstance(capped, HouseholderTransitions)
    assert (wide.beta > 1).any() and torch.equal(capped.beta, wide.beta.clamp(max=1.0))
    extended.eigen_range = CappedRange(-1.0)
    assert torch.equal(control(x)[0], extended(x)[0])
    extended.eigen_range = EigenRange(-1.0)
    # where β is below 1 it learns as fast as the extended model does
    x = x.clone().requires_grad_()
    below = wide.beta.flatten(2) < 1
    for layer in (control, extended):
        transitions = layer.transitions(x)
        assert isinstance(transitions, HouseholderTransitions)
        (slope,) = torch.autograd.grad(transitions.beta.flatten(2)[below].sum(), x)
        assert slope.abs().sum() > 0
        if layer is control:
            expected = slope
    assert torch.equal(slope, expected)
