"""RWKV-7 as published, written out with the state as its paper has it; the value residual."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, sigmoid

from statetrack.layers import RWKV7, Shared
from statetrack.models import Backbone, BackboneConfig
from tests.helpers import relative_error
from tests.layers.cases import build, sequence

RANKS = {"decay_rank": 3, "removal_rank": 5, "output_rank": 2}


def test_the_published_layer_written_out() -> None:
    layer, x = build("RWKV7", eigen_range=None, **RANKS), sequence(9)
    y, state = layer(x)
    shifted = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    x_r, x_w, x_k, x_v, x_a, x_g = (x + mix * (shifted - x) for mix in layer.mix)
    r, k, v = layer.r_proj(x_r), layer.k_proj(x_k), layer.v_proj(x_v)
    w = torch.exp(-(torch.e**-0.5) * sigmoid(layer.w_up(torch.tanh(layer.w_down(x_w)))))
    a = sigmoid(layer.a_up(layer.a_down(x_a)))
    gate = layer.g_up(sigmoid(layer.g_down(x_g)))
    heads = lambda part: part.unflatten(-1, (2, 8))  # noqa: E731
    kk = normalize(heads(k * layer.k_scale), dim=-1)
    k = heads(k * (1 + (a - 1) * layer.k_blend))
    r, w, v, a = heads(r), heads(w), heads(v), heads(a)
    S = x.new_zeros(2, 2, 8, 8)
    outputs = []
    for t in range(9):
        removed = torch.einsum("bhvk,bhk->bhv", S, kk[:, t])
        S = S * w[:, t, :, None] - removed[..., None] * (kk * a)[:, t, :, None]
        S = S + v[:, t, :, :, None] * k[:, t, :, None]
        outputs.append(torch.einsum("bhvk,bhk->bhv", S, r[:, t]))
    read = torch.stack(outputs, dim=1)
    centred = read - read.mean(-1, keepdim=True)
    read = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 8e-5)
    read = read.flatten(-2) * layer.norm.weight + layer.norm.bias
    read = read + ((r * k * layer.bonus).sum(-1, keepdim=True) * v).flatten(-2)
    assert relative_error(y, layer.out_proj(read * gate)) < 1e-12
    assert relative_error(state["recurrent"].mT, S) < 1e-12


def test_the_eigenvalues_of_the_published_layer() -> None:
    """Those of its matrices, real, never below e^{-0.6065} - 1."""
    found = build("RWKV7", eigen_range=None, stir=4.0).transitions(sequence(100))
    closed = found.eigenvalues()
    numeric = torch.linalg.eigvals(found.dense())
    assert torch.allclose(closed.sort(-1).values, numeric.real.sort(-1).values, atol=1e-7)
    assert numeric.imag.abs().max() < 1e-7
    assert -0.4548 < closed.min() < -0.1 and closed.max() < 1 + 1e-12


def test_ranks_of_their_own() -> None:
    layer = RWKV7(16, 2, gate_rank=7, **RANKS)
    assert [p.out_features for p in (layer.w_down, layer.a_down, layer.g_down)] == [3, 5, 2]
    assert RWKV7(16, 2, gate_rank=7).a_down.out_features == 7


# ---------------------------------------------------------------------------- the value residual


def stack() -> Backbone:
    """Three layers, of which the later two mix in the values of the first."""
    options = {"num_heads": 2, "gate_rank": 4, "eigen_range": None}
    later = ("RWKV7", options | {"value_rank": 3})
    config = BackboneConfig(mixers=[("RWKV7", options), "DeltaNet", later, later], d_model=16)
    made = Backbone(config).double()
    made.reset_parameters(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64)
    return made


def test_the_values_of_the_first_layer_reach_the_later_ones() -> None:
    """v = v + σ(…) (v₁ - v), by hand for the last layer."""
    layers = [block.mixer for block in stack().blocks]
    first, last, x, other = layers[0], layers[3], sequence(7), sequence(7, seed=4)
    _, _, shared = first(x, shared=Shared())
    shifted = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    values = first.v_proj(x + first.mix[3] * (shifted - x))
    assert relative_error(shared.values, values) < 1e-12
    y, _, on = last(other, shared=shared)
    assert on.values is shared.values
    shifted = torch.cat([torch.zeros_like(x[:, :1]), other[:, :-1]], dim=1)
    mixed = other + last.mix[3] * (shifted - other)
    own, share = last.v_proj(mixed), sigmoid(last.v_up(last.v_down(mixed)))
    plain = build("RWKV7", eigen_range=None)
    plain.load_state_dict(
        {k: w for k, w in last.state_dict().items() if k[:2] != "v_"}, strict=False
    )
    wanted = own + share * (values - own)
    plain.v_proj = Constant(wanted)
    assert relative_error(y, plain(other)[0]) < 1e-12


class Constant(torch.nn.Module):
    """Stands in for a projection whose result is known."""

    def __init__(self, result: Tensor) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: Tensor) -> Tensor:
        return self.result


def test_a_stack_cut_anywhere_and_step_by_step() -> None:
    model, x = stack(), sequence(12)
    whole, _ = model(x)
    for cut in (1, 5, 11):
        first, state = model(x[:, :cut])
        second, _ = model(x[:, cut:], state)
        assert relative_error(torch.cat([first, second], dim=1), whole) < 1e-9
    state = None
    for t in range(12):
        y, state = model(x[:, t : t + 1], state)
        assert relative_error(y[:, 0], whole[:, t]) < 1e-9


def test_a_stack_with_padding() -> None:
    model, x = stack(), sequence(7, batch=4)
    mask = torch.tensor(
        [[a <= t < b for t in range(7)] for a, b in ((0, 7), (2, 5), (4, 7), (0, 1))]
    )
    y, _ = model(x, mask=mask)
    for row, real in enumerate(mask):
        assert relative_error(y[row : row + 1, real], model(x[row : row + 1, real])[0]) < 1e-9


def test_gradients_reach_the_first_layer_through_its_values() -> None:
    model, x = stack(), sequence(5)
    y, _ = model(x)
    y.sin().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_a_value_residual_without_values_is_refused() -> None:
    layer = build("RWKV7", value_rank=3)
    with pytest.raises(ValueError, match="put an RWKV7 without value_rank before it"):
        layer(sequence(3))
