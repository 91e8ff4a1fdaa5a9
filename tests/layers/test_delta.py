"""The options that the delta layers share: sizes of the state, heads, norms and gates."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from statetrack import ops
from statetrack.eigenvalues import EigenRange
from statetrack.layers import Layer, registry
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.transitions import HouseholderTransitions
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


def expect_its_transitions_and_steps(layer: Layer) -> None:
    """The transitions that it shows are those that it runs, as a sequence and step by step."""
    x = sequence(9)
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
    expect_its_transitions_and_steps(build(name, value_dim=value_dim))


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


# ------------------------------------------------------- value heads, qk_eps and the output gate

MORE = {"num_value_heads": 6, "value_dim": 3, "qk_eps": 0.1, "output_gate": True}


def by_hand(layer: DeltaFamily, x: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence, token by token and head by head, as the papers write it; no convolution."""
    n, keys, values = layer.num_householders, layer.num_heads, layer.num_value_heads
    dim, columns, shared = layer.head_dim, layer.value_dim, values // keys
    state = torch.zeros(values, dim, columns, dtype=x.dtype)
    outputs = []
    for x_t in x:
        q, k, v = silu(layer.qkv_proj(x_t)).split(
            [keys * dim, n * keys * dim, n * values * columns]
        )
        q, k, v = q.view(keys, dim), k.view(n, keys, dim), v.view(n, values, columns)
        beta = layer.eigen_range.width * layer.beta_proj(x_t).sigmoid().view(n, values)
        gate = silu(layer.gate_proj(x_t)).view(values, columns) if layer.gate_proj else None
        row = []
        for head in range(values):
            if layer.decay_proj is not None:
                step = softplus(layer.decay_proj(x_t)[head] + layer.dt_bias[head])
                state[head] = torch.exp(-layer.A_log[head].exp() * step) * state[head]
            for j in range(n):
                key = k[j, head // shared]
                key = key / (key @ key + layer.qk_eps).sqrt()
                wrong = v[j, head] - key @ state[head]
                state[head] = state[head] + beta[j, head] * torch.outer(key, wrong)
            query = q[head // shared]
            y = query / (query @ query + layer.qk_eps).sqrt() @ state[head] / dim**0.5
            y = y / (y.square().mean() + layer.norm.eps).sqrt() * layer.norm.weight
            row.append(y if gate is None else y * gate[head])
        outputs.append(layer.out_proj(torch.cat(row)))
    return torch.stack(outputs), state


@delta_layer
@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_value_heads": 6}, {"qk_eps": 1e-6}, {"qk_eps": 0.3}, {"output_gate": True}, MORE],
    ids=lambda options: "+".join(options) or "none",
)
def test_the_papers_equations(name: str, options: dict[str, Any], low: float) -> None:
    layer = build(name, conv_size=0, eigen_range=(low, 1.0), **options)
    assert isinstance(layer, DeltaFamily)
    x = sequence(7)
    with torch.no_grad():
        y, state = layer(x)
        for row in range(2):
            want, end = by_hand(layer, x[row])
            assert relative_error(y[row], want) < 1e-12
            assert relative_error(state["recurrent"][row], end) < 1e-12


@delta_layer
def test_more_value_heads_in_state_steps_and_transitions(name: str) -> None:
    layer, x = build(name, **MORE), sequence(9)
    _, start = layer(sequence(4, seed=3))
    whole, end = layer(x, start)
    assert end["recurrent"].shape == (2, 6, KEY, 3)
    assert sum(part[0].numel() for part in end.values()) == layer.state_size
    seen = layer.transitions(x, start)
    matrices, writes = (
        part.transpose(1, 2).flatten(0, 1) for part in (seen.dense(), seen.writes())
    )
    _, got = reference.matrix_scan(matrices, start["recurrent"].flatten(0, 1), writes)
    assert relative_error(got, end["recurrent"].flatten(0, 1)) < 1e-9
    assert (seen.eigenvalues().abs() <= 1).all()
    state = start
    for t in range(9):
        y, state = layer.step(x[:, t], state)
        assert relative_error(y, whole[:, t]) < 1e-9


@delta_layer
def test_more_value_heads_in_packed_sequences_and_gradients(name: str) -> None:
    layer, x = build(name, **MORE), sequence(9, batch=1).requires_grad_()
    packed, _ = layer(x, cu_seqlens=torch.tensor([0, 4, 9]))
    alone = torch.cat([layer(x[:, :4])[0], layer(x[:, 4:])[0]], dim=1)
    assert relative_error(packed, alone) < 1e-12
    leaves = [x, *layer.parameters()]
    wanted = torch.autograd.grad(alone.cos().sum(), leaves)
    for have, want in zip(torch.autograd.grad(packed.cos().sum(), leaves), wanted, strict=True):
        assert want.abs().max() > 0
        assert relative_error(have, want) < 1e-9


@delta_layer
def test_keys_are_normalised_in_float32(name: str) -> None:
    """Keys that were rounded to bfloat16 after normalising would be off by 1e-3."""
    layer, x = build(name, qk_eps=1e-6, conv_size=0).float(), sequence(5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        k = layer.transitions(x).k
    assert k.dtype == torch.float32
    assert (k.norm(dim=-1) - 1).abs().max() < 1e-4


@delta_layer
def test_options_are_shown_and_bad_ones_refused(name: str) -> None:
    text = repr(build(name, **MORE))
    for option, value in MORE.items():
        assert f"{option}={value}" in text
    for wrong in (3, 0):
        with pytest.raises(ValueError, match=f"num_value_heads={wrong} must be a multiple of num"):
            build(name, num_value_heads=wrong)
    with pytest.raises(ValueError, match="qk_eps=-1.0 must be at least 0"):
        build(name, qk_eps=-1.0)


# ---------------------------------------------------------------------------- a stretched β

STRETCHED = {"beta_stretch": 1.0, "conv_size": 0}


@delta_layer
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_a_stretched_beta_reaches_both_ends_and_is_the_one_that_is_used(
    name: str, low: float
) -> None:
    layer, x = build(name, stir=1.0, eigen_range=(low, 1.0), **STRETCHED), sequence(9)
    assert isinstance(layer, DeltaFamily)
    width = 1 - low
    expect_its_transitions_and_steps(layer)
    seen = layer.transitions(x)
    assert isinstance(seen, HouseholderTransitions)
    want = width * (3 * layer.beta_proj(x).sigmoid() - 1).clamp(0, 1)
    assert torch.equal(seen.beta.flatten(2), want)
    assert (want == 0).any() and (want == width).any() and ((0 < want) & (want < width)).any()
    if name == "DeltaNet":
        assert (seen.eigenvalues().min() - low).abs() < 1e-12


@delta_layer
def test_a_stretched_beta_has_a_gradient_between_its_ends_alone(name: str) -> None:
    layer, x = build(name, stir=1.0, **STRETCHED), sequence(9)
    unit = layer.beta_proj(x).sigmoid().detach().requires_grad_()
    beta = layer.eigen_range.beta(unit)
    (slope,) = torch.autograd.grad(beta.sum(), unit)
    between = (beta > 0) & (beta < 2)
    assert between.any() and not between.all()
    assert torch.equal(slope, 6.0 * between)  # (1 - low)·(1 + 2e)


@delta_layer
def test_a_stretched_beta_from_a_config_and_none_as_before(name: str) -> None:
    def model(**options: float) -> Tagger:
        backbone = BackboneConfig(mixers=[(name, {"num_heads": HEADS} | options)], d_model=D_MODEL)
        config = TaggerConfig(vocab_size=2, num_classes=2, backbone=backbone)
        return Tagger(config, generator=torch.Generator().manual_seed(0))

    stretched, plain = model(beta_stretch=0.5), model(beta_stretch=0.0)
    assert stretched.backbone.blocks[0].mixer.eigen_range == EigenRange(-1.0, 0.5)
    assert plain.backbone.blocks[0].mixer.eigen_range == EigenRange(-1.0)
    assert plain.config == model().config != stretched.config
    weights = plain.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in stretched.state_dict().items())
    for wrong in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="must be at least 0 and finite"):
            build(name, beta_stretch=wrong)


