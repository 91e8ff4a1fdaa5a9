"""The control has what [-1, 1] has but its sign."""

import torch

from statetrack.layers import GLA, get
from statetrack.layers.capped_gla import CappedGLA
from statetrack.layers.registry import LAYERS
from statetrack.layers.transitions import DiagonalTransitions


def test_configs_know_it_and_nobody_is_offered_it() -> None:
    assert get("CappedGLA") is CappedGLA and "CappedGLA" not in LAYERS


def test_it_begins_as_the_extended_model_and_is_never_negative() -> None:
    control, extended = CappedGLA(8, 2), GLA(8, 2, eigen_range=(-1.0, 1.0))
    for layer in (control, extended):
        layer.reset_parameters(torch.Generator().manual_seed(3))
    weights = extended.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in control.state_dict().items())
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(4))
    assert torch.equal(control(x)[0], extended(x)[0]), "all gates begin near 0.91"
    with torch.no_grad():
        for layer in (control, extended):
            layer.decay_down.weight.mul_(100)
            layer.decay_up.weight.mul_(100)
    x.requires_grad_()
    wide, capped = extended.transitions(x), control.transitions(x)
    assert isinstance(wide, DiagonalTransitions) and isinstance(capped, DiagonalTransitions)
    above = wide.decay > 0
    assert above.any() and not above.all()
    assert torch.equal(capped.decay, wide.decay.clamp(min=0.0))
    assert not torch.equal(control(x)[0], extended(x)[0])
    # where a gate is above 0 it learns as fast as the extended model's does
    slopes = [torch.autograd.grad(t.decay[above].sum(), x)[0] for t in (wide, capped)]
    assert slopes[0].abs().sum() > 0 and torch.equal(*slopes)
