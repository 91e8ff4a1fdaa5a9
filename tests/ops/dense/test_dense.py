"""The matrix scan at its edges: exact permutations, small and large matrices."""

import pytest
import torch

from statetrack import ops
from tests.helpers import relative_error
from tests.ops.cases import cpu_backends, generator

DOUBLE = torch.float64
each_backend = pytest.mark.parametrize("backend", cpu_backends("matrix_scan"))


@each_backend
@pytest.mark.parametrize("n", [5, 17])
def test_permutations_stay_permutations_for_10_000_tokens(backend: str, n: int) -> None:
    g = generator()
    order = torch.stack([torch.randperm(n, generator=g) for _ in range(10_000)])
    A = torch.eye(n)[order][None]
    states, final = ops.matrix_scan(A, torch.arange(float(n))[None, :, None], backend=backend)
    expected = torch.arange(n)
    for t in range(10_000):
        expected = expected[order[t]]
        if t % 500 == 0:
            assert torch.equal(states[0, t, :, 0], expected.float())
    assert torch.equal(final[0, :, 0], expected.float())


@each_backend
@pytest.mark.parametrize("n", [3, 16, 17, 40])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_small_and_large_matrices(backend: str, n: int, with_inputs: bool) -> None:
    """Small ones go by products of transitions, large ones step by step: one answer."""
    g = generator()
    A = torch.linalg.qr(torch.randn(2, 30, n, n, generator=g, dtype=DOUBLE)).Q
    start = torch.randn(2, n, 2, generator=g, dtype=DOUBLE)
    inputs = torch.randn(2, 30, n, 2, generator=g, dtype=DOUBLE) if with_inputs else None
    leaves = [x.requires_grad_() for x in (A, start, inputs) if x is not None]
    results = []
    for which in (backend, "reference"):
        states, final = ops.matrix_scan(*leaves, backend=which)
        loss = states.sin().sum() + (final * final).sum()
        results.append([states, final, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*results, strict=True):
        assert relative_error(got, want) < 1e-11