def test_reflections_of_a_stretched_beta_do_not_fade() -> None:
    """Where σ is 0.9 or 0.1 a plain β forgets within a hundred tokens."""
    logit = torch.logit(torch.tensor([0.9, 0.1]))
    norms = []
    for between in (EigenRange(-1.0), EigenRange(-1.0, 1.0)):
        beta = between.beta(torch.sigmoid(logit)).repeat(2048)[None, :, None]
        key = torch.ones(1, 4096, 1, 1)
        _, state = ops.delta_rule(key, key, 0 * key, beta, initial_state=torch.ones(1, 1, 1, 1))
        norms.append(float(state))
    assert norms == [pytest.approx(0.0, abs=1e-6), 1.0]


# ---------------------------------------------------------------------------- where β begins


@delta_layer
@pytest.mark.parametrize("stretch", [0.0, 1.0])
def test_beta_begins_where_it_is_asked_to_and_reaches_both_ends(name: str, stretch: float) -> None:
    options = {"beta_start": 0.5, "beta_stretch": stretch, "conv_size": 0}
    layer, x = build(name, stir=1.0, **options), sequence(9)
    assert isinstance(layer, DeltaFamily)
    expect_its_transitions_and_steps(layer)
    seen = layer.transitions(x)
    assert isinstance(seen, HouseholderTransitions)
    begins = (0.25 + stretch) / (1 + 2 * stretch)
    moved = (layer.beta_proj(x) + math.log(begins / (1 - begins))).sigmoid()
    want = 2 * ((1 + 2 * stretch) * moved - stretch).clamp(0, 1)
    assert relative_error(seen.beta.flatten(2), want) < 1e-12
    ends = layer.eigen_range.beta(torch.tensor([0.0, 0.5, 1.0]))
    assert ends.tolist() == [0.0, pytest.approx(0.5), 2.0]  # the ends to the last bit
    torch.nn.init.zeros_(layer.beta_proj.weight)
    beta = layer.transitions(x).beta  # type: ignore[attr-defined]
    assert (beta - 0.5).abs().max() < 1e-12


@delta_layer
def test_a_start_of_beta_that_cannot_be_is_refused(name: str) -> None:
    for low, wrong in ((-1.0, 2.0), (0.0, 1.0), (-1.0, 0.0), (-1.0, float("nan"))):
        with pytest.raises(ValueError, match=f"must be above 0 and below {1 - low:g}"):
            build(name, eigen_range=(low, 1.0), beta_start=wrong)
    with pytest.raises(ValueError, match="learn_range begins at β = 0.5"):
        build(name, learn_range=True, beta_start=0.5)
