"""Compiled networks for elsewhere: a numpy file with a small runner, or ONNX. No torch is needed.

Both hold the arrays of `arrays_of`, so both are the program itself: exact where it is exact.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from statetrack._extras import needs
from statetrack.compiler import numpy_runner
from statetrack.compiler.arrays import StageArrays, arrays_of
from statetrack.compiler.program import Program

__all__ = ["save_numpy", "save_onnx"]

NETWORK, RUNNER = "network.npz", "run.py"
WORDS, STEP = "network.onnx", "step.onnx"
OPSET = 18
IR_VERSION = 9
"""Of the oldest ONNX that has the opset: newer programs read it too."""


def save_numpy(program: Program, folder: str | Path) -> None:
    """Writes `network.npz`, and beside it `run.py`, which runs it with numpy alone.

    The file holds arrays of numbers and one of text; nothing in it is a pickle.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"about": np.array(json.dumps(_about(program)))}
    for i, stage in enumerate(arrays_of(program)):
        arrays |= {f"{i}.{name}": array for name, array in stage.named().items()}
    np.savez_compressed(folder / NETWORK, **arrays)
    shutil.copyfile(numpy_runner.__file__, folder / RUNNER)


def save_onnx(program: Program, folder: str | Path) -> None:
    """Writes `network.onnx` and `step.onnx`; needs onnx.

    The first reads whole words: `tokens` `[batch, time]` in, the machine's `states` out, and what
    each layer then holds, `held_0`, `held_1`, …. The second goes on from there by one letter:
    `tokens` `[batch]` and `held_0`, … in, `states` and `held_after_0`, … out.
    """
    with needs("an ONNX file", "onnx", "onnx"):
        import onnx
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stages = arrays_of(program)
    tables = [table for i, stage in enumerate(stages) for table in _tables(stage, i, onnx)]
    for name, graph in (
        (WORDS, _words_graph(stages, tables, onnx)),
        (STEP, _letter_graph(stages, "tokens", "held", "held_after", "states", onnx, tables)),
    ):
        opset = onnx.helper.make_opsetid("", OPSET)
        model = onnx.helper.make_model(graph, opset_imports=[opset], producer_name="statetrack")
        model.ir_version = IR_VERSION
        onnx.helper.set_model_props(model, {"about": json.dumps(_about(program))})
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, folder / name)


def _about(program: Program) -> dict[str, Any]:
    machine = program.machine
    return {
        "alphabet": list(machine.alphabet),
        "says": [machine.said(state) for state in range(machine.num_states)],
        "method": program.method,
        "exact": program.exact,
    }


def _words_graph(stages: tuple[StageArrays, ...], tables: list[Any], onnx: Any) -> Any:
    """A Scan over time, whose body is one letter through all layers."""
    helper, kinds, count = onnx.helper, onnx.TensorProto, len(stages)
    nodes = [
        helper.make_node("Shape", ["tokens"], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["batch", "ones"], ["spread"], axis=0),
        *(
            helper.make_node("Expand", [f"start_{i}", "spread"], [f"first_{i}"])
            for i in range(count)
        ),
        helper.make_node(
            "Scan",
            [*(f"first_{i}" for i in range(count)), "tokens"],
            [*(f"held_{i}" for i in range(count)), "states"],
            body=_letter_graph(stages, "token", "before", "now", "state", onnx),
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_output_axes=[1],
        ),
    ]
    starts = [stage.start[None].astype(np.float32) for stage in stages]
    return helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("tokens", kinds.INT64, ["batch", "time"])],
        [
            helper.make_tensor_value_info("states", kinds.INT64, ["batch", "time"]),
            *_held(stages, "held", onnx),
        ],
        [
            *tables,
            *(onnx.numpy_helper.from_array(start, f"start_{i}") for i, start in enumerate(starts)),
            onnx.numpy_helper.from_array(np.ones(2, dtype=np.int64), "ones"),
        ],
    )


def _letter_graph(
    stages: tuple[StageArrays, ...],
    token: str,
    before: str,
    now: str,
    state: str,
    onnx: Any,
    tables: list[Any] | None = None,
) -> Any:
    """One letter of each word through all layers, with the names of what goes in and out.

    As the body of a Scan it takes its tables from the graph around it.
    """
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes: list[Any] = []
    context = token
    for i in range(len(stages)):
        nodes += _layer(i, context, before, now, helper)
        context = f"context_{i}"
    nodes.append(helper.make_node("Identity", [context], [state]))
    return helper.make_graph(
        nodes,
        "letter",
        [
            *_held(stages, before, onnx),
            helper.make_tensor_value_info(token, kinds.INT64, ["batch"]),
        ],
        [*_held(stages, now, onnx), helper.make_tensor_value_info(state, kinds.INT64, ["batch"])],
        tables,
    )


def _held(stages: tuple[StageArrays, ...], name: str, onnx: Any) -> list[Any]:
    return [
        onnx.helper.make_tensor_value_info(
            f"{name}_{i}", onnx.TensorProto.FLOAT, ["batch", *stage.start.shape]
        )
        for i, stage in enumerate(stages)
    ]


def _tables(stage: StageArrays, i: int, onnx: Any) -> list[Any]:
    named = stage.named() | {"readout": np.ascontiguousarray(stage.readout.T)}
    del named["start"]
    found = []
    for name, array in named.items():
        small = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        found.append(onnx.numpy_helper.from_array(small, f"{name}_{i}"))
    flat = np.array([0, -1], dtype=np.int64)
    one = np.array([1], dtype=np.int64)
    return [
        *found,
        onnx.numpy_helper.from_array(flat, f"flat_{i}"),
        onnx.numpy_helper.from_array(one, f"one_{i}"),
    ]


def _layer(i: int, context: str, before: str, now: str, helper: Any) -> list[Any]:
    """One letter through one layer; names with its number at the end are its own."""

    def node(kind: str, inputs: str, output: str, **options: Any) -> Any:
        names = [context if name == "context" else f"{name}_{i}" for name in inputs.split()]
        return helper.make_node(kind, names, [f"{output}_{i}"], **options)

    return [
        node("Gather", "symbol context", "s"),
        node("Gather", "transition s", "A"),
        node("Gather", "add s", "B"),
        node("MatMul", f"A {before}", "moved"),
        node("Add", "moved B", now),
        node("Gather", "query s", "q"),
        node("MatMul", f"q {now}", "read"),
        node("Reshape", "read flat", "y"),
        node("MatMul", "y readout", "likely"),
        node("Gather", "offset s", "shift"),
        node("Add", "likely shift", "scores"),
        node("ArgMax", "scores", "label", axis=1, keepdims=0),
        node("Unsqueeze", "context one", "row"),
        node("Unsqueeze", "label one", "column"),
        node("Concat", "row column", "place", axis=1),
        node("GatherND", "after place", "context"),
    ]
