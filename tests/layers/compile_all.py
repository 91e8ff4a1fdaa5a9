"""Compiles every layer, or those named, into one graph, and compares it with eager."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from statetrack._amx import avoid_amx_trap
from tests.layers.cases import SIZES, build, sequence

avoid_amx_trap()

for name in sys.argv[1:] or SIZES:
    torch._dynamo.reset()
    layer, x = build(name), sequence(6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, got = layer(x)[0], compiled(x)[0]
    assert torch.allclose(y, got), name
    parameters = list(layer.parameters())
    expected = torch.autograd.grad(y.square().sum(), parameters)
    for want, grad in zip(
        expected, torch.autograd.grad(got.square().sum(), parameters), strict=True
    ):
        assert torch.allclose(want, grad, atol=1e-9), name
    print(f"{name}: one graph")
