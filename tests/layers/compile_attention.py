"""Compiles attention, alone and mapped over runs, and says whether it is one fused op."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from statetrack._amx import avoid_amx_trap
from tests.layers.cases import build, sequence

avoid_amx_trap()


def ops_of(function: Callable[[Tensor], Tensor], x: Tensor) -> set[str]:
    """The ops that a function is compiled to; its results are those of eager mode."""
    found: set[str] = set()

    def collected(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.update(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=collected)
    y = torch.compile(function, backend=backend, fullgraph=True)(x)
    assert torch.allclose(y, function(x), atol=1e-6)
    return found


layer = build("Attention").float()
x = torch.stack([sequence(9), sequence(9, seed=3)]).float()
cases = {"alone": lambda x: layer(x[0])[0], "mapped": torch.vmap(lambda one: layer(one)[0])}
for name, function in cases.items():
    found = ops_of(function, x)
    fused = any("scaled_dot_product" in op for op in found)
    assert fused != any("softmax" in op for op in found)
    print(f"{name}: {'fused' if fused else 'written out'}")
