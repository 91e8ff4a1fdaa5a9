"""The linear recurrent unit against its paper's formulas."""

import math
from typing import Any

import pytest
import torch

from statetrack.layers import LRU
from statetrack.training.optimizer import decays
from tests.helpers import relative_error
from tests.layers.cases import D_MODEL, build, sequence


@pytest.mark.parametrize("low", [-1.0, -0.4, 0.0])
def test_the_papers_equations(low: float) -> None:
    layer: Any = build("LRU", eigen_range=(low, 1.0))
    N = layer.state_dim
    z = torch.exp(torch.complex(-layer.nu_log.exp(), layer.theta_log.exp()))
    Lambda = (1 + low) / 2 + (1 - low) / 2 * z
    B = torch.complex(layer.in_proj.weight[:N], layer.in_proj.weight[N:])
    C = torch.complex(layer.out_proj.weight[:, :N], -layer.out_proj.weight[:, N:])
    x = sequence(9, batch=1)
    y, state = layer(x)
    h, wanted = torch.zeros(N, dtype=torch.complex128), []
    for x_t in x[0]:
        h = Lambda * h + layer.gamma_log.exp() * (B @ x_t.to(h.dtype))
        wanted.append((C @ h).real + layer.D * x_t)
    assert relative_error(y[0], torch.stack(wanted)) < 1e-12
    assert relative_error(torch.view_as_complex(state["recurrent"][0, :, :, 0]), h) < 1e-12


def test_full_range_is_the_unit_disc_exactly() -> None:
    layer: Any = build("LRU")
    z = torch.polar(torch.exp(-layer.nu_log.exp()), layer.theta_log.exp())
    eigenvalues = layer.transitions(sequence(1)).eigenvalues()[0, 0, :, 0]
    assert torch.equal(eigenvalues, z)


def test_eigenvalues_start_on_the_ring() -> None:
    layer = LRU(4, state_dim=4000, r_min=0.6, r_max=0.9, max_phase=1.0)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    found = layer.transitions(torch.zeros(1, 1, 4)).eigenvalues()[0, 0, :, 0]
    radius, angle = found.abs(), found.angle()
    assert 0.6 - 1e-5 <= radius.min() < 0.601 and 0.899 < radius.max() <= 0.9 + 1e-5
    assert 0 <= angle.min() < 0.001 and 0.999 < angle.max() <= 1 + 1e-5
    # uniform in area: half of the ring lies within the radius that halves it
    assert abs((radius.square() < (0.36 + 0.81) / 2).float().mean() - 0.5) < 0.03
    assert torch.allclose(layer.gamma_log.exp(), (1 - radius.square()).sqrt(), atol=1e-5)


def test_the_state_of_noise_is_about_as_large_as_its_input() -> None:
    layer = LRU(D_MODEL, state_dim=64, r_min=0.9, r_max=0.99)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(1)
    _, state = layer(torch.randn(64, 600, D_MODEL, generator=g))
    assert abs(state["recurrent"].square().sum(2).mean() - 1) < 0.1


def test_counts_time_modulo_three() -> None:
    layer = LRU(2, state_dim=1).double()
    with torch.no_grad():
        layer.nu_log.fill_(-torch.inf)
        layer.theta_log.fill_(math.log(2 * math.pi / 3))
        layer.gamma_log.zero_()
        layer.in_proj.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        layer.out_proj.weight.copy_(torch.eye(2))
        layer.D.zero_()
    x = torch.zeros(1, 3001, 2, dtype=torch.float64)
    x[0, 0, 0] = 1.0
    y, _ = layer(x)
    assert torch.allclose(y[0, ::3], torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-9)
    assert (y[0, 1::3, 0] < 0).all() and (y[0, 2::3, 0] < 0).all()


def test_what_sets_its_time_scale_does_not_decay() -> None:
    named = dict(LRU(4).named_parameters())
    kept = {name for name, p in named.items() if not decays(name, p, "all_but_state")}
    assert kept == {"nu_log", "theta_log", "gamma_log", "D"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_dim": 0}, "state_dim=0 must be at least 1"),
        ({"r_min": 0.5, "r_max": 0.5}, "r_min=0.5 and r_max=0.5 must satisfy"),
        ({"r_max": 1.5}, "r_max=1.5 must satisfy"),
        ({"max_phase": 0.0}, "max_phase=0.0 must be above 0"),
        ({"max_phase": 7.0}, "max_phase=7.0 must be above 0 and at most 2π"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LRU(4, **options)


def test_printed() -> None:
    assert "state_dim=4, r_min=0.0, r_max=1.0, max_phase=6.28" in repr(LRU(4))
