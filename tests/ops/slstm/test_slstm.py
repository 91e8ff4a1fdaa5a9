"""The sLSTM at its edges: empty states, large gates, any size."""

import pytest
import torch

from statetrack import ops
from tests.helpers import relative_error
from tests.ops.cases import cpu_backends, generator

DOUBLE = torch.float64
each_backend = pytest.mark.parametrize("backend", cpu_backends("slstm_scan"))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_empty_state_gives_no_nan(backend: str, dtype: torch.dtype) -> None:
    """m = -∞ at the start, in the forward and in every gradient, given or not."""
    g = generator()
    gates = torch.randn(2, 7, 4, 2, 5, generator=g, dtype=dtype).requires_grad_()
    R = (0.3 * torch.randn(4, 2, 5, 5, generator=g, dtype=dtype)).requires_grad_()
    start = torch.zeros(2, 4, 2, 5, dtype=dtype)
    start[:, 2] = -torch.inf
    start.requires_grad_()
    implicit, state = ops.slstm_scan(gates, R, backend=backend)
    explicit, _ = ops.slstm_scan(gates, R, start, backend=backend)
    assert torch.equal(implicit, explicit)
    grads = torch.autograd.grad(explicit.sum(), [gates, R, start])
    assert all(x.isfinite().all() for x in (explicit, state, *grads))
    assert (grads[2][:, 2] == 0).all()


@each_backend
def test_large_gates_do_not_overflow(backend: str) -> None:
    """Input gates of ±200 would overflow e^ĩ; the stabiliser keeps float32 right."""
    g = generator()
    gates = 200 * torch.randn(2, 30, 4, 2, 4, generator=g)
    R = 0.3 * torch.randn(4, 2, 4, 4, generator=g)
    got, _ = ops.slstm_scan(gates, R, backend=backend)
    want, _ = ops.slstm_scan(gates.double(), R.double(), backend="reference")
    assert relative_error(got, want) < 1e-4


@each_backend
@pytest.mark.parametrize(("batch", "dim"), [(1, 1), (9, 6), (17, 16)])
def test_any_batch_and_dim(backend: str, batch: int, dim: int) -> None:
    """Kernels take several rows and four columns at a time; the last ones may be fewer."""
    g = generator()
    gates = torch.randn(batch, 11, 4, 2, dim, generator=g, dtype=DOUBLE).requires_grad_()
    R = (torch.randn(4, 2, dim, dim, generator=g, dtype=DOUBLE) / dim).requires_grad_()
    results = []
    for which in (backend, "reference"):
        h, state = ops.slstm_scan(gates, R, backend=which)
        loss = h.sin().sum() + state[:, [0, 1, 3]].sum()
        results.append([h, state, *torch.autograd.grad(loss, [gates, R])])
    for got, want in zip(*results, strict=True):
        assert relative_error(got, want) < 1e-10
