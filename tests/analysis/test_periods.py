"""Lemma P on compiled and untrained models."""

import numpy as np
import pytest
import torch

from statetrack.analysis import audit
from statetrack.analysis.periods import period_checks, turns
from statetrack.automata import named
from statetrack.compiler import compile
from statetrack.models import BackboneConfig, Tagger, TaggerConfig


def test_periods_multiply_through_the_layers() -> None:
    found = period_checks(compile(named("q8"), "diagonal"), named("q8"), 1e-3)
    assert found
    for period in found:
        assert period.order == 4 and np.prod(period.periods) % 4 == 0
    twelve = audit(compile(named("z12"), "group"))
    assert [(p.order, p.periods) for p in twelve.periods] == [(12, (12,))]


def test_an_untrained_model_has_no_period() -> None:
    backbone = BackboneConfig(mixers=["DeltaNet"] * 2, d_model=32)
    config = TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)
    model = Tagger(config, generator=torch.Generator().manual_seed(0))
    found = audit(model, machine=named("z3"))
    assert found.periods and not any(period.enough for period in found.periods)
    assert "not enough" in str(found)


def test_random_angles_are_no_roots_of_unity() -> None:
    angles = np.random.default_rng(0).uniform(-np.pi, np.pi, 2000)
    for order in (2, 3, 12, 60):
        passed = [turns(np.exp([1j * angle]), order) is not None for angle in angles]
        assert np.mean(passed) < 0.02


@pytest.mark.parametrize("order", [1, 2, 3, 7, 12, 60])
def test_roots_of_unity_pass_with_their_order_although_rounded(order: int) -> None:
    for j in range(order):
        value = np.exp(2j * np.pi * (j / order) + 1e-6j)
        assert turns(np.array([value]), order) == order // np.gcd(j, order)
    assert turns(np.array([], dtype=complex), order) == 1


def test_an_angle_that_is_a_little_off_is_no_root() -> None:
    assert turns(np.exp([2j * np.pi / 3 + 0.005j]), 3) is None
    assert turns(np.exp(2j * np.pi * np.array([1 / 4, 1 / 3])), 3) == 12
