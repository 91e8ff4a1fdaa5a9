"""Lemma P on compiled and untrained models."""

import numpy as np
import torch

from statetrack.analysis import audit
from statetrack.analysis.periods import period_checks
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
