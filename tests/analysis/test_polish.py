"""Spoilt networks, repaired; what cannot be repaired is rejected and left as it is."""

import copy
import sys

import pytest
import torch

from statetrack.analysis import certify, polish
from statetrack.automata import Machine, read
from statetrack.models import BackboneConfig, Tagger, TaggerConfig
from statetrack.runs import Run
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, run
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Parity, as docs/guide/from_examples.md trains it: it breaks after some dozens of ones."""
    mixer = ("DeltaNet", {"num_heads": 2, "conv_size": 0, "eigen_range": (-1.0, 1.0)})
    backbone = BackboneConfig(mixers=[mixer], d_model=16, mlp="none")
    config = RunConfig(
        task="parity_dense",
        model=TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone),
        steps=500,
        batch=32,
        lengths=(3, 16),
        optimizer=OptimizerConfig(lr=1e-2),
        evaluation=EvaluationConfig(every=500, size=64),
        log_every=100,
        checkpoint_every=None,
        seed=1,
    )
    return run(config, tmp_path_factory.mktemp("polish"))


def test_a_trained_network_becomes_exact(trained: Run) -> None:
    machine, told = read("parity"), []
    found = polish(trained, machine, progress=told.append)
    assert found.model is not None, found.why
    assert found.residual[1] < 1e-5 < 0.01 < found.residual[0]
    # with β at 0 and 2 parity's states fit at once; what is left is to read H = 0 as "even"
    assert all(line.startswith("attempt 1 of 3, answers: step ") for line in told) and told
    before = certify(trained, machine)
    after = certify(found.model, machine, "parity_dense")
    assert after.exact > 10_000 > 100 > before.exact
    ones = torch.full((1, 20_000), 2)  # the token of a one
    for model, wrong in ((trained.model(), True), (found.model, False)):
        with torch.no_grad():
            says = model(ones)[0].argmax(-1)
        odd = torch.arange(1, 20_001) % 2
        assert bool((says != says[0, 1] + (says[0, 0] - says[0, 1]) * odd).any()) == wrong


def test_time_is_bounded(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = read("parity")
    now = iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: next(now))  # a look at the clock takes a second
    found = polish(trained, machine, seconds=3.0)
    assert found.model is None and found.why == "the 3 seconds are over in attempt 1 of 3"
    assert next(now) < 10
    with pytest.raises(ValueError, match="seconds=0.0 must be positive"):
        polish(trained, machine, seconds=0.0)


def test_what_cannot_be_is_rejected_with_the_reason() -> None:
    """Three states in a circle take an eigenvalue that is not real; one Householder has none."""
    tagger, machine = tagger_for("s3_swaps")
    delta = machine.delta.copy()
    delta[:, 1] = machine.delta[machine.delta[:, 1], 2]  # one swap after another
    weights = copy.deepcopy(tagger.state_dict())
    found = polish(tagger, Machine.from_table(delta, 0, outputs=machine.outputs))
    assert found.model is None and not found.accepted
    assert found.why == (
        "letter 1 leads round 3 states, which takes an eigenvalue that is not real, and one "
        "Householder has none"
    )
    assert str(found).startswith("rejected, and the model is as it was: letter 1")
    assert all(torch.equal(value, weights[key]) for key, value in tagger.state_dict().items())


def test_positive_eigenvalues_swap_nothing() -> None:
    options = {"num_heads": 1, "conv_size": 0, "eigen_range": (0.0, 1.0)}
    backbone = BackboneConfig(mixers=[("DeltaNet", options)], d_model=8, mlp="none")
    tagger = Tagger(TaggerConfig(vocab_size=3, num_classes=2, backbone=backbone))
    tagger.reset_parameters(torch.Generator().manual_seed(0))
    found = polish(tagger, read("parity"))
    assert "letter 1 leads round 2 states" in found.why and "range is [0, 1]" in found.why


def test_what_is_not_found_is_rejected() -> None:
    """A random network with two rows is near to none that looks for `abc`."""
    options = {"num_heads": 1, "head_dim": 2, "conv_size": 0}
    backbone = BackboneConfig(mixers=[("DeltaNet", options)], d_model=8, mlp="none")
    tagger = Tagger(TaggerConfig(vocab_size=4, num_classes=2, backbone=backbone))
    tagger.reset_parameters(torch.Generator().manual_seed(0))
    machine = read("(a|b|c)*abc(a|b|c)*", alphabet="abc")
    found = polish(tagger, machine)
    assert found.model is None and "more than 1e-05" in found.why
    assert found.changed > 0 and found.words == 0


def test_a_network_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger, machine = tagger_for("z3")
    monkeypatch.setattr(sys.modules["statetrack.analysis.polish"], "MAX_JACOBIAN", 1)
    with pytest.raises(ValueError, match="too large to polish"):
        polish(tagger, machine)
    with pytest.raises(ValueError, match="knows 4 tokens"):
        polish(tagger, read("parity"))
