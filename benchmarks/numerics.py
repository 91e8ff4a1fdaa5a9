"""How far the state of the delta rule is off after 256 … 65,536 reflections (β = 2).

The state starts random, 16 values are written in the first 16 tokens, then it is only reflected:
along one key again and again, or along five keys in random order. Nothing is ever forgotten, so
every error stays. Compared with the sequential definition in float64 on the same (rounded) inputs;
each number is the worst of SEEDS sequences.

    python benchmarks/numerics.py          prints the tables, writes results/numerics_cpu.json
"""

import json
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from statetrack import ops

LENGTHS = [256, 1024, 4096, 16384, 65536]
KEY_COUNTS = [1, 5]
HEAD_SIZES = [32, 128]
SEEDS = 3
VALUE, WRITES = 16, 16
RESULTS = Path(__file__).parent / "results" / "numerics_cpu.json"

Pieces = list[Tensor]  # the state at each of LENGTHS, [KEY_COUNTS · SEEDS, 1, key, value]


def reflections(
    size: int, dtype: torch.dtype, value: int = VALUE
) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs with one sequence per number of keys and seed, and the state they start from."""
    sequences = []
    for count in KEY_COUNTS:
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(100 * size + 10 * count + seed)
            keys = torch.randn(count, size, generator=generator)
            order = torch.randint(count, (LENGTHS[-1],), generator=generator)
            writes = torch.zeros(LENGTHS[-1], value)
            writes[:WRITES] = torch.randn(WRITES, value, generator=generator)
            state = torch.randn(size, value, generator=generator)
            sequences.append((keys[order], writes, state))
    k, v, state = (torch.stack(x) for x in zip(*sequences, strict=True))
    k, v = k[:, :, None].to(dtype), v[:, :, None].to(dtype)
    return {"q": k, "k": k, "v": v, "beta": torch.full_like(k[..., 0], 2.0)}, state[:, None]


def states(inputs: dict[str, Tensor], state: Tensor, *, backend: str, step: int = 0) -> Pieces:
    """The state at each of LENGTHS; `step` tokens per call, or all to the next length."""
    found, start = [], 0
    for length in LENGTHS:
        for t in range(start, length, step or length):
            stop = min(t + (step or length), length)
            part = {name: x[:, t:stop] for name, x in inputs.items()}
            _, state = ops.delta_rule(**part, initial_state=state, backend=backend)
        found.append(state)
        start = length
    return found


def worst(measure: Callable[[Tensor, Tensor], Tensor], got: Pieces, exact: Pieces) -> Tensor:
    """The largest of `measure` over the seeds [KEY_COUNTS, LENGTHS]."""
    columns = [
        measure(g.double().flatten(1), e.flatten(1)).view(len(KEY_COUNTS), SEEDS).amax(1)
        for g, e in zip(got, exact, strict=True)
    ]
    return torch.stack(columns, dim=1)


def error(got: Tensor, exact: Tensor) -> Tensor:
    return (got - exact).norm(dim=1) / exact.norm(dim=1)


def drift(got: Tensor, exact: Tensor) -> Tensor:
    return (got.norm(dim=1) / exact.norm(dim=1) - 1).abs()


def measure() -> list[dict[str, object]]:
    """One row per way of running, head size, input type and number of keys."""
    rows: list[dict[str, object]] = []
    for size in HEAD_SIZES:
        for dtype in (torch.float32, torch.bfloat16):
            inputs, start = reflections(size, dtype)
            wide = {name: x.double() for name, x in inputs.items()}
            exact = states(wide, start.double(), backend="reference")
            ways = {"chunked": states(inputs, start, backend="torch")}
            if dtype == torch.float32:
                ways["float32 loop"] = states(inputs, start, backend="reference")
                if size == HEAD_SIZES[0]:
                    ways["token by token"] = states(inputs, start, backend="torch", step=1)
            for way, got in ways.items():
                errors, drifts = worst(error, got, exact), worst(drift, got, exact)
                for i, keys in enumerate(KEY_COUNTS):
                    rows.append(
                        {
                            "way": way,
                            "inputs": str(dtype).removeprefix("torch."),
                            "head_size": size,
                            "keys": keys,
                            "length": LENGTHS,
                            "state_error": errors[i].tolist(),
                            "norm_drift": drifts[i].tolist(),
                        }
                    )
    return rows


def table(rows: list[dict[str, object]], column: str) -> str:
    lines = ["| run | inputs | head size | keys | " + " | ".join(map(str, LENGTHS)) + " |"]
    lines.append("|---" * (4 + len(LENGTHS)) + "|")
    for row in rows:
        numbers = row[column]
        assert isinstance(numbers, list)
        cells = [row["way"], row["inputs"], row["head_size"], row["keys"]]
        lines.append("| " + " | ".join([*map(str, cells), *(f"{x:.0e}" for x in numbers)]) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = measure()
    for column in ("state_error", "norm_drift"):
        print(f"{column}\n{table(rows, column)}\n")
    record = {
        "rows": rows,
        "device": platform.processor() or platform.machine(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.now(UTC).date().isoformat(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
