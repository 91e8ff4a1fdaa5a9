"""Layers by name: ours, other people's, and what their options may be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from statetrack import layers
from statetrack.layers import DeltaNet, Layer, registry
from statetrack.training import RunConfig, run
from tests.helpers import unhooked
from tests.layers.cases import SIZES, every_layer
from tests.layers.foreign import Leaky
from tests.training import tiny


def test_the_table_of_cases_has_every_layer() -> None:
    assert set(SIZES) == set(registry.LAYERS)


def test_names_are_found_whatever_the_case() -> None:
    for name in ("DeltaNet", "deltanet", "delta_net", "delta-net"):
        assert layers.get(name) is DeltaNet
    with pytest.raises(ValueError, match=r"no layer 'DeltaNte'; did you mean 'DeltaNet'\? .* GLA"):
        layers.get("DeltaNte")


def test_register_is_a_decorator_and_gives_a_name() -> None:
    assert layers.register(Leaky) is Leaky
    assert layers.get("leaky") is Leaky
    assert layers.register(Leaky) is Leaky  # again


def test_a_taken_name_is_refused() -> None:
    for name in ("DeltaNet", "Deltanet"):
        other = type(name, (Leaky,), {})
        with pytest.raises(ValueError, match="already is a layer 'DeltaNet'.*another name"):
            layers.register(other)
    assert layers.get("DeltaNet") is DeltaNet


def test_a_class_defined_again_takes_its_place() -> None:
    layers.register(Leaky)
    again = type("Leaky", (Leaky,), {"__module__": Leaky.__module__, "__qualname__": "Leaky"})
    layers.register(again)
    assert layers.get("Leaky") is again


def test_what_is_no_layer_is_refused() -> None:
    for wrong in (nn.Linear, "Leaky", Leaky(4), None):
        with pytest.raises(ValueError, match=r"no class built on statetrack\.layers\.Layer"):
            unhooked(layers.register)(wrong)


def test_what_is_missing_is_named() -> None:
    class Half(Layer):
        def reset_parameters(self, generator: torch.Generator | None = None) -> None:
            pass

    with pytest.raises(ValueError, match="Half lacks _mix, state_size; see help"):
        layers.register(Half)


def test_options_without_names_are_refused() -> None:
    class Sink(Leaky):
        def __init__(self, d_model: int, **options: Any) -> None:
            super().__init__(d_model, **options)

    with pytest.raises(ValueError, match=r"Sink\(d_model: int, \*\*options.* no \*\*kwargs"):
        layers.register(Sink)


def test_an_option_without_default_must_be_given() -> None:
    class Needy(Leaky):
        def __init__(self, d_model: int, rate: float) -> None:
            super().__init__(d_model, rate)

    with pytest.raises(ValueError, match="Needy needs the option rate"):
        registry.options(Needy, {})
    assert registry.options(Needy, {"rate": 1}) == {"rate": 1.0}


@every_layer
def test_defaults_are_complete(name: str) -> None:
    found = registry.options(registry.get(name), {})
    registry.get(name)(16, **(found | SIZES[name]))
    assert "d_model" not in found and "depth" not in found


@pytest.mark.parametrize(
    ("option", "value", "stored"),
    [
        ("eigen_range", (-1, 1), (-1.0, 1.0)),
        ("eigen_range", [0, 1.0], (0.0, 1.0)),
        ("norm_eps", 1, 1.0),
        ("head_dim", None, None),
    ],
)
def test_values_are_what_the_annotations_say(option: str, value: Any, stored: Any) -> None:
    found = registry.options(DeltaNet, {option: value})[option]
    assert found == stored and type(found) is type(stored)
    if isinstance(stored, tuple):
        assert all(type(item) is float for item in found)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("num_heads", 2.5, "DeltaNet: num_heads=2.5 must be a whole number"),
        ("num_heads", "4", "DeltaNet: num_heads='4' must be a whole number"),
        ("qk_silu", 1, "DeltaNet: qk_silu=1 must be True or False"),
        ("norm_eps", "small", "DeltaNet: norm_eps='small' must be a number"),
        ("eigen_range", (0.0,), "DeltaNet: eigen_range=.* must be 2 values"),
        ("backend", "tritn", "backend='tritn' must be one of .*did you mean 'triton'"),
        ("num_head", 2, "DeltaNet has no option 'num_head'; did you mean 'num_heads'"),
    ],
)
def test_other_values_are_refused(option: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.options(DeltaNet, {option: value})


def test_a_layer_of_your_own_trains_and_is_saved(tmp_path: Path) -> None:
    """In a hybrid, by name, from a config that came from JSON."""
    layers.register(Leaky)
    mixers = [("Leaky", {"rate": 0.25}), ("DeltaNet", {"num_heads": 2})]
    model = tiny.model(sizes={"mixers": mixers})
    config = RunConfig.from_json(tiny.config(model=model).to_json())
    made = run(config, tmp_path)
    assert made.finished and made.config == config
    loaded = made.model()
    assert [type(block.mixer) for block in loaded.backbone.blocks] == [Leaky, DeltaNet]
    assert loaded.backbone.blocks[0].mixer.rate == 0.25
