"""Times our ops on the CPU beside the peers', in one run, and writes JSON.

    python benchmarks/cpu.py                       # everything, about five minutes on two cores
    python benchmarks/cpu.py --only delta          # works whose name contains "delta"
    python benchmarks/cpu.py --threads 1           # one core; CPU time, which others cannot spoil

Each work is run forward and backward, ours and the peer's in turn, after both have been checked to
give the same answer; the median of the rounds counts. These machines are noisy: trust the ratios.
Memory is the growth of the resident set during one call, in a process of its own.

Peers (pure Python) are optional, a missing one is left out and said so:
    pip install --no-deps transformers mambapy     # and what transformers imports
"""

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from statetrack import ops
from statetrack._amx import avoid_amx_trap

avoid_amx_trap()

THREADS = 2
ROUNDS = 11
RESULTS = Path(__file__).parent / "results"
Call = Callable[[], tuple[Tensor, ...]]  # runs forward and backward; returns y and gradients


@dataclass(frozen=True)
class Work:
    """One piece of work and who can do it; `who[name]()` builds inputs and returns the call."""

    name: str
    who: dict[str, Callable[[], Call]]
    tolerance: float = 2e-4


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def forward_backward(function: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """A call that returns the output and the gradients of its sum of squares."""
    leaves = [x.clone().requires_grad_() for x in inputs]

    def call() -> tuple[Tensor, ...]:
        y = function(*leaves)
        return (y.detach(), *torch.autograd.grad(y.square().sum(), leaves))

    return call


# -- delta rule ---------------------------------------------------------------------------------


def delta_inputs(batch: int, time_: int, heads: int, dim: int) -> tuple[Tensor, ...]:
    shape = (batch, time_, heads, dim)
    q, k, v = (normal(*shape, seed=seed) for seed in range(3))
    beta = normal(batch, time_, heads, seed=3).sigmoid()
    log_decay = -0.1 * normal(batch, time_, heads, seed=4).exp()
    return q, k, v, beta, log_decay


def delta_ours(*size: int, gated: bool = True, backend: str = "auto") -> Callable[[], Call]:
    def build() -> Call:
        def run(
            q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None = None
        ) -> Tensor:
            scale = q.shape[-1] ** -0.5
            decay = None if log_decay is None else log_decay.exp()
            return ops.delta_rule(q, k, v, beta, decay, scale=scale, backend=backend)[0]

        return forward_backward(run, *delta_inputs(*size)[: 5 if gated else 4])

    return build


def delta_transformers(*size: int) -> Callable[[], Call]:
    def build() -> Call:
        from transformers.models.qwen3_next.modeling_qwen3_next import (
            torch_chunk_gated_delta_rule,
        )

        def run(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> Tensor:
            return torch_chunk_gated_delta_rule(
                q, k, v, g=log_decay, beta=beta, use_qk_l2norm_in_kernel=True
            )[0]

        return forward_backward(run, *delta_inputs(*size))

    return build


# -- selective scan -----------------------------------------------------------------------------


def selective_inputs(batch: int, time_: int, channels: int, state: int) -> tuple[Tensor, ...]:
    return (
        normal(batch, time_, channels, seed=0),
        torch.nn.functional.softplus(normal(batch, time_, channels, seed=1) - 3),
        -torch.arange(1.0, state + 1).expand(channels, -1).contiguous(),
        normal(batch, time_, state, seed=2),
        normal(batch, time_, state, seed=3),
        normal(channels, seed=4),
    )


def selective_ours(*size: int, low: float = 0.0, backend: str = "auto") -> Callable[[], Call]:
    def build() -> Call:
        def run(*inputs: Tensor) -> Tensor:
            return ops.selective_scan(*inputs, low=low, backend=backend)[0]

        return forward_backward(run, *selective_inputs(*size))

    return build


def selective_mambapy(*size: int) -> Callable[[], Call]:
    def build() -> Call:
        from mambapy.pscan import pscan

        def run(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
            decay = torch.exp(delta[..., None] * A)
            inputs = (delta[..., None] * B[:, :, None]) * u[..., None]
            states = pscan(decay, inputs)
            return (states @ C[..., None]).squeeze(3) + D * u

        return forward_backward(run, *selective_inputs(*size))

    return build


# -- linear attention ---------------------------------------------------------------------------


def attention_inputs(
    batch: int, time_: int, heads: int, dim: int, *, vector: bool, signed: bool
) -> tuple[Tensor, ...]:
    shape = (batch, time_, heads, dim)
    q, k, v = (normal(*shape, seed=seed) / dim**0.5 for seed in range(3))
    gates = normal(batch, time_, heads, dim if vector else 1, seed=3)
    decay = torch.exp(-0.1 * gates.exp())
    sign = normal(*decay.shape, seed=4).sign() if signed else torch.ones_like(decay)
    return q, k, v, sign * decay


def attention_ours(
    *size: int, vector: bool, signed: bool, backend: str = "auto"
) -> Callable[[], Call]:
    def build() -> Call:
        def run(*inputs: Tensor) -> Tensor:
            return ops.linear_attention(*inputs, backend=backend)[0]

        return forward_backward(run, *attention_inputs(*size, vector=vector, signed=signed))

    return build


# -- the other scans ----------------------------------------------------------------------------


def diagonal_ours(*size: int, backend: str = "auto") -> Callable[[], Call]:
    def build() -> Call:
        def run(decay: Tensor, inputs: Tensor) -> Tensor:
            return ops.diagonal_scan(decay, inputs, backend=backend)[0]

        return forward_backward(run, normal(*size, seed=0).tanh(), normal(*size, seed=1))

    return build


def slstm_ours(
    batch: int, time_: int, heads: int, dim: int, *, backend: str = "auto"
) -> Callable[[], Call]:
    def build() -> Call:
        def run(gates: Tensor, R: Tensor) -> Tensor:
            return ops.slstm_scan(gates, R, backend=backend)[0]

        gates = normal(batch, time_, 4, heads, dim, seed=0)
        return forward_backward(run, gates, normal(4, heads, dim, dim, seed=1) / dim)

    return build


def convolution_ours(*size: int, backend: str = "auto") -> Callable[[], Call]:
    def build() -> Call:
        def run(x: Tensor, weight: Tensor) -> Tensor:
            return ops.short_convolution(x, weight, activation="silu", backend=backend)[0]

        return forward_backward(run, normal(*size, seed=0), normal(size[2], 4, seed=1))

    return build


# -- the list -----------------------------------------------------------------------------------


def works() -> list[Work]:
    found = []
    for size in ((4, 1024, 4, 64), (256, 40, 4, 32)):
        name = "delta_rule gated B{} T{} H{} D{}".format(*size)
        who = {
            "ours": delta_ours(*size),
            "ours torch": delta_ours(*size, backend="torch"),
            "transformers": delta_transformers(*size),
        }
        found.append(Work(name, who))
    for size in ((32, 40, 1, 32), (256, 40, 4, 32), (4, 1024, 4, 64), (4, 512, 4, 128)):
        name = "delta_rule B{} T{} H{} D{}".format(*size)
        who = {
            "ours": delta_ours(*size, gated=False),
            "ours torch": delta_ours(*size, gated=False, backend="torch"),
        }
        found.append(Work(name, who))
    for size in ((8, 1024, 256, 16), (64, 64, 256, 16)):
        name = "selective_scan B{} T{} C{} N{}".format(*size)
        who = {
            "ours": selective_ours(*size),
            "ours signed": selective_ours(*size, low=-1.0),
            "ours torch": selective_ours(*size, backend="torch"),
            "mambapy": selective_mambapy(*size),
        }
        found.append(Work(name, who))
    for size in ((4, 1024, 4, 64), (256, 40, 4, 32)):
        for vector in (False, True):
            gate = "vector" if vector else "scalar"
            name = "linear_attention {} B{} T{} H{} D{}".format(gate, *size)
            who = {
                "ours": attention_ours(*size, vector=vector, signed=True),
                "ours unsigned": attention_ours(*size, vector=vector, signed=False),
                "reference": attention_ours(*size, vector=vector, signed=True, backend="reference"),
            }
            found.append(Work(name, who))
    for size in ((8, 2048, 256), (64, 64, 256), (1, 16384, 64)):
        name = "diagonal_scan B{} T{} D{}".format(*size)
        who = {"ours": diagonal_ours(*size), "ours torch": diagonal_ours(*size, backend="torch")}
        found.append(Work(name, who))
    for size in ((256, 40, 4, 32), (8, 256, 4, 64), (64, 64, 4, 128)):
        name = "slstm_scan B{} T{} H{} D{}".format(*size)
        who = {"ours": slstm_ours(*size), "ours torch": slstm_ours(*size, backend="torch")}
        found.append(Work(name, who))
    for size in ((256, 40, 96), (64, 40, 320), (8, 512, 512), (1, 2048, 1024)):
        name = "short_convolution B{} T{} C{}".format(*size)
        who = {
            "ours": convolution_ours(*size),
            "ours torch": convolution_ours(*size, backend="torch"),
        }
        found.append(Work(name, who))
    return found


SAME = {  # who must give the same answer as ours; the others do other work
    "transformers",
    "mambapy",
    "ours torch",
    "reference",
}


def growth() -> list[Work]:
    """Cost against T, one head-sized piece of each op."""
    found = []
    for time_ in (256, 1024, 4096, 16384):
        sizes = {
            "delta_rule gated": delta_ours(1, time_, 4, 64),
            "selective_scan": selective_ours(1, time_, 256, 16, low=-1.0),
            "linear_attention vector": attention_ours(1, time_, 4, 64, vector=True, signed=True),
            "linear_attention scalar": attention_ours(1, time_, 4, 64, vector=False, signed=True),
        }
        for op, build in sizes.items():
            found.append(Work(f"{op} against T, T={time_}", {"ours": build}))
    return found


# -- measuring ----------------------------------------------------------------------------------


def check(work: Work, calls: dict[str, Call]) -> None:
    """Nobody is timed before giving the same output and gradients as ours."""
    expected = calls["ours"]()
    for who, call in calls.items():
        if who not in SAME:
            continue
        for index, (got, want) in enumerate(zip(call(), expected, strict=True)):
            error = ((got - want).norm() / want.norm()).item()
            if not error < work.tolerance:
                raise SystemExit(
                    f"{work.name}: {who} differs from ours, result {index}: {error:.1e}"
                )


def timed(call: Call) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return 1e3 * (clock() - start)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mb(work: str, who: str) -> float | None:
    """How much the resident set grows during one call, measured in a process of its own."""
    # every larger block is mapped and given back by itself, so that growth means use
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--memory", work, who]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"no memory reading for {work}, {who}: {done.stderr.strip().splitlines()[-1]}")
        return None
    return float(done.stdout.split()[-1])


def print_growth(work: str, who: str) -> None:
    call = next(w for w in works() + growth() if w.name == work).who[who]()
    call()  # imports and compilation are not what is measured
    gc.collect()
    before, peak, done = resident_mb(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident_mb())
            time.sleep(2e-4)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        call()
    done.set()
    watcher.join()
    print(max(peak - before, 0.0))


def measure(work: Work) -> list[dict[str, object]]:
    calls = {}
    for who, build in work.who.items():
        try:
            calls[who] = build()
        except ImportError as error:
            print(f"{work.name}: {who} is left out, {error.name} is not installed")
    check(work, calls)
    times: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(ROUNDS):
        for who, call in calls.items():
            times[who].append(timed(call))
    return [
        {
            "work": work.name,
            "phase": "forward+backward",
            "who": who,
            "ms": round(statistics.median(times[who]), 3),
            "peak_mb": peak_mb(work.name, who),
            "device": f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
        }
        for who in calls
    ]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "numba", "transformers", "mambapy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def table(rows: list[dict[str, object]]) -> str:
    """One line per row, with the ratio of its time to ours."""
    ours = {row["work"]: row["ms"] for row in rows if row["who"] == "ours"}
    lines = [f"{'work':48} {'who':14} {'ms':>10} {'x ours':>8} {'peak MB':>9}"]
    for row in rows:
        ratio = row["ms"] / ours[row["work"]]  # type: ignore[operator]
        memory = "-" if row["peak_mb"] is None else f"{row['peak_mb']:9.1f}"
        lines.append(f"{row['work']:48} {row['who']:14} {row['ms']:10.2f} {ratio:8.2f} {memory:>9}")
    return "\n".join(lines)


def plot_growth(rows: list[dict[str, object]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if " against T, T=" in str(row["work"]):
            op, length = str(row["work"]).split(" against T, T=")
            series.setdefault(op, []).append((int(length), float(row["ms"])))  # type: ignore
    for op, points in series.items():
        lengths, times = zip(*sorted(points), strict=True)
        axes.loglog(lengths, times, "o-", label=op)
    guide = [min(min(times for _, times in points) for points in series.values()) / 2]
    guide.append(guide[0] * lengths[-1] / lengths[0])
    axes.loglog([lengths[0], lengths[-1]], guide, "k:", label="proportional to T")
    axes.set_xlabel("tokens T")
    axes.set_ylabel("ms, forward and backward")
    axes.set_title("Cost against length: linear in T")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def picture_of(out: Path | None) -> Path:
    """Where the picture goes: into docs/ with our own results, else beside `out`."""
    ours = Path(__file__).parents[1] / "docs" / "images" / "cost_against_length.png"
    return ours if out is None else out.with_suffix(".png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", default="", help="works whose name contains this")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument(
        "--out", type=Path, default=None, help="JSON file to write, and a PNG beside it"
    )
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        print_growth(*arguments.memory)
        return
    rows = []
    for work in works() + growth():
        if arguments.only in work.name:
            found = measure(work)
            rows += found
            print(table(found).splitlines()[1], flush=True)
    date = datetime.date.today().isoformat()
    out = arguments.out or RESULTS / f"cpu_{date}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")
    if not arguments.only:
        plot_growth(rows, picture_of(arguments.out))
    print(f"\n{table(rows)}\n\nwritten to {out.name}")


if __name__ == "__main__":
    main()
