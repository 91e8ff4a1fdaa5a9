"""Spoilt networks, repaired; what cannot be repaired is rejected and left as it is."""

import copy
import sys

import pytest
import torch

from statetrack.analysis import certify, polish
from statetrack.automata import Machine, read
from tests.analysis.test_certify import noisy, tagger_for


@pytest.mark.parametrize("name", ["z3", "s3_swaps"])
def test_a_spoilt_network_is_repaired(name: str) -> None:
    tagger, machine = tagger_for(name)
    spoilt = noisy(tagger, 0.02, seed=1)
    weights = copy.deepcopy(spoilt.state_dict())
    found = polish(spoilt, machine)
    assert found.model is not None and found.accepted and str(found).startswith("accepted")
    assert found.residual[1] < 1e-5 < found.residual[0] and found.margin[1] > 0
    assert found.model.config == spoilt.config
    before, after = (certify(model, machine) for model in (spoilt, found.model))
    assert after.exact > 1000 * before.exact and after.stepwise > 1000
    assert all(torch.equal(value, weights[key]) for key, value in spoilt.state_dict().items())
    assert 0 < found.changed < 1


def test_what_does_not_fit_is_rejected_with_the_reason() -> None:
    """One answer is wrong, which no key or value mends."""
    tagger, machine = tagger_for("z3")
    weights = copy.deepcopy(tagger.state_dict())
    other = Machine.from_table(machine.delta, 0, outputs=[0, 2, 1], alphabet=machine.alphabet)
    found = polish(tagger, other)
    assert found.model is None and not found.accepted and found.why
    assert str(found).startswith("rejected, and the model is as it was")
    assert all(torch.equal(value, weights[key]) for key, value in tagger.state_dict().items())


def test_a_network_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger, machine = tagger_for("z3")
    monkeypatch.setattr(sys.modules["statetrack.analysis.polish"], "MAX_JACOBIAN", 1)
    with pytest.raises(ValueError, match="too large to polish"):
        polish(tagger, machine)
    with pytest.raises(ValueError, match="knows 4 tokens"):
        polish(tagger, read("parity"))
