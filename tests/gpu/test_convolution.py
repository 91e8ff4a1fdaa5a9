"""The short convolution on a real GPU: several channel blocks and segments of time."""

import pytest
import torch

from tests.gpu.test_kernels import expect_match
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
    from statetrack import ops

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
