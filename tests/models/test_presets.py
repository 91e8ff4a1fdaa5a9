"""The paper's models: sizes as published."""

import pytest

from statetrack.models import Tagger, TaggerConfig, paper_config
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
