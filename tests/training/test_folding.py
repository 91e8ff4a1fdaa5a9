"""A norm's weight inside of the products behind it: the same function, the same gradients."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from statetrack.layers import Fold, register
from statetrack.layers.parts import HeadNorm, RMSNorm
from statetrack.models import BackboneConfig, Tagger, TaggerConfig
from statetrack.training.eager import Eager
from statetrack.training.engine import Engine
from statetrack.training.folding import folded, norms_before_projections
from statetrack.training.stacked import Stacked
from tests.helpers import relative_error
from tests.layers.cases import D_MODEL, SIZES, every_layer
from tests.layers.foreign import Leaky
from tests.training import tiny


def tagger(mixer: str, norm: str) -> Tagger:
    """Two blocks in float64, with norms that weigh every channel differently."""
    mixers = [(mixer, SIZES.get(mixer, {}))] * 2
    backbone = BackboneConfig(mixers=mixers, d_model=D_MODEL, mlp="swiglu", norm=norm)
    config = TaggerConfig(vocab_size=3, num_classes=2, backbone=backbone)
    generator = torch.Generator().manual_seed(0)
    model = Tagger(config, generator=generator).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2, generator=generator)
    return model


@every_layer
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_folded_model_is_the_same(name: str, norm: str) -> None:
    model = tagger(name, norm)
    weights = dict(model.named_parameters())
    norms = norms_before_projections(model)
    tokens = torch.randint(0, 3, (3, 9), generator=torch.Generator().manual_seed(1))
    results = []
    for used in (weights, folded(weights, norms)):
        scores, _ = functional_call(model, used, (tokens,))
        gradients = torch.autograd.grad(scores.cos().sum(), list(weights.values()))
        results.append([scores, *gradients])
    for want, got in zip(*results, strict=True):
        assert relative_error(got, want) < 1e-9


def test_which_norms_are_folded() -> None:
    block = "backbone.blocks.1"
    delta = norms_before_projections(tagger("DeltaNet", "rms"))
    assert delta[f"{block}.mixer_norm.weight"] == [
        f"{block}.mixer.qkv_proj.weight",
        f"{block}.mixer.beta_proj.weight",
    ]
    assert delta[f"{block}.mixer.norm.weight"] == [f"{block}.mixer.out_proj.weight"]
    assert delta[f"{block}.mlp_norm.weight"] == [f"{block}.mlp.up_proj.weight"]
    assert len(delta) == 6  # of both blocks; not the last norm of all
    other = norms_before_projections(tagger("RWKV7", "rms"))
    assert list(other) == [f"backbone.blocks.{index}.mlp_norm.weight" for index in (0, 1)]


class Wrong(Leaky):
    """Declares something that cannot be folded; `what` says which."""

    def __init__(self, d_model: int, what: str) -> None:
        super().__init__(d_model)
        self.what = what
        self.group = nn.GroupNorm(1, d_model)
        self.heads = HeadNorm(2, d_model // 2, eps=1e-6)
        self.narrow = RMSNorm(5, eps=1e-6)

    def folds(self) -> list[Fold]:
        return {
            "not there": [Fold(None, (nn.Linear(self.d_model, 3),))],
            "norm not there": [Fold(RMSNorm(self.d_model, eps=1e-6), (self.proj,))],
            "no map": [Fold(None, (self.group,))],
            "bias": [Fold(self.group, (self.proj,))],
            "by head": [Fold(self.heads, (self.proj,))],
            "width": [Fold(self.narrow, (self.proj,))],
        }[self.what]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("not there", r"Wrong\.folds\(\) names a module that the model does not have: Linear"),
        ("norm not there", r"Wrong\.folds\(\) names a module .* RMSNorm"),
        ("no map", "GroupNorm.* must be an nn.Linear that reads the 16 channels"),
        ("bias", "GroupNorm.* must have one weight per channel, and no bias"),
        ("by head", "HeadNorm.* must have one weight per channel"),
        ("width", "Linear.* must be an nn.Linear that reads the 5 channels"),
    ],
)
def test_a_wrong_declaration_is_an_error(what: str, message: str) -> None:
    backbone = BackboneConfig(mixers=[(Wrong, {"what": what})], d_model=D_MODEL)
    model = Tagger(TaggerConfig(vocab_size=3, num_classes=2, backbone=backbone))
    with pytest.raises(ValueError, match=message):
        norms_before_projections(model)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_layer_that_declares_nothing_is_not_folded(norm: str) -> None:
    """And so the function stays the same: only the norms of the MLPs are folded."""
    register(Leaky)
    test_a_folded_model_is_the_same("Leaky", norm)
    found = norms_before_projections(tagger("Leaky", norm))
    assert list(found) == [f"backbone.blocks.{index}.mlp_norm.weight" for index in (0, 1)]


def test_a_layer_of_your_own_trains_folded_as_alone() -> None:
    """By the stacked executor, which folds, and by the eager one, which does not."""
    register(Leaky)
    config = tiny.config(model=tiny.model("Leaky"))
    ended = []
    for executor in (Stacked, Eager):
        engine = Engine([config], executor=executor)
        for _ in engine:
            pass
        ended.append(engine.executor.weights_of(0))
    for name, got in ended[0].items():
        torch.testing.assert_close(got, ended[1][name], rtol=1e-3, atol=1e-5)


def test_the_weights_of_folded_norms_are_ones() -> None:
    model = tagger("DeltaNet", "rms")
    norms = norms_before_projections(model)
    used = folded(dict(model.named_parameters()), norms)
    assert all(torch.equal(used[name], torch.ones_like(used[name])) for name in norms)
    assert not any(used[name].requires_grad for name in norms)
