"""RWKV-7 as published, written out with the state as its paper has it, [value, key]."""

import torch
from torch.nn.functional import normalize, sigmoid

from statetrack.layers import RWKV7
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
