"""`value_dim`: how many columns the state of a delta layer has in each head."""

from typing import Any

import pytest
import torch

from statetrack.layers import Layer, registry
from statetrack.models import BackboneConfig, Tagger, TaggerConfig
from statetrack.ops.dense import reference
from tests.helpers import relative_error
from tests.layers.cases import D_MODEL, SIZES, build, sequence

delta_layer = pytest.mark.parametrize("name", ["DeltaNet", "GatedDeltaNet", "DeltaProduct"])
HEADS, KEY = 2, 8


@delta_layer
def test_left_out_it_is_head_dim(name: str) -> None:
    left_out, given = build(name), build(name, value_dim=KEY)
    assert left_out.value_dim == left_out.head_dim == KEY
    assert build(name, head_dim=3).value_dim == 3
    for (name_a, a), (name_b, b) in zip(
        left_out.named_parameters(), given.named_parameters(), strict=True
    ):
        assert name_a == name_b and torch.equal(a, b)


@delta_layer
@pytest.mark.parametrize("value_dim", [1, 3, 11])
def test_state_and_shapes(name: str, value_dim: int) -> None:
    layer, x = build(name, value_dim=value_dim), sequence(7, batch=3)
    y, state = layer(x)
    assert y.shape == x.shape
    assert state["recurrent"].shape == (3, HEADS, KEY, value_dim)
    assert sum(part[0].numel() for part in state.values()) == layer.state_size
    assert layer.transitions(x).writes().shape == (3, 7, HEADS, KEY, value_dim)
    assert layer.transitions(x).eigenvalues().shape == (3, 7, HEADS, KEY)


@delta_layer
@pytest.mark.parametrize("value_dim", [1, 3, 11])
def test_transitions_steps_and_cuts(name: str, value_dim: int) -> None:
    layer, x = build(name, value_dim=value_dim), sequence(9)
    _, start = layer(sequence(4, seed=3))
    whole, end = layer(x, start)
    seen = layer.transitions(x, start)
    matrices, writes = (
        part.transpose(1, 2).flatten(0, 1) for part in (seen.dense(), seen.writes())
    )
    _, got = reference.matrix_scan(matrices, start["recurrent"].flatten(0, 1), writes)
    assert relative_error(got, end["recurrent"].flatten(0, 1)) < 1e-9
    state = start
    for t in range(9):
        y, state = layer.step(x[:, t], state)
        assert relative_error(y, whole[:, t]) < 1e-9


@delta_layer
def test_every_parameter_gets_a_gradient(name: str) -> None:
    layer = build(name, value_dim=3)
    layer(sequence(6))[0].square().sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


@delta_layer
def test_each_part_of_the_projection_is_drawn_for_its_own_size(name: str) -> None:
    """Xavier's bound is gain·sqrt(6 / (in + out)); few columns make a larger one."""
    size = SIZES[name]
    layer: Layer = registry.get(name)(64, **size, head_dim=64, value_dim=2)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    values = layer.num_householders * HEADS * 2
    keys, written = layer.qkv_proj.weight[:-values], layer.qkv_proj.weight[-values:]
    for weight, rows in ((keys, HEADS * 64), (written, HEADS * 2)):
        bound = 2**-2.5 * (6 / (64 + rows)) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound


@delta_layer
def test_the_registry_and_configs_know_it(name: str) -> None:
    options = registry.options(registry.get(name), {"value_dim": 3})
    assert options["value_dim"] == 3
    assert registry.options(registry.get(name), {})["value_dim"] is None
    mixers = [(name, {"num_heads": HEADS, "value_dim": 3})]
    backbone = BackboneConfig(mixers=mixers, d_model=D_MODEL)
    config = TaggerConfig(vocab_size=2, num_classes=2, backbone=backbone)
    model: Any = Tagger(config, generator=torch.Generator().manual_seed(0))
    assert [m.value_dim for m in model.modules() if isinstance(m, registry.get(name))][0] == 3


@delta_layer
@pytest.mark.parametrize("value_dim", [0, -2])
def test_bad_sizes(name: str, value_dim: int) -> None:
    with pytest.raises(ValueError, match=f"value_dim={value_dim} must be at least 1"):
        build(name, value_dim=value_dim)
