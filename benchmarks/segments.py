"""Few long sequences, cut in time or walked from end to end: checked, then timed.

    PYTHONPATH=src python benchmarks/segments.py [--only selective] [--peers FOLDER] [--out FILE]

Every op is compared with float64 on the GPU at a length at which it is cut, and then timed as the
replay of a CUDA graph without cuts (`whole`) and with several numbers of programs wanted. `short`
is linear attention with one gate per head at lengths where the recurrence, chunks and programs with
all tokens of a head compete.
Peers come last, and only with the folder that holds fla, mamba_ssm (without its __init__.py, which
wants what has to be built) or both. They take minutes to tune themselves; with `--pick` every
kernel of theirs has one tile instead.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from statetrack import ops

Run = Callable[[dict[str, Tensor]], Tensor]
BF16 = torch.bfloat16
MULTIPROCESSORS = 132
MAMBA2 = (8, 4096, 32, 128, 64)  # batch, time, heads, key and value
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILES = [  # keys, values, warps and stages of the kernels for one gate per head
    ("_outputs_tile", (64, 128, 4, 2)),
    ("_states_tile", (64, 128, 4, 2)),
    ("_states_tile", (64, 128, 4, 4)),
    ("_gradients_tile", (64, 64, 4, 2)),
    ("_gradients_tile", (128, 64, 8, 2)),
    ("_gradients_tile", (128, 128, 4, 1)),
]


PICKS = {"large": (4, 3, -1), "small": (4, 2, 1), "two warps": (2, 3, -1)}
"""Of the tiles a kernel of a peer could have, the one nearest to so many warps and stages, and the
last or the first of these."""


def with_one_tile(pick: str) -> None:
    """Kernels of a peer that is imported after this have one tile each, and tune nothing."""
    from triton.runtime import autotuner

    warps, stages, order = PICKS[pick]
    made = autotuner.Autotuner.__init__

    def with_one(self: Any, fn: Any, names: Any, configs: list[Any], *args: Any, **options: Any):
        def far(i: int) -> tuple[int, int, int]:
            tile = configs[i]
            return abs(tile.num_warps - warps), abs(tile.num_stages - stages), order * i

        best = min(range(len(configs)), key=far)
        made(self, fn, names, [configs[best]], *args, **options)

    autotuner.Autotuner.__init__ = with_one


@contextmanager
def settings(module: ModuleType, **values: Any) -> Iterator[None]:
    """Constants of a kernel module, changed for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


# ------------------------------------------------------------------------------------- work


def selective_inputs(b: int, t: int, c: int, n: int) -> dict[str, Tensor]:
    return {
        "u": torch.randn(b, t, c, device=DEVICE, dtype=BF16),
        "delta": torch.rand(b, t, c, device=DEVICE).to(BF16),
        "A": -4 * torch.rand(c, n, device=DEVICE),
        "B": torch.randn(b, t, n, device=DEVICE, dtype=BF16),
        "C": torch.randn(b, t, n, device=DEVICE, dtype=BF16),
        "D": torch.randn(c, device=DEVICE),
    }


def selective(x: dict[str, Tensor]) -> Tensor:
    return ops.selective_scan(**x, low=-1.0, backend="triton")[0]


def attention_inputs(
    b: int,
    t: int,
    h: int,
    k: int,
    v: int,
    gate: str,
    dtype: torch.dtype = BF16,
    groups: int | None = None,
) -> dict[str, Tensor]:
    """Gates of either sign near one, so that a segment is not forgotten in the next.

    `groups` of heads share q and k; None for a q and a k per head.
    """
    gates = k if gate == "key" else 1
    size = 1 - torch.rand(b, t, h, gates, device=DEVICE) / 16
    g = h if groups is None else groups
    return {
        "q": torch.randn(b, t, g, k, device=DEVICE, dtype=dtype),
        "k": torch.randn(b, t, g, k, device=DEVICE, dtype=dtype) / k**0.5,
        "v": torch.randn(b, t, h, v, device=DEVICE, dtype=dtype),
        "decay": (size * torch.randn_like(size).sign()).to(dtype),
    }


