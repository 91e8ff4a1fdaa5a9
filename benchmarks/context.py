"""The reflections of numerics.py with the sequence on 1, 2, 4 and 8 processes that share it.

    python benchmarks/context.py           prints the table, writes results/context_cpu.json

Same inputs, same float64 definition, float32 inputs and the chunks of `backend="torch"`. Every
process has 1/W of the tokens; the state compared is that after the last one. Beside it what a
process sends for each op.
"""

import json
import multiprocessing
import platform
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from numerics import HEAD_SIZES, KEY_COUNTS, LENGTHS, SEEDS, error, reflections

from statetrack import ops

PROCESSES = [1, 2, 4, 8]
RESULTS = Path(__file__).parent / "results" / "context_cpu.json"


def shared(rank: int, count: int, store: str, size: int) -> torch.Tensor:
    """The last state, on one of `count` processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    inputs, start = reflections(size, torch.float32)
    part = {name: x.chunk(count, dim=1)[rank] for name, x in inputs.items()}
    with ops.context_parallel(dist.group.WORLD):
        _, state = ops.delta_rule(**part, initial_state=start, backend="torch")
    dist.destroy_process_group()
    return state


def measure(size: int) -> Iterator[dict[str, Any]]:
    """A row for each number of processes, as they come."""
    inputs, start = reflections(size, torch.float32)
    _, alone = ops.delta_rule(**inputs, initial_state=start, backend="torch")
    wide = {name: x.double() for name, x in inputs.items()}
    _, exact = ops.delta_rule(**wide, initial_state=start.double(), backend="reference")
    yield _row(size, 1, alone, exact)
    for count in PROCESSES[1:]:
        with tempfile.TemporaryDirectory() as folder:
            given = [(rank, count, str(Path(folder) / "store"), size) for rank in range(count)]
            with multiprocessing.get_context("spawn").Pool(count) as pool:
                found = pool.starmap(shared, given, chunksize=1)
        assert all(torch.equal(state, found[0]) for state in found)
        yield _row(size, count, found[0], exact)


def _row(size: int, count: int, state: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    errors = error(state.double().flatten(1), exact.flatten(1)).view(len(KEY_COUNTS), SEEDS)
    key, value = state.shape[-2:]
    return {
        "processes": count,
        "head_size": size,
        "length": LENGTHS[-1],
        "state_error": dict(zip(map(str, KEY_COUNTS), errors.amax(1).tolist(), strict=True)),
        "bytes_a_head": 0 if count == 1 else 4 * key * (key + value),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    print(f"{LENGTHS[-1]} tokens | processes | one key | five keys | sent, a head", flush=True)
    for row in (row for size in HEAD_SIZES for row in measure(size)):
        rows.append(row)
        one, five = row["state_error"].values()
        print(
            f"head size {row['head_size']:3} | {row['processes']} | {one:.0e} | {five:.0e} | "
            f"{row['bytes_a_head'] / 1024:.0f} KB",
            flush=True,
        )
    record = {
        "rows": rows,
        "device": platform.processor() or platform.machine(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.now(UTC).date().isoformat(),
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
