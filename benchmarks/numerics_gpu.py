"""The reflections of numerics.py on a GPU: our kernel and, where it is installed, fla's.

    python benchmarks/numerics_gpu.py --out numerics_gpu.json
    python benchmarks/numerics_gpu.py --plot benchmarks/results/numerics_gpu.json   # needs no GPU

Same inputs, same float64 definition; bfloat16 and float32 inputs for ours, bfloat16 for fla's
chunked kernel (it refuses float32). In bfloat16 a head of 128 x 64 goes in chunks of 64 tokens, one
of 32 x 16 in chunks of 16 up to the first of LENGTHS; the rest goes token by token. Rows are
written as they come; what is not finite is null.
"""

import argparse
import json
import math
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numerics
import torch
from numerics import KEY_COUNTS, LENGTHS, VALUE, Pieces, drift, error, reflections, states, worst
from torch import Tensor


def fla_states(inputs: dict[str, Tensor], state: Tensor) -> Pieces:
    """The state at each of LENGTHS from fla's chunked kernel."""
    from fla.ops.delta_rule import chunk_delta_rule

    found, start = [], 0
    for length in LENGTHS:
        part = {name: x[:, start:length].contiguous() for name, x in inputs.items()}
        _, state = chunk_delta_rule(
            **part,
            scale=1.0,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        found.append(state)
        start = length
    return found


def finite(numbers: Tensor) -> list[float | None]:
    return [x if math.isfinite(x) else None for x in numbers.tolist()]


def plot(rows: list[dict[str, Any]]) -> None:
    """The error of the state against length, five keys and bfloat16 inputs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for row in rows:
        if row["keys"] == 5 and row["inputs"] == "bfloat16":
            ours = row["way"] == "triton"
            axes.loglog(
                row["length"],
                row["state_error"],
                "o-" if ours else "x--",
                label=f"{'ours' if ours else row['way']}, {row['head_size']} x {row['values']}",
            )
    axes.axhline(0.01, color="grey", linewidth=0.8)
    axes.text(256, 0.013, "1 %", color="grey", fontsize=8)
    axes.set_xlabel("tokens, each a reflection along one of five keys")
    axes.set_ylabel("relative error of the state")
    figure.legend(loc="outside right upper", fontsize=7)
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "gpu_numerics.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    default = numerics.RESULTS.with_name("numerics_gpu.json")
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--plot", type=Path, help="draw the rows of this file instead")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads(options.plot.read_text())["rows"])
        return
    out = options.out
    device = torch.device("cuda")
    versions = {name: metadata.version(name) for name in ("torch", "triton")}
    record = {
        "rows": [],
        "device": torch.cuda.get_device_name(device),
        "versions": versions,
        "date": datetime.now(UTC).date().isoformat(),
    }

    def add(who: str, inputs: dict[str, Tensor], got: Pieces, exact: Pieces) -> None:
        got = [x.cpu() for x in got]
        errors, drifts = worst(error, got, exact), worst(drift, got, exact)
        for i, keys in enumerate(KEY_COUNTS):
            row = {
                "way": who,
                "inputs": str(inputs["k"].dtype).removeprefix("torch."),
                "head_size": inputs["k"].shape[-1],
                "values": inputs["v"].shape[-1],
                "keys": keys,
                "length": LENGTHS,
                "state_error": finite(errors[i]),
                "norm_drift": finite(drifts[i]),
            }
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
        out.write_text(json.dumps(record, indent=1) + "\n")

    narrow, wide = torch.bfloat16, torch.float32
    cases = []
    for size, value, dtype in (
        (32, VALUE, narrow),
        (32, VALUE, wide),
        (128, VALUE, narrow),
        (128, VALUE, wide),
        (128, 64, narrow),
    ):
        inputs, start = reflections(size, dtype, value)
        in_float64 = {name: x.double() for name, x in inputs.items()}
        exact = states(in_float64, start.double(), backend="reference")
        inputs, start = {name: x.to(device) for name, x in inputs.items()}, start.to(device)
        add("triton", inputs, states(inputs, start, backend="triton"), exact)
        if dtype == narrow:
            cases.append((inputs, start, exact))
    try:
        versions["fla-core"] = metadata.version("fla-core")
    except metadata.PackageNotFoundError:
        print("fla is not installed: its rows are left out")
        return
    for inputs, start, exact in cases:
        add("fla chunk", inputs, fla_states(inputs, start), exact)


if __name__ == "__main__":
    main()
