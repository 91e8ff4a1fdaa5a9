"""A state that grows or shrinks beyond what floats can hold."""

import pytest
import torch

from statetrack.layers import FullMatrix
from tests.helpers import relative_error


@pytest.mark.parametrize("factor", [50.0, 0.05])
def test_a_full_matrix_state_beyond_floats_keeps_its_meaning(factor: float) -> None:
    g = torch.Generator().manual_seed(0)
    layer = FullMatrix(4, eigen_range=None, state_dim=3)
    x = torch.eye(4)[torch.randint(4, (2, 150), generator=g)]  # A(x) is one of four matrices
    turns = torch.linalg.qr(torch.randn(4, 3, 3, generator=g))[0]
    with torch.no_grad():
        layer.matrix_proj.weight.copy_((factor * turns - torch.eye(3)).flatten(1).T)
    y, _ = layer(x)

    weight = layer.matrix_proj.weight.detach().double().requires_grad_()
    h = torch.eye(3, dtype=torch.float64).expand(2, -1, -1)
    rows = []
    for A in (torch.eye(3) + (x.double() @ weight.T).unflatten(-1, (3, 3))).unbind(1):
        h = A @ h
        h = h / h.flatten(1).norm(dim=-1)[:, None, None]
        rows.append(h.flatten(1))
    want = torch.stack(rows, dim=1) @ layer.out_proj.weight.double().T
    assert relative_error(y, want) < 1e-4

    head, state = layer(x[:, :70])
    tail, _ = layer(x[:, 70:], state)
    assert relative_error(torch.cat([head, tail], dim=1), want) < 1e-4
    dy = torch.randn(y.shape, generator=g)
    (got,) = torch.autograd.grad(y, layer.matrix_proj.weight, dy)
    assert relative_error(got, torch.autograd.grad(want, weight, dy.double())[0]) < 1e-4
