"""Groups of heads that share B and C."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from statetrack.layers import Mamba2
from tests.helpers import relative_error
from tests.layers.cases import build, sequence


def by_hand(layer: Mamba2, x: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence, token by token and head by head, without a convolution."""
    heads, groups, size, dim = layer.num_heads, layer.num_groups, layer.d_state, layer.head_dim
    state = torch.zeros(heads, size, dim, dtype=x.dtype)
    outputs = []
    for x_t in x:
        z, u, B, C, step = layer.in_proj(x_t).split(
            [layer.d_inner, layer.d_inner, groups * size, groups * size, heads]
        )
        u, B, C = (silu(part).view(-1, width) for part, width in ((u, dim), (B, size), (C, size)))
        row = []
        for head in range(heads):
            group = head * groups // heads
            delta = softplus(step[head] + layer.dt_bias[head])
            unit = torch.exp(-delta * layer.A_log[head].exp())
            low = layer.eigen_range.low
            decay = low + (1 - low) * unit
            state[head] = decay * state[head] + torch.outer(B[group], delta * u[head])
            row.append(C[group] @ state[head] + layer.D[head] * u[head])
        y = torch.cat(row) * silu(z)
        parts = y.view(groups if layer.norm_by_group else 1, -1)
        scale = (parts.square().mean(-1, keepdim=True) + layer.norm.eps).rsqrt()
        outputs.append(layer.out_proj((parts * scale).flatten() * layer.norm.weight))
    return torch.stack(outputs), state


@pytest.mark.parametrize("num_groups", [1, 2, 4])
@pytest.mark.parametrize("norm_by_group", [True, False])
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_papers_equations(num_groups: int, norm_by_group: bool, low: float) -> None:
    layer = build(
        "Mamba2",
        num_groups=num_groups,
        norm_by_group=norm_by_group,
        conv_size=0,
        eigen_range=(low, 1.0),
    )
    assert isinstance(layer, Mamba2)
    x = sequence(7)
    with torch.no_grad():
        y, state = layer(x)
        for row in range(2):
            want, end = by_hand(layer, x[row])
            assert relative_error(y[row], want) < 1e-12
            assert relative_error(state["recurrent"][row], end) < 1e-12


def test_one_group_has_one_norm_however_it_is_asked_for() -> None:
    x = sequence(5)
    apart, together = (
        build("Mamba2", num_groups=1, norm_by_group=flag)(x)[0] for flag in (True, False)
    )
    assert torch.equal(apart, together)


@pytest.mark.parametrize("num_groups", [0, 3])
def test_groups_must_divide_the_heads(num_groups: int) -> None:
    with pytest.raises(ValueError, match=f"num_groups={num_groups} must divide the number of h"):
        build("Mamba2", num_groups=num_groups)


def test_printed() -> None:
    text = repr(build("Mamba2"))
    assert "num_groups=2" in text and "norm_by_group=True" in text
    assert "RMSNorm(32, eps=1e-05, groups=2)" in text
