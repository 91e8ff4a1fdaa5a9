"""The paper's models: sizes as published."""

import pytest
import torch

from statetrack.models import (
    CausalLM,
    CausalLMConfig,
    Tagger,
    TaggerConfig,
    lm_config,
    paper_config,
)
from tests.layers.foreign import Leaky


def count(config: TaggerConfig) -> int:
    return sum(parameter.numel() for parameter in Tagger(config).parameters())


@pytest.mark.parametrize(
    ("expected", "mixer", "settings"),
    [
        (529_856, "DeltaNet", {"vocab_size": 3}),
        (531_648, "DeltaNet", {"vocab_size": 10}),
        (796_128, "DeltaNet", {"vocab_size": 10, "num_layers": 3}),
        (232_448, "Mamba", {"vocab_size": 3, "conv_size": 1}),
        (233_984, "Mamba", {"vocab_size": 3, "conv_size": 4}),
        (219_792, "MLSTM", {"vocab_size": 3}),
        (215_680, "SLSTM", {"vocab_size": 3}),
    ],
)
def test_parameter_counts_of_the_paper(expected: int, mixer: str, settings: dict) -> None:
    assert count(paper_config(mixer, **settings)) == expected


def test_every_layer_of_a_stack_has_the_options() -> None:
    config = paper_config("deltanet", vocab_size=3, num_layers=3, eigen_range=(0, 1))
    assert [mixer.layer for mixer in config.backbone.mixers] == ["DeltaNet"] * 3
    assert {mixer.options["eigen_range"] for mixer in config.backbone.mixers} == {(0.0, 1.0)}


def test_a_class_of_your_own() -> None:
    config = paper_config(Leaky, vocab_size=3, num_layers=1, rate=0.25)
    assert dict(config.backbone.mixers[0].options) == {"rate": 0.25}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_layers": 0}, "paper_config: num_layers=0 must be a whole number at least 1"),
        ({"num_layers": True}, "num_layers=True"),
        ({"d_model": 0}, "paper_config: d_model=0 must be"),
        ({"num_head": 2}, "no option 'num_head'; did you mean 'num_heads'"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paper_config("DeltaNet", vocab_size=3, **sizes)


@pytest.mark.parametrize(
    ("mixer", "size", "millions"),
    [
        ("DeltaNet", "340M", 374.36),
        ("DeltaNet", "1.3B", 1365.68),
        ("GatedDeltaNet", "340M", 379.76),
        ("GatedDeltaNet", "60M", 76.14),
        ("DeltaProduct", "340M", 425.09),
        ("GLA", "340M", 374.48),
        ("Mamba", "340M", 385.57),
        ("Mamba", "1.3B", 1400.28),
        ("Mamba2", "340M", 382.39),
        ("Attention", "340M", 373.87),
        ("Attention", "1.3B", 1364.30),
        ("DeltaNet", "60M", 73.78),
    ],
)
def test_sizes_of_language_models(mixer: str, size: str, millions: float) -> None:
    assert parameters(lm_config(mixer, size)) == pytest.approx(1e6 * millions, rel=1e-4)


@pytest.mark.parametrize(("size", "heads"), [("20M", 3), ("60M", 3), ("340M", 3), ("1.3B", 6)])
def test_keys_of_gated_delta_net(size: str, heads: int) -> None:
    """Three quarters of the width, in heads of 256 where these are three or more."""
    config = lm_config("GatedDeltaNet", size)
    options = config.backbone.mixers[0].options
    assert options["num_heads"] == heads and options["value_dim"] == 2 * options["head_dim"]
    assert heads * options["head_dim"] == config.backbone.d_model * 3 // 4


def test_released_mamba_has_as_many_parameters() -> None:
    """state-spaces/mamba-370m: 371,516,416, with its vocabulary padded to 50,280."""
    config = lm_config("Mamba", "340M", vocab_size=50_280, tie_embeddings=True)
    assert parameters(config) == 371_516_416


def test_options_reach_the_layer_of_a_language_model() -> None:
    config = lm_config("DeltaNet", "20M", eigen_range=(0.0, 1.0), num_heads=6)
    options = config.backbone.mixers[0].options
    assert options["eigen_range"] == (0.0, 1.0) and options["num_heads"] == 6
    with pytest.raises(ValueError, match="340M"):
        lm_config("DeltaNet", "340m")


def parameters(config: CausalLMConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in CausalLM(config).parameters())
