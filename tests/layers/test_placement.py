"""`device` and `dtype`, as the modules of torch.nn take them."""

import pytest
import torch

from statetrack.layers import DeltaNet, registry
from statetrack.models import (
    BackboneConfig,
    CausalLM,
    CausalLMConfig,
    Tagger,
    TaggerConfig,
)
from tests.layers.cases import D_MODEL, SIZES, every_layer, sequence


@every_layer
def test_every_layer_takes_them(name: str) -> None:
    made, options = registry.get(name), SIZES[name]
    torch.manual_seed(0)
    plain = made(D_MODEL, **options)
    torch.manual_seed(0)
    exact = made(D_MODEL, **options, device="cpu", dtype=torch.float64)
    for one, other in zip(plain.parameters(), exact.parameters(), strict=True):
        assert other.dtype == torch.float64
        assert torch.equal(one.double(), other)
    y, _ = exact(sequence(5))
    assert y.dtype == torch.float64
    nowhere = made(D_MODEL, **options, device="meta", dtype=torch.bfloat16)
    kinds = {(p.device.type, p.dtype) for p in nowhere.parameters()}
    assert kinds == {("meta", torch.bfloat16)}
    assert not {"device", "dtype"} & registry.options(made, options).keys()


@every_layer
def test_every_layer_runs_in_bfloat16(name: str) -> None:
    """Weights and all: whole, cut in two, and close to what the same weights give in float64."""
    layer = registry.get(name)(D_MODEL, **SIZES[name], dtype=torch.bfloat16)
    x = sequence(5).bfloat16()
    y, state = layer(x)
    start, middle = layer(x[:, :3])
    rest, after = layer(x[:, 3:], middle)
    assert y.dtype == start.dtype == rest.dtype == torch.bfloat16
    exact, _ = layer.double()(x.double())
    scale = exact.abs().max()
    assert (y - exact).abs().max() < 0.05 * scale
    assert (torch.cat([start, rest], 1) - exact).abs().max() < 0.05 * scale
    assert state.keys() == after.keys()


def test_a_model_draws_the_same_weights_wherever_it_lies() -> None:
    backbone = BackboneConfig(mixers=["DeltaNet", "Attention"], d_model=16)
    tagger = TaggerConfig(vocab_size=3, num_classes=2, backbone=backbone)
    lm = CausalLMConfig(vocab_size=3, backbone=backbone)
    for made, config in ((Tagger, tagger), (CausalLM, lm)):
        plain = made(config, generator=torch.Generator().manual_seed(1))
        exact = made(config, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for one, other in zip(plain.parameters(), exact.parameters(), strict=True):
            assert torch.equal(one.double(), other)
        generator = torch.Generator().manual_seed(1)  # of the CPU: drawn there, and moved
        moved = made(config, generator=generator, device="meta", dtype=torch.bfloat16)
        assert {(p.device.type, p.dtype) for p in moved.parameters()} == {("meta", torch.bfloat16)}
        assert made(config, device="meta").embedding.weight.is_meta


def test_a_dtype_that_is_no_float_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype=torch.int64 must be a floating-point one"):
        DeltaNet(16, dtype=torch.int64)
