"""Kimi Delta Attention against its recurrence written out, and what its gates do."""

import math

import pytest
import torch
from torch.nn.functional import normalize, sigmoid, silu, softplus

from statetrack.layers import KDA
from tests.helpers import relative_error
from tests.layers.cases import build, sequence


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_layer_written_out(low: float) -> None:
    """Convolution, gates, recurrence, norm and output gate, token by token."""
    layer, x = build("KDA", eigen_range=(low, 1.0)), sequence(9)
    y, state = layer(x)
    batch, time, _ = x.shape
    heads, key, value = layer.num_heads, layer.head_dim, layer.value_dim
    qkv = layer.qkv_proj(x)
    padded = torch.cat([torch.zeros_like(qkv[:, :3]), qkv], dim=1)
    mixed = sum(padded[:, i : i + time] * layer.conv.weight[:, i] for i in range(4))
    sizes = [heads * key, heads * key, heads * value]
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in silu(mixed).split(sizes, dim=-1))
    q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    beta = (1 - low) * sigmoid(layer.beta_proj(x))
    step = softplus(layer.decay_up(layer.decay_down(x)) + layer.dt_bias)
    decay = torch.exp(-layer.A_log.exp()[:, None] * step.unflatten(-1, (heads, key)))
    gate = sigmoid(layer.gate_up(layer.gate_down(x)))
    h = x.new_zeros(batch, heads, key, value)
    outputs = []
    for t in range(time):
        h = decay[:, t, :, :, None] * h
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", h, k[:, t])
        h = h + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", h, q[:, t]) / math.sqrt(key))
    read = torch.stack(outputs, dim=1)
    read = read * torch.rsqrt(read.square().mean(-1, keepdim=True) + 1e-5) * layer.norm.weight
    assert relative_error(y, layer.out_proj(read.flatten(-2) * gate)) < 1e-12
    assert relative_error(state["recurrent"], h) < 1e-12


def test_sizes() -> None:
    layer = KDA(32, 2, head_dim=8, value_dim=4)
    assert layer.gate_rank == 4 and layer.dt_bias.shape == (16,) and layer.A_log.shape == (2,)
    assert layer.decay_up.weight.shape == (16, 4) and layer.gate_up.bias.shape == (8,)
    assert KDA(32, 2, conv_size=0).state_keys == ("recurrent",)


def test_gates_of_one_leave_a_reflection() -> None:
    """a = 1 and β = 2 for every token: the eigenvalues are -1 once and 1 otherwise."""
    layer = build("KDA")
    with torch.no_grad():
        layer.A_log.fill_(-60.0)
        layer.beta_proj.weight.fill_(100.0)
    x = sequence(5).abs()
    ends = layer.transitions(x).eigenvalues().sort(-1).values
    wanted = torch.ones_like(ends)
    wanted[..., 0] = -1.0
    assert torch.allclose(ends, wanted)
