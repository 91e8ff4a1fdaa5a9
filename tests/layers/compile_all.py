"""Compiles every layer, or those named, into one graph, and compares it with eager.

Once for rows of one sequence, and where a layer packs, for packed sequences.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from statetrack import ops
from statetrack._amx import avoid_amx_trap
from tests.layers.cases import SIZES, build, sequence

avoid_amx_trap()

for name in sys.argv[1:] or SIZES:
    torch._dynamo.reset()
    layer, x = build(name), sequence(6)
    parameters = list(layer.parameters())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    packing = ops.Packing(torch.tensor([[0, 2, 2, 6], [0, 1, 5, 6]]), 4)
    for given in [None, packing] if layer.packs else [None]:
        y, got = (f(x, cu_seqlens=given)[0] for f in (layer, compiled))
        assert torch.allclose(y, got), name
        expected = torch.autograd.grad(y.square().sum(), parameters)
        for want, grad in zip(
            expected, torch.autograd.grad(got.square().sum(), parameters), strict=True
        ):
            assert torch.allclose(want, grad, atol=1e-9), name
    print(f"{name}: one graph")
