"""The selective scan at its edges: the map from Δ to a, exact signs, memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.helpers import relative_error
from tests.ops.cases import cpu_backends, expect_exact_ends, generator, selective_inputs

DOUBLE = torch.float64
each_backend = pytest.mark.parametrize("backend", cpu_backends("selective_scan"))


def saved_tensors(run: Callable[[], object]) -> list[Tensor]:
    """What autograd keeps for the backward while `run` runs."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return kept


def scan_loss(inputs: dict[str, Tensor], weight: Tensor, backend: str) -> Tensor:
    y, _ = ops.selective_scan(**inputs, low=-1.0, backend=backend)
    return (y * weight).sum()


def shortcut_grad_A(inputs: dict[str, Tensor], weight: Tensor) -> Tensor:
    """dA as unsigned Mamba may compute it: exp(Δ A) h_{t-1} read off as h_t - Δ_t u_t B_t."""
    delta, u, A, B, C = (inputs[name] for name in ("delta", "u", "A", "B", "C"))
    a = 2 * torch.exp(delta[..., None] * A) - 1
    written = (delta * u)[..., None] * B[:, :, None, :]
    h, _ = ops.diagonal_scan(a, written, backend="reference")
    g, grad = torch.zeros_like(h[:, 0]), torch.zeros_like(A)
    for t in reversed(range(h.shape[1])):
        g = g + weight[:, t, :, None] * C[:, t, None, :]
        grad += (g * delta[:, t, :, None] * 2 * (h[:, t] - written[:, t])).sum(0)
        g = a[:, t] * g
    return grad


@each_backend
def test_grad_of_A_by_finite_differences_and_not_the_shortcut(backend: str) -> None:
    inputs = selective_inputs(2, 12, 3, 2)
    weight = torch.randn(2, 12, 3, generator=generator(1), dtype=DOUBLE)
    A = inputs["A"].clone().requires_grad_()
    (grad,) = torch.autograd.grad(scan_loss(inputs | {"A": A}, weight, backend), A)

    expected = torch.empty_like(grad)
    for index in torch.cartesian_prod(torch.arange(3), torch.arange(2)):
        step = torch.zeros_like(grad)
        step[tuple(index)] = 1e-6
        above = scan_loss(inputs | {"A": inputs["A"] + step}, weight, "reference")
        below = scan_loss(inputs | {"A": inputs["A"] - step}, weight, "reference")
        expected[tuple(index)] = (above - below) / 2e-6

    assert relative_error(grad, expected) < 1e-7
    assert relative_error(shortcut_grad_A(inputs, weight), expected) > 0.1


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_ends_of_the_range_are_exact(backend: str, low: float, dtype: torch.dtype) -> None:
    expect_exact_ends(backend, low, dtype)


@each_backend
def test_signs_flip_exactly_for_10_000_tokens(backend: str) -> None:
    """Parity by Δ: a = -1 for a one, a = 1 for a zero."""
    bits = torch.randint(2, (2, 10_000, 1), generator=generator())
    delta = bits * 1e4
    ones, nothing = torch.ones(2, 10_000, 1), torch.zeros(2, 10_000, 1)
    y, _ = ops.selective_scan(
        nothing,
        delta,
        -torch.ones(1, 1),
        ones,
        ones,
        low=-1.0,
        initial_state=torch.ones(2, 1, 1),
        backend=backend,
    )
    assert torch.equal(y, 1.0 - 2 * (bits.cumsum(1) % 2))


@each_backend
def test_small_delta_in_float32_keeps_its_digits(backend: str) -> None:
    """exp near 0 and over its whole range is as good as float32 allows."""
    delta = torch.logspace(-6, 2, 2001)[None, None]
    channels = delta.shape[2]
    A = -torch.ones(channels, 1)
    one = torch.ones(1, 1, 1)
    start = torch.ones(1, channels, 1)
    u = torch.zeros_like(delta)
    _, final = ops.selective_scan(
        u, delta, A, one, one, low=0.0, initial_state=start, backend=backend
    )
    exact = torch.exp(-delta.double())[0, 0]
    normal = exact > torch.finfo(torch.float32).tiny
    error = (final[0, :, 0].double() - exact).abs() / exact
    assert error[normal].max() < 2.5e-7
    assert (final[0, ~normal, 0].double() - exact[~normal]).abs().max() < 1.2e-38


@each_backend
def test_without_D(backend: str) -> None:
    inputs = selective_inputs(2, 40, 5, 3)
    del inputs["D"]
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    y, _ = ops.selective_scan(**leaves, backend=backend)
    want, _ = ops.selective_scan(**leaves, backend="reference")
    assert relative_error(y, want) < 1e-12
    names = list(leaves)
    got = torch.autograd.grad(y.cos().sum(), [leaves[n] for n in names])
    exact = torch.autograd.grad(want.cos().sum(), [leaves[n] for n in names])
    for name, a, b in zip(names, got, exact, strict=True):
        assert relative_error(a, b) < 1e-10, name


@each_backend
@pytest.mark.parametrize("channels", [1, 63, 64, 65, 130])
def test_any_number_of_channels(backend: str, channels: int) -> None:
    """Kernels cut the channels into pieces; the last may be ragged."""
    inputs = selective_inputs(3, 35, channels, 2)
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    names = list(leaves)
    results = []
    for which in (backend, "reference"):
        y, state = ops.selective_scan(**leaves, low=-0.5, backend=which)
        grads = torch.autograd.grad(y.sin().sum() + state.sum(), [leaves[n] for n in names])
        results.append([y, state, *grads])
    for name, got, want in zip(["y", "state", *names], *results, strict=True):
        assert relative_error(got, want) < 1e-10, name


@pytest.mark.parametrize("backend", cpu_backends("selective_scan")[1:])
def test_saved_memory_is_linear_and_without_the_state_axis(backend: str) -> None:
    batch, channels, state = 2, 8, 16

    def saved(time: int) -> list[Tensor]:
        inputs = selective_inputs(batch, time, channels, state, torch.float32)
        leaves = {name: x.requires_grad_() for name, x in inputs.items()}
        kept = saved_tensors(lambda: ops.selective_scan(**leaves, backend=backend))
        assert kept
        assert max(x.numel() for x in kept) < batch * time * channels * state
        return kept

    short, long = (sum(x.numel() for x in saved(time)) for time in (512, 1024))
    assert 1.9 < long / short < 2.1
