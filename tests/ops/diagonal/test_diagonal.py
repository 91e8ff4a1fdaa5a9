"""The diagonal scan at its edges: exact signs, zeros, any number of axes."""

import pytest
import torch

from statetrack import ops
from tests.helpers import relative_error
from tests.ops.cases import cpu_backends, generator

DOUBLE = torch.float64
each_backend = pytest.mark.parametrize("backend", cpu_backends("diagonal_scan"))


@each_backend
def test_gradients_on_the_unit_circle(backend: str) -> None:
    """A complex decay needs the conjugate in the backward; real tests cannot see it."""
    g = generator()
    angle = 6.3 * torch.rand(2, 9, 1, generator=g, dtype=DOUBLE)
    decay = torch.polar(torch.ones_like(angle), angle).requires_grad_()
    inputs = torch.randn(2, 9, 1, generator=g, dtype=torch.complex128).requires_grad_()
    start = torch.randn(2, 1, generator=g, dtype=torch.complex128).requires_grad_()
    run = lambda *args: ops.diagonal_scan(*args, backend=backend)  # noqa: E731
    assert torch.autograd.gradcheck(run, (decay, inputs, start))


@each_backend
def test_parity_is_exact_over_100_000_tokens(backend: str) -> None:
    bits = torch.randint(2, (2, 100_000), generator=generator())
    decay = (1 - 2 * bits).float()
    states, final = ops.diagonal_scan(
        decay, torch.zeros_like(decay), torch.ones(2), backend=backend
    )
    parity = bits.cumsum(1) % 2
    assert torch.equal(states, (1 - 2 * parity).float())
    assert torch.equal(final, states[:, -1])


@each_backend
def test_a_zero_forgets_everything_before_it(backend: str) -> None:
    g = generator()
    decay = torch.randn(1, 50, 4, generator=g).clamp(-1, 1)
    decay[:, 30] = 0
    inputs = torch.randn(1, 50, 4, generator=g)
    states, _ = ops.diagonal_scan(decay, inputs, torch.full((1, 4), 1e30), backend=backend)
    fresh, _ = ops.diagonal_scan(decay[:, 30:], inputs[:, 30:], backend=backend)
    assert torch.equal(states[:, 30], inputs[:, 30])
    assert relative_error(states[:, 30:], fresh) < 1e-6


@each_backend
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_any_number_of_channel_axes(backend: str, shape: tuple[int, ...]) -> None:
    g = generator()
    decay = torch.rand(2, 17, *shape, generator=g, dtype=DOUBLE) * 2 - 1
    inputs = torch.randn(2, 17, *shape, generator=g, dtype=DOUBLE)
    got, _ = ops.diagonal_scan(decay, inputs, backend=backend)
    want, _ = ops.diagonal_scan(decay, inputs, backend="reference")
    assert got.shape == inputs.shape and relative_error(got, want) < 1e-12
