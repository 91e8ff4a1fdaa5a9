"""Runs in a few words: hybrids, factors, ranges."""

from dataclasses import replace
from typing import Any

import pytest

from statetrack.models import BackboneConfig, TaggerConfig
from statetrack.runs.labels import eigen_range, label, model_label
from tests.training import tiny

POSITIVE = {"eigen_range": (0, 1)}


def config(*mixers: Any) -> Any:
    backbone = BackboneConfig(mixers=list(mixers))
    return tiny.config(model=TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone))


@pytest.mark.parametrize(
    ("mixers", "said"),
    [
        (["DeltaNet"], "DeltaNet [-1, 1]"),
        (["DeltaNet"] * 5, "DeltaNet [-1, 1]"),
        ([("DeltaNet", POSITIVE), "DeltaNet"], "DeltaNet [0, 1] + DeltaNet [-1, 1]"),
        (["LSTM", "Attention"] * 2, "LSTM + Attention"),
        (["DeltaNet", "DeltaNet", "Attention"], "DeltaNet [-1, 1] x2 + Attention"),
        ((["DeltaNet"] * 2 + ["Attention"]) * 8, "DeltaNet [-1, 1] x2 + Attention"),
        (["LSTM", "LSTM", "Attention", "LSTM"], "LSTM x2 + Attention + LSTM"),
        ([("DeltaProduct", {"num_householders": 3})], "DeltaProduct n=3 [-1, 1]"),
    ],
)
def test_models_in_a_few_words(mixers: list[Any], said: str) -> None:
    assert model_label(config(*mixers)) == said
    assert label(config(*mixers)) == f"parity {said}"


def test_without_the_range() -> None:
    assert (
        model_label(config("DeltaProduct", "LSTM"), with_range=False) == "DeltaProduct n=2 + LSTM"
    )


def test_the_range_that_all_layers_share() -> None:
    assert eigen_range(config("DeltaNet", "Attention")) == (-1.0, 1.0)
    assert eigen_range(config("DeltaNet", ("GLA", POSITIVE))) is None
    assert eigen_range(config("LSTM")) is None


def test_what_goes_on_says_how() -> None:
    first = config(*["DeltaNet", "DeltaNet", "Attention"])
    said = "DeltaNet [-1, 1] x2 + Attention"
    more = replace(first, start=first.fingerprint)
    assert label(more) == f"parity {said}, then more"
    assert model_label(more, with_range=False) == "DeltaNet x2 + Attention, then more"
    assert model_label(replace(more, window=8)) == f"{said}, then windows"
    given = replace(first, start="0" * 64, window=8)
    assert model_label(given) == said and label(given) == f"parity {said}, from weights 00000000"
