"""Models whose eigenvalues are kept from being negative, after training and from the start."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.experiments.language import LossSettings, evaluate
from statetrack.experiments.language_control import can_be_negative, never_negative
from statetrack.layers import DeltaNet, get
from statetrack.layers.capped_delta_net import CappedDeltaNet
from statetrack.layers.transitions import DiagonalTransitions, HouseholderTransitions
from statetrack.lm import Manifest
from statetrack.models import CausalLM
from statetrack.runs import Record
from statetrack.training import run
from tests.lm import corpus


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return corpus.shards(tmp_path_factory.mktemp("control"))


def with_beta(sign: float, mixer: str = "DeltaNet", **options: Any) -> CausalLM:
    """A model with β far to one side: its projections are large, of one sign, and so is x."""
    model = CausalLM(corpus.model(mixer, **options), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.embedding.weight.abs_().add_(0.1)
        for layer in model.modules():
            if isinstance(layer, DeltaNet):
                layer.beta_proj.weight.fill_(30.0 * sign)
    return model


def betas(model: CausalLM) -> torch.Tensor:
    found = []
    for layer in model.modules():
        if isinstance(layer, DeltaNet):
            transitions = layer.transitions(
                torch.rand(1, 5, 8, generator=torch.Generator().manual_seed(1)) + 0.1
            )
            assert isinstance(transitions, HouseholderTransitions)
            found.append(transitions.beta.flatten())
    return torch.cat(found)


SETTINGS = LossSettings(length=16, short=4, long=2)


def test_a_clamp_changes_reflections_and_nothing_else(shards: Manifest) -> None:
    for sign, changes in ((1.0, True), (-1.0, False)):
        model = with_beta(sign, eigen_range=(-1.0, 1.0))
        assert (betas(model) > 1.99).all() if changes else (betas(model) < 0.5).all()
        before = evaluate(model, shards, SETTINGS)
        with never_negative(model):
            assert (betas(model) <= 1.0).all()
            clamped = evaluate(model, shards, SETTINGS)
        assert (before != clamped) == changes
        assert evaluate(model, shards, SETTINGS) == before


@pytest.mark.parametrize("option", ["beta_stretch", "beta_start"])
def test_a_beta_with_options_is_clamped_as_it_is(option: str) -> None:
    model = CausalLM(corpus.model(**{option: 1.5}), generator=torch.Generator().manual_seed(0))
    plain = betas(model)
    with never_negative(model):
        assert torch.equal(betas(model), plain.clamp(max=1.0)) and (plain > 1).any()


@pytest.mark.parametrize(
    ("mixer", "options", "bias", "far"),
    [
        ("GLA", {"num_heads": 2}, "decay_up.bias", -40.0),
        ("Mamba2", {"head_dim": 4, "d_state": 4}, "dt_bias", 5.0),
        ("MLSTM", {"num_heads": 2}, "forget_gate.bias", -5.0),
    ],
)
@pytest.mark.parametrize("forgets", [True, False])
def test_gates_stop_at_zero_and_others_are_left_alone(
    mixer: str, options: dict[str, Any], bias: str, far: float, forgets: bool
) -> None:
    """With its bias far to one side every gate is negative, or none is."""
    layer = get(mixer)(8, **options, eigen_range=(-1.0, 1.0))
    with torch.no_grad():
        layer.get_parameter(bias).fill_(far if forgets else -far)
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))

    def gates() -> torch.Tensor:
        transitions = layer.transitions(x)
        assert isinstance(transitions, DiagonalTransitions)
        return transitions.decay

    before, said = gates(), layer(x)[0]
    assert (before < 0).all() if forgets else (before > 0).all()
    with never_negative(layer):
        assert torch.equal(gates(), before.clamp(min=0.0))
        assert torch.equal(layer(x)[0], said) != forgets
    assert torch.equal(gates(), before) and torch.equal(layer(x)[0], said)


def test_an_error_inside_leaves_the_model_as_it_was() -> None:
    model = with_beta(1.0)
    with pytest.raises(RuntimeError, match="inside"), never_negative(model):
        raise RuntimeError("inside")
    assert (betas(model) > 1.99).all()
    with (
        pytest.raises(ValueError, match="no layer whose sign can be taken"),
        never_negative(torch.nn.Linear(2, 2)),
    ):
        pass


@pytest.mark.slow
def test_a_compiled_model_is_clamped_too() -> None:
    words = [sys.executable, "-m", "tests.experiments.compile_clamped"]
    told = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "ok\n"), told.stderr


def test_only_what_can_be_negative_is_asked(shards: Manifest) -> None:
    def asked(mixer: str, **options: Any) -> bool:
        return can_be_negative(corpus.config(shards, model=corpus.model(mixer, **options)))

    assert asked("DeltaNet") and asked("DeltaNet", eigen_range=(-0.5, 1.0))
    assert not asked("DeltaNet", eigen_range=(0.0, 1.0))
    assert not asked("CappedDeltaNet", num_heads=2)
    assert not asked("Attention", num_heads=2)
    assert asked("GLA", num_heads=2) and not asked("GLA", num_heads=2, eigen_range=(0.0, 1.0))
    assert not asked("Mamba"), "its kernel makes the eigenvalues from the range's end"


def test_the_control_stops_goes_on_and_is_read_again(shards: Manifest, tmp_path: Path) -> None:
    config = corpus.config(shards, model=corpus.model("CappedDeltaNet", num_heads=2))
    assert type(config).from_json(config.to_json()) == config
    whole = run(config, tmp_path / "whole")

    def stop(_: Any, rows: list[Record]) -> None:
        if any(row.step == 6 for row in rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", watcher=stop)
    cut = run(config, tmp_path / "cut")
    assert cut.info["resumed_at"] > 0
    models = [CausalLM.load(one.folder) for one in (whole, cut)]
    weights = models[0].state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in models[1].state_dict().items())
    assert sum(isinstance(one, CappedDeltaNet) for one in models[1].modules()) == 2
