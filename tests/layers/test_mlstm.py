"""The block-diagonal projections, and half precision."""

import copy

import torch
from torch import Tensor

from statetrack.layers.mlstm import MLSTM, with_zeros
from tests.helpers import relative_error


def test_one_product_with_all_the_zeros() -> None:
    """What a GPU takes for mLSTM's block-diagonal projections."""
    weight = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    dense = with_zeros(weight)
    assert torch.equal(dense, torch.block_diag(*weight))
    (grad,) = torch.autograd.grad((dense * torch.arange(36.0).view(6, 6)).sum(), weight)
    assert torch.equal(grad[1], torch.tensor([[14.0, 15.0], [20.0, 21.0]]))


def test_half_precision_is_near() -> None:
    """bf16 autocast against float64: errors of bfloat16 products, and no larger ones."""
    g = torch.Generator().manual_seed(0)
    layer = MLSTM(64, 2)
    layer.reset_parameters(g)
    with torch.no_grad():
        for gate in (layer.input_gate, layer.forget_gate):
            gate.weight.normal_(0, 0.05, generator=g)
    x, dy = (torch.randn(8, 40, 64, generator=g) for _ in range(2))

    def results(layer: MLSTM, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
        x = x.clone().requires_grad_()
        y = layer(x)[0]
        names, parameters = zip(*layer.named_parameters(), strict=True)
        grads = torch.autograd.grad(y, [x, *parameters], dy.to(y.dtype))
        found = {"y": y} | dict(zip(("x", *names), grads, strict=True))
        for gate in ("input_gate", "forget_gate"):  # of a bias alone too much cancels
            weight, bias = found.pop(f"{gate}.weight"), found.pop(f"{gate}.bias")
            found[gate] = torch.cat([weight, bias[:, None]], dim=1)
        return found

    exact = results(copy.deepcopy(layer).double(), x.double(), dy.double())
    with torch.autocast("cpu", torch.bfloat16):
        found = results(layer, x, dy)
    for name, want in exact.items():
        assert relative_error(found[name], want) < 0.02, name