def attention(x: dict[str, Tensor]) -> Tensor:
    return ops.linear_attention(**x, backend="triton")[0]


def fla_peers(gate: str) -> dict[str, Run]:
    """fla knows no signs: it gets the logarithms of the sizes of the same gates."""
    try:
        from fla.ops.gla import chunk_gla
        from fla.ops.simple_gla import chunk_simple_gla
    except ImportError:
        return {}

    def gla(x: dict[str, Tensor]) -> Tensor:
        decay = x["decay"].expand_as(x["k"]) if gate == "head" else x["decay"]
        return chunk_gla(x["q"], x["k"], x["v"], decay, scale=1.0)[0]

    def simple(x: dict[str, Tensor]) -> Tensor:
        return chunk_simple_gla(x["q"], x["k"], x["v"], x["decay"][..., 0], scale=1.0)[0]

    return {"fla chunk_gla": gla} if gate == "key" else {"fla chunk_simple_gla": simple}


def for_peer(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return x | {"decay": x["decay"].float().abs().log().to(BF16)}


def ssd_peer() -> Run | None:
    """mamba-ssm's, with a = exp(-Δ) and Δ v written, which it makes on the way; no signs either."""
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    except ImportError as error:
        print(f"no mamba-ssm: {error}")
        return None

    def ssd(x: dict[str, Tensor]) -> Tensor:
        step = -x["decay"][..., 0].float()
        rate = -torch.ones(step.shape[-1], device=step.device)
        return mamba_chunk_scan_combined(x["v"], step, rate, x["k"], x["q"], chunk_size=256)

    return ssd


# ------------------------------------------------------------------------------------- measuring


def errors(run: Run, x: dict[str, Tensor], module: ModuleType) -> dict[str, float]:
    """Relative errors of the output and of all gradients against float64, token by token."""
    low = {name: t.clone().requires_grad_() for name, t in x.items()}
    wide = {name: t.double().requires_grad_() for name, t in x.items()}
    y = run(low)
    dy = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, list(low.values()), dy)]
    with settings(module, ENOUGH=0):
        want = run(wide)
        expected = [want, *torch.autograd.grad(want, list(wide.values()), dy.double())]
    return {
        name: ((a.double() - b).norm() / b.norm()).item()
        for name, a, b in zip(["y", *x], found, expected, strict=True)
    }


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The first capture of a backward in a process was seen to fail, the second to work."""
    for last in (False, True):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                step()
            return graph
        except RuntimeError:
            torch.cuda.synchronize()
            if last:
                raise
    raise AssertionError


def graph_ms(step: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of one replay; the working set is larger than any cache."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = captured(step)
    for _ in range(2):
        graph.replay()
    marks = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


def steps(run: Run, x: dict[str, Tensor]) -> dict[str, Callable[[], object]]:
    leaves = {name: t.detach().requires_grad_() for name, t in x.items()}

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def both() -> None:
        y = run(leaves)
        torch.autograd.grad(y, list(leaves.values()), y.detach())

    return {"forward": forward, "forward+backward": both}


class Table:
    """Rows, printed as they come and kept in a file."""

    def __init__(self, out: Path) -> None:
        self.out, self.rows = out, []
        import triton

        self.about = {
            "device": torch.cuda.get_device_name(),
            "versions": {"torch": torch.__version__, "triton": triton.__version__},
            "date": datetime.date.today().isoformat(),
        }

    def time(self, work: str, who: str, run: Run, x: dict[str, Tensor], repeats: int) -> None:
        began = time.perf_counter()
        found = []
        for phase, step in steps(run, x).items():
            try:
                ms = graph_ms(step, repeats)
            except Exception as error:
                print(f"    {phase}: {type(error).__name__}: {str(error)[:90]}", flush=True)
                continue
            found.append(ms)
            row = {"work": work, "phase": phase, "who": who, "mode": "graph", "ms": ms}
            self.rows.append(row | self.about)
            self.out.write_text(json.dumps(self.rows, indent=1) + "\n")
        seconds = time.perf_counter() - began
        both = " / ".join(f"{ms:8.3f}" for ms in found)
        print(f"{work:58s} {who:32s} {both} ms   ({seconds:.1f} s)", flush=True)

    def check(self, work: str, found: dict[str, float], tolerance: float) -> None:
        worst = max(found, key=lambda name: found[name])
        ok = all(error < tolerance for error in found.values())
        print(f"{work:44s} {'ok' if ok else 'WRONG'}: worst {worst} {found[worst]:.1e}", flush=True)
        self.rows += [
            {"work": work, "phase": "error", "who": name, "error": error} | self.about
            for name, error in found.items()
        ]
        self.out.write_text(json.dumps(self.rows, indent=1) + "\n")


def selective_rows(table: Table, sizes: list[tuple[int, ...]], repeats: int) -> None:
    from statetrack.ops.selective import triton as kernels

    x = selective_inputs(1, 4000, 256, 16)
    table.check("selective_scan B1 T4000 C256 N16 bf16", errors(selective, x, kernels), 1e-2)
    x = {name: t.float() for name, t in x.items()}
    table.check("selective_scan B1 T4000 C256 N16 fp32", errors(selective, x, kernels), 1e-4)
    with settings(kernels, ENOUGH=0):
        found = errors(selective, x, kernels)
    table.check("selective_scan B1 T4000 C256 N16 fp32, whole", found, 1e-4)
    for size in sizes:
        work = "selective_scan B{} T{} C{} N{} bf16".format(*size)
        x = selective_inputs(*size)
        table.time(work, "ours", selective, x, repeats)
        if size[0] * size[2] // 16 >= kernels.ENOUGH:
            continue
        with settings(kernels, ENOUGH=0):
            table.time(work, "ours, whole", selective, x, repeats)
        for each in (12, 24, 48, 64, 96):
            with settings(kernels, PROGRAMS=each * MULTIPROCESSORS):
                table.time(work, f"ours, {each} programs", selective, x, repeats)


def attention_rows(table: Table, sizes: list[tuple[int, ...]], repeats: int) -> None:
    from statetrack.ops.linear_attention.triton import chunked, scalar

    for gate, module in (("head", scalar), ("key", chunked)):
        x = attention_inputs(1, 4096, 2, 128, 128, gate)
        found = errors(attention, x, module)
        table.check(f"linear_attention B1 T4096 H2, gate per {gate}", found, 1e-2)
        for size in sizes:
            work = "linear_attention B{} T{} H{} K{} V{} bf16".format(*size) + f", gate per {gate}"
            x = attention_inputs(*size, gate)
            table.time(work, "ours", attention, x, repeats)
            if size[0] * size[2] < MULTIPROCESSORS:
                with settings(module, ENOUGH=0):
                    table.time(work, "ours, whole", attention, x, repeats)
                for each in (1, 3, 4, 6):
                    with settings(module, PROGRAMS=each * MULTIPROCESSORS):
                        table.time(work, f"ours, {each} programs", attention, x, repeats)
            if gate == "head" and size[2:] == (16, 128, 128):
                for name, tile in TILES:
                    with settings(scalar, **{name: lambda *_, tile=tile: tile}):
                        table.time(work, f"{name}{tile}", attention, x, repeats)


def quick_rows(table: Table, sizes: list[tuple[int, ...]], repeats: int) -> None:
    """One gate per head: checked in both precisions, and timed once at each size.

    Mamba2's size also with the q and k that all its heads share, and heads that share nothing also
    with the gradients of those that do.
    """
    from statetrack.ops.linear_attention.triton import scalar, shared

    for dtype, tolerance in ((BF16, 1e-2), (torch.float32, 5e-5)):
        for *size, groups in (
            (1, 4096, 2, 128, 128, 2),
            (4, 300, 2, 64, 65, 2),
            (2, 300, 2, 256, 64, 2),
            (8, 4096, 8, 128, 64, 1),
            (2, 300, 8, 128, 128, 2),
        ):
            x = attention_inputs(*size, "head", dtype, groups)
            name = "linear_attention B{} T{} H{} K{} V{}".format(*size) + f" G{groups}, {dtype}"
            table.check(name, errors(attention, x, scalar), tolerance)
    timed = [(size, size[2]) for size in sizes] + [(MAMBA2, 1)]
    for size, groups in timed:
        work = "linear_attention B{} T{} H{} K{} V{} bf16, gate per head".format(*size)
        who = "ours" if groups == size[2] else f"ours, {groups} group of q and k"
        x = attention_inputs(*size, "head", groups=groups)
        table.time(work, who, attention, x, repeats)
        if groups == size[2]:
            with settings(scalar, backward=shared.backward):
                table.time(work, "ours, gradients of shared heads", attention, x, repeats)


def short_rows(table: Table, repeats: int) -> None:
    from statetrack.ops.linear_attention.triton import choose

    fp32 = torch.float32
    for *size, dtype in [
        (1024, 40, 4, 64, 65, fp32),  # mLSTM
        (1024, 40, 4, 64, 64, BF16),
        (1024, 40, 4, 32, 32, BF16),
        (256, 64, 4, 64, 64, BF16),
        (256, 64, 4, 32, 32, BF16),
    ]:
        kind = "fp32" if dtype == fp32 else "bf16"
        work = "linear_attention B{} T{} H{} K{} V{}".format(*size) + f" {kind}, gate per head"
        x = attention_inputs(*size, "head", dtype)
        for form in ("recurrence", "chunks", "whole"):
            chosen = {
                "runs_whole": lambda *_, form=form: form == "whole",
                "runs_in_chunks": lambda *_, form=form: form == "chunks",
            }
            with settings(choose, **chosen):
                table.time(work, f"ours, {form}", attention, x, repeats)


def peer_rows(table: Table, sizes: list[tuple[int, ...]], repeats: int) -> None:
    for gate in ("head", "key"):
        for who, run in fla_peers(gate).items():
            for size in sizes:
                work = "linear_attention B{} T{} H{} K{} V{} bf16".format(*size)
                x = for_peer(attention_inputs(*size, gate))
                table.time(f"{work}, gate per {gate}", who, run, x, repeats)
    ssd = ssd_peer()
    if ssd is not None:
        work = "linear_attention B{} T{} H{} K{} V{} bf16, gate per head".format(*MAMBA2)
        x = for_peer(attention_inputs(*MAMBA2, "head", groups=1))
        table.time(work, "mamba-ssm SSD, 1 group of q and k", ssd, x, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="selective, linear_attention, quick, short or peers"
    )
    parser.add_argument("--peers", type=Path, help="folder that holds fla, mamba_ssm or both")
    parser.add_argument("--pick", choices=PICKS, help="one tile for each kernel of a peer")
    parser.add_argument("--repeats", type=int, default=10)
    today = datetime.date.today().isoformat()
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / f"gpu_segments_{today}.json")
    args = parser.parse_args()
    if args.peers is not None:
        sys.path.insert(0, str(args.peers))
        if args.pick is not None:
            with_one_tile(args.pick)
    torch.manual_seed(0)
    table = Table(args.out)
    if args.only in "selective":
        selective_rows(table, [(8, 2048, 2048, 16), (1, 32768, 2048, 16)], args.repeats)
    sizes = [(1, 65536, 16, 128, 128), MAMBA2, (8, 4096, 16, 128, 128)]
    if args.only in "linear_attention":
        attention_rows(table, sizes, args.repeats)
    if args.only == "quick":
        quick_rows(table, sizes, args.repeats)
    if args.only in "short":
        short_rows(table, args.repeats)
    if args.only in "peers" and args.peers is not None:
        peer_rows(table, sizes, args.repeats)


if __name__ == "__main__":
    main()
