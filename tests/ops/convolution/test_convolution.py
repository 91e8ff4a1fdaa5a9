"""Of the short convolution: what the table of cases does not reach.

Triton decides at import whether it interprets, so the tests of its kernels run in a process of
their own, which `test_in_the_interpreter` starts.
"""

import pytest
import torch

from statetrack import ops
from tests.helpers import relative_error, unhooked
from tests.ops.cases import cpu_backends


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("backend", cpu_backends("short_convolution"))
def test_width_one_is_a_product_with_an_empty_state(backend: ops.Backend) -> None:
    x, weight, bias = draw(2, 5, 3), draw(3, 1, seed=1).requires_grad_(), draw(3, seed=2)
    start = x.new_zeros(2, 0, 3)
    y, state = ops.short_convolution(x, weight, bias, initial_state=start, backend=backend)
    assert relative_error(y, x * weight[:, 0] + bias) < 1e-15
    assert state.shape == (2, 0, 3)
    (grad,) = torch.autograd.grad(y.sum(), weight)
    assert relative_error(grad[:, 0], x.sum((0, 1))) < 1e-12


@pytest.mark.parametrize("backend", cpu_backends("short_convolution"))
def test_equals_pytorchs_own(backend: ops.Backend) -> None:
    x, weight, bias = draw(2, 20, 6), draw(6, 4, seed=1), draw(6, seed=2)
    y, state = ops.short_convolution(x, weight, bias, activation="silu", backend=backend)
    z = torch.nn.functional.conv1d(x.mT, weight[:, None], bias, padding=3, groups=6)[..., :20].mT
    assert relative_error(y, torch.nn.functional.silu(z)) < 1e-12
    assert torch.equal(state, x[:, 17:])


@pytest.mark.parametrize("backend", cpu_backends("short_convolution"))
def test_parts_are_those_of_the_whole(backend: ops.Backend) -> None:
    x, weight = draw(2, 5, 6), draw(6, 4, seed=1)
    packing = ops.Packing(torch.tensor([[0, 2, 5], [0, 0, 5]]), 5)
    for cuts in (None, packing):
        whole, state = ops.short_convolution(x, weight, cu_seqlens=cuts, backend=backend)
        parts, same = ops.short_convolution(
            x, weight, cu_seqlens=cuts, sizes=(1, 3, 2), backend=backend
        )
        assert [part.shape[2] for part in parts] == [1, 3, 2]
        assert torch.equal(torch.cat(tuple(parts), dim=2), whole) and torch.equal(same, state)


def test_more_channels_than_a_unit_of_work_has() -> None:
    """In one compiled pass, and in fewer tokens than the window is wide."""
    for channels, time in ((513, 4), (1030, 2)):
        x, weight = draw(2, time, channels), draw(channels, 4, seed=1)
        start = draw(2, 3, channels, seed=2)
        results = []
        for backend in ("reference", "numba"):
            leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, start)]
            y, state = ops.short_convolution(
                *leaves[:2], activation="silu", initial_state=leaves[2], backend=backend
            )
            results.append([y, state, *torch.autograd.grad(y.sin().sum() + state.sum(), leaves)])
        for expected, got in zip(*results, strict=True):
            assert relative_error(got, expected) < 1e-14


def test_an_unknown_activation_and_no_taps_are_refused() -> None:
    function = unhooked(ops.short_convolution)
    with pytest.raises(ValueError, match="activation='relu' is not 'silu' or None"):
        function(draw(1, 2, 3), draw(3, 4), activation="relu")
    with pytest.raises(ValueError, match="width must be at least 1"):
        function(draw(1, 2, 3), draw(3, 0))
    with pytest.raises(ValueError, match=r"sizes=\(1, 1\) must add up to channels = 3"):
        function(draw(1, 2, 3), draw(3, 4), sizes=(1, 1))
