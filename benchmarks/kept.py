"""What a compiled block keeps for its backward pass, counted on any machine without running it.

    PYTHONPATH=src python benchmarks/kept.py [--only DeltaNet] [--plain] [--all]

The blocks are those of benchmarks/lm.py, traced with the GPU's ops and cut into a forward and a
backward graph as `Backbone.compile_blocks` has it done; --plain counts torch.compile's own cut.
The sum for a model adds 12 bytes a parameter for weights and AdamW's state; gradients come while
what is kept goes. PyTorch's fused attention is that of a CPU, which keeps what a GPU's does.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # Triton's ops can be traced on a CPU

import argparse
import dataclasses
import operator
from typing import Any

import lm
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from statetrack.ops import _dispatch

SAME = ("view", "alias", "permute", "unsqueeze", "squeeze", "t", "expand", "clone", "slice")
STATE_BYTES = 12  # of a parameter: fp32 weight, two moments


class CountedError(Exception):
    """The graph is known; nothing need run."""


def memory(node: Any) -> Any:
    """The node that made its memory."""
    while node.op == "call_function":
        part = node.target is operator.getitem and "split" in str(node.args[0].target)
        if not part and node.target.__name__.split(".")[0] not in SAME:
            return node
        node = node.args[0].args[0] if part else node.args[0]
    return node


def kind(node: Any) -> str:
    source = memory(node)
    if source.op == "placeholder":
        return "input"
    if source.target is operator.getitem:
        source = source.args[0]
    name = str(source.target).removeprefix("aten.")
    if name.startswith("statetrack"):
        return name.split(".")[1].replace("_triton", "")
    return "product" if name.startswith(("mm", "addmm")) else name.split(".")[0]


def kept_by_block(
    model: lm.Model, batch: int, length: int, *, plain: bool
) -> tuple[list[tuple[str, str, torch.dtype, tuple[int, ...], float]], int]:
    """(kind, name, dtype, shape, MiB) of every tensor kept, and the parameters of a block."""
    found: list[tuple[str, str, torch.dtype, tuple[int, ...], float]] = []
    asked: dict[str, Any] = {}

    def forward(graph: Any, inputs: list[Any]) -> Any:
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        seen = set()
        for node in outputs[asked["results"] :]:
            value = node.meta["val"] if hasattr(node, "meta") else None
            if not isinstance(value, torch.Tensor):
                continue
            source = memory(node)
            if source.name in asked["parameters"] or source.name in seen:
                continue
            seen.add(source.name)
            value = source.meta["val"]
            size = value.numel() * value.element_size() / 2**20
            found.append((kind(node), source.name, value.dtype, tuple(value.shape), size))
        raise CountedError

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        asked["results"] = options["num_fwd_outputs"]
        asked["parameters"] = {
            node.name
            for node in joint.graph.nodes
            if node.op == "placeholder" and node.meta["val"].shape[:2] != (batch, length)
        }
        return min_cut_rematerialization_partition(joint, inputs, **options)

    one = dataclasses.replace(model, layers=1, attention_every=0)
    block = lm.build_ours(one, 256, torch.float32, "cpu").backbone.blocks[0]
    backend = aot_autograd(
        fw_compiler=forward, partition_fn=partition, decompositions=select_decomp_table()
    )
    x = torch.zeros(batch, length, model.d_model, requires_grad=True)
    torch.compiler.reset()
    try:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            config.patch(ban_recompute_materialized_backward=plain),
        ):
            torch.compile(block, backend=backend, fullgraph=True)(x)
    except Exception:
        if not found:
            raise
    return found, sum(parameter.numel() for parameter in block.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="substring of the model's name")
    parser.add_argument("--plain", action="store_true", help="torch.compile's own choice")
    parser.add_argument("--all", action="store_true", help="every tensor")
    args = parser.parse_args()
    _dispatch.explain_backend = lambda *_, **__: _dispatch.BackendChoice("triton", "counted")
    cells = [cell for cell in lm.cells() if cell.phase == "train" and cell.who == "ours"]
    for cell in cells:
        if args.only not in cell.work or cell.model.attention_every:
            continue
        kept, size = kept_by_block(cell.model, cell.batch, cell.length, plain=args.plain)
        block = sum(mib for *_, mib in kept)
        total = cell.model.layers * block / 1024
        states = STATE_BYTES * (cell.model.layers * size + 2 * lm.VOCAB * cell.model.d_model)
        print(
            f"{cell.work}: {block:.0f} MiB a block, {total:.1f} GiB in all, "
            f"{total + states / 2**30:.1f} GiB with weights and AdamW"
        )
        kinds: dict[str, float] = {}
        for what, name, dtype, shape, mib in kept:
            kinds[what] = kinds.get(what, 0) + mib
            if args.all and mib >= 0.5:
                print(f"  {mib:8.1f}  {what:24} {name:14} {str(dtype)[6:]:9} {shape}")
        for what, mib in sorted(kinds.items(), key=lambda one: -one[1]):
            if mib >= 0.5:
                print(f"  {mib:8.1f} MiB {what}")


if __name__ == "__main__":
    main()
