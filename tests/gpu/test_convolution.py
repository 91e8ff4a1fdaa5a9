"""The short convolution on a real GPU: several channel blocks and segments of time."""

from functools import partial

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.gpu.test_kernels import expect_match
from tests.helpers import relative_error
from tests.ops.cases import Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("time", [2, 300])
@pytest.mark.parametrize("channels", [40, 384])
def test_every_width(channels: int, time: int, width: int, dtype: torch.dtype) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    made = {
        "x": draw(2, time, channels).to(dtype),
        "weight": draw(channels, width),
        "bias": draw(channels),
    }
    if width > 1:
        made["initial_state"] = draw(2, width - 1, channels)
    case = Case("short_convolution", lambda t, g: made, ("x",), {"activation": "silu"})
    expect_match(case, made, 2e-5 if dtype == torch.float32 else 1e-2)


def test_runs_of_a_stack_keep_their_own_weights() -> None:
    """vmap over runs: every run has its own filter, in the forward pass and in the gradients."""
    g = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(3, 5, 40, 96, generator=g, device="cuda")
    weight = torch.randn(3, 96, 4, generator=g, device="cuda", requires_grad=True)
    bias = torch.randn(3, 96, generator=g, device="cuda", requires_grad=True)

    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return ops.short_convolution(x, weight, bias, activation="silu", backend="triton")[0]

    stacked = torch.vmap(run)(x, weight, bias)
    grads = torch.autograd.grad(stacked.square().sum(), (weight, bias))
    for i in range(3):
        alone = run(x[i], weight[i], bias[i])
        expected = torch.autograd.grad(alone.square().sum(), (weight, bias))
        assert torch.equal(stacked[i], alone)
        for got, want in zip(grads, expected, strict=True):
            assert torch.allclose(got[i], want[i], rtol=1e-5, atol=1e-4)


TIME, CHANNELS, PIECES = 22_016, 384, 1024


def training_rows(rows: int, dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor]:
    """Rows of sequences of 3 to 40 tokens and then of padding, in pieces of 40 and of 0 tokens."""
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    ends = torch.randint(3, 41, (rows, PIECES), generator=g, device="cuda").cumsum(1)
    padding = ends[:, -1:] + 40 * torch.arange(1, TIME // 40, device="cuda")
    offsets = torch.cat([ends.new_zeros(rows, 1), ends, padding], dim=1).clamp(max=TIME)
    offsets[:, -1] = TIME
    inputs = {"x": draw(rows, TIME, CHANNELS).to(dtype), "weight": draw(CHANNELS, 4)}
    return inputs | {"bias": draw(CHANNELS)}, offsets


def in_a_row(
    inputs: dict[str, Tensor], offsets: Tensor, backend: ops.Backend, use_states: bool = True
) -> dict[str, Tensor]:
    """Outputs and gradients by name."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    packing = ops.Packing(offsets, 40)
    y, states = ops.short_convolution(
        **leaves, activation="silu", cu_seqlens=packing, backend=backend
    )
    loss = y.double().square().sum() + (states.double().sin().sum() if use_states else 0)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {"y": y.detach(), "states": states.detach()} | named


@pytest.mark.parametrize("use_states", [False, True], ids=["y", "y and states"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_row_of_a_training_step(dtype: torch.dtype, use_states: bool) -> None:
    inputs, offsets = training_rows(1, dtype)
    got = in_a_row(inputs, offsets, "triton", use_states)
    exact = {name: x.double() for name, x in inputs.items()}
    for name, want in in_a_row(exact, offsets, "reference", use_states).items():
        assert relative_error(got[name], want) < (2e-5 if dtype == torch.float32 else 1e-2), name


def test_rows_of_a_training_step_are_as_if_alone() -> None:
    """Twelve rows go in longer segments than one; their parts of the weights' gradients add up."""
    inputs, offsets = training_rows(12, torch.float32)
    together = in_a_row(inputs, offsets, "triton")
    alone = [
        in_a_row(inputs | {"x": inputs["x"][b : b + 1]}, offsets[b : b + 1], "triton")
        for b in range(12)
    ]
    for name, got in together.items():
        each = [results[name] for results in alone]
        want = sum(each) if name in ("dweight", "dbias") else torch.cat(each)
        assert relative_error(got, want) < 1e-5, name


def test_parts_are_those_of_the_whole() -> None:
    """q, k and v of a training step, each a tensor of its own, with gradients of their own."""
    inputs, offsets = training_rows(2, torch.bfloat16)
    packing, sizes = ops.Packing(offsets, 40), (128, 128, 128)
    found = []
    for cut in (False, True):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        options = {"activation": "silu", "cu_seqlens": packing, "backend": "triton"}
        if cut:
            parts, states = ops.short_convolution(**leaves, sizes=sizes, **options)
            assert all(part.is_contiguous() for part in parts)
        else:
            y, states = ops.short_convolution(**leaves, **options)
            parts = y.split(sizes, dim=-1)
        loss = sum(part.float().sin().sum() for part in parts)
        found.append((*parts, states, *torch.autograd.grad(loss, list(leaves.values()))))
    for got, want in zip(*found, strict=True):
        assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_parts_of_wider_rows(dtype: torch.dtype) -> None:
    """As Mamba2's projection leaves them: taken as they lie, with the same bits."""
    generator = torch.Generator("cuda").manual_seed(0)
    draw = partial(torch.randn, device="cuda", generator=generator)
    wide = draw(2, 300, 400).to(dtype).requires_grad_()
    weight = draw(144, 4).requires_grad_()
    part = wide[..., 128:272]
    found = []
    for x in (part, part.contiguous()):
        y, state = ops.short_convolution(x, weight, activation="silu", backend="triton")
        grads = torch.autograd.grad(y.float().sin().sum() + state.sum(), (wide, weight))
        found.append((y, state, *grads))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
