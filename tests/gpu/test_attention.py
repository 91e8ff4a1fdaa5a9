"""Attention on a real GPU: packed sequences, windows, memory, and a step as a CUDA graph."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from statetrack import ops
from statetrack.layers import Attention, attention
from tests.helpers import relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ENDS = [0, 300, 300, 301, 340, 700]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 2},
    {"window": 50, "num_kv_heads": 1, "qk_norm": "head", "output_gate": True},
]


def make(dtype: torch.dtype, **options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(64, 4, **options).cuda().to(dtype)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_packed_sequences_are_those_alone(dtype: torch.dtype, options: dict[str, Any]) -> None:
    layer, x = make(dtype, **options), torch.randn(2, 700, 64, device="cuda", dtype=dtype)
    x.requires_grad_()
    assert attention._varlen_takes(x.unflatten(-1, (4, 16))) == (dtype == torch.bfloat16)
    packing = ops.Packing(torch.tensor([ENDS, ENDS], device="cuda"), 360)
    y, state = layer(x, cu_seqlens=packing)
    exact, wide = make(torch.float64, **options), x.detach().double().requires_grad_()
    exact.load_state_dict({name: part.double() for name, part in layer.state_dict().items()})
    spans = [(first, last) for first, last in pairwise(ENDS) if last > first]
    want = torch.cat([exact(wide[:, first:last])[0] for first, last in spans], dim=1)
    assert relative_error(y, want) < TOLERANCE[dtype]
    got = torch.autograd.grad(y.double().cos().sum(), x)[0]
    assert relative_error(got, torch.autograd.grad(want.cos().sum(), wide)[0]) < TOLERANCE[dtype]
    assert state["time"].amax(1).tolist() == [300, 0, 1, 39, 360] * 2


@pytest.mark.parametrize("options", OPTIONS)
def test_no_scores_are_kept(options: dict[str, Any]) -> None:
    """Of 4 heads and 8192 tokens they would be 1 GiB in float32 and half of it in bfloat16."""
    for dtype in TOLERANCE:
        layer, x = make(dtype, **options), torch.randn(1, 8192, 64, device="cuda", dtype=dtype)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer(x.requires_grad_())[0].sum().backward()
        assert torch.cuda.max_memory_allocated() - before < 2**27


@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_a_step_is_a_graph(options: dict[str, Any]) -> None:
    layer, x = make(torch.float32, **options), torch.randn(3, 90, 64, device="cuda")
    whole, _ = layer(x)
    static = layer.with_room(layer(x[:, :40])[1], 90)
    token = x[:, 40].clone()

    def step() -> torch.Tensor:
        y, after = layer.step(token, static)
        for name, part in static.items():
            part.copy_(after[name])
        return y

    kept = static["time"].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer.step(token, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    static["time"].copy_(kept)
    for t in range(40, 90):
        token.copy_(x[:, t])
        graph.replay()
        assert relative_error(y, whole[:, t]) < 1e-5
