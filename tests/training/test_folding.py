"""A norm's weight inside of the products behind it: the same function, the same gradients."""

import pytest
import torch
from torch.func import functional_call

from statetrack.models import BackboneConfig, Tagger, TaggerConfig
from statetrack.training.folding import folded, norms_before_projections
from tests.helpers import relative_error
from tests.layers.cases import D_MODEL, SIZES, every_layer


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


def test_the_weights_of_folded_norms_are_ones() -> None:
    model = tagger("DeltaNet", "rms")
    norms = norms_before_projections(model)
    used = folded(dict(model.named_parameters()), norms)
    assert all(torch.equal(used[name], torch.ones_like(used[name])) for name in norms)
    assert not any(used[name].requires_grad for name in norms)
