"""Times the GPU kernels against their peers in one run; writes results/gpu_<date>.json.

    PYTHONPATH=src python benchmarks/gpu.py [--only delta] [--out FILE] [--no-peers]
    PYTHONPATH=src python benchmarks/gpu.py --sweep      # against T and batch, gpu_sweep_<date>
    PYTHONPATH=src python benchmarks/gpu.py --plot FILES # pictures of such rows, into docs/images

Each piece of work is first checked against the float64 reference on its first batch rows; only then
is it timed, eagerly and as the replay of a CUDA graph, over several input sets in turn so that no
cache holds them. Peers that are not importable are left out.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack import ops

SETS = 4
Run = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Work:
    """One op at one size: how to make inputs, and who can do it."""

    name: str
    make: Callable[[], dict[str, Tensor]]
    ours: Run
    reference: Run
    peers: dict[str, Run] = field(default_factory=dict)
    shared: tuple[str, ...] = ()  # inputs without a batch axis
    check_rows: int = 2  # batch rows that are compared with the reference


def delta_inputs(
    b: int, t: int, h: int, d: int, dtype: torch.dtype, *, n: int | None = None, gate: bool = False
) -> Callable[[], dict[str, Tensor]]:
    def make() -> dict[str, Tensor]:
        lead = (b, t, h) if n is None else (b, t, n, h)
        made = {
            "q": torch.randn(b, t, h, d, device="cuda", dtype=dtype),
            "k": torch.randn(*lead, d, device="cuda", dtype=dtype),
            "v": torch.randn(*lead, d, device="cuda", dtype=dtype),
            "beta": (2 * torch.rand(*lead, device="cuda")).to(dtype),
        }
        if gate:
            made["decay"] = (2 * torch.rand(b, t, h, device="cuda") - 1).to(dtype)
        return made

    return make


def delta(backend: str) -> Run:
    def run(x: dict[str, Tensor]) -> Tensor:
        op = ops.delta_rule if x["k"].dim() == 4 else ops.delta_product
        return op(**x, backend=backend)[0]

    return run


def fla_delta(name: str) -> Run | None:
    try:
        from fla.ops import delta_rule
    except ImportError:
        return None
    op = getattr(delta_rule, name)

    def run(x: dict[str, Tensor]) -> Tensor:
        return op(**x, scale=1.0, use_qk_l2norm_in_kernel=True)[0]

    return run


def fla_product(n: int) -> Run | None:
    try:
        from fla.ops.gated_delta_product import chunk_gated_delta_product
    except ImportError:
        return None

    def run(x: dict[str, Tensor]) -> Tensor:
        k, v, beta = (x[name].flatten(1, 2) for name in ("k", "v", "beta"))
        given = {"q": x["q"], "k": k, "v": v, "g": None, "beta": beta}
        options = {"num_householder": n, "scale": 1.0, "use_qk_l2norm_in_kernel": True}
        return chunk_gated_delta_product(**given, **options)[0]

    return run


def delta_work(
    label: str, b: int, t: int, h: int, d: int, dtype: torch.dtype, peers: tuple[str, ...], **extra
) -> Work:
    kind = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    runs = {name: run for name in peers if (run := fla_delta(name)) is not None}
    # The definition keeps a state per token. Far out, our own float64 kernel, which goes token by
    # token and is tested against it, takes its place.
    exact, rows = ("triton", 1) if t > 1024 else ("reference", 2)
    return Work(
        f"{label} B{b} T{t} H{h} D{d} {kind}",
        delta_inputs(b, t, h, d, dtype, **extra),
        delta("triton"),
        delta(exact),
        {f"fla {name}": run for name, run in runs.items()},
        check_rows=rows,
    )


def product_work(b: int, t: int, h: int, d: int, n: int) -> Work:
    work = delta_work(f"delta_product n={n}", b, t, h, d, torch.bfloat16, (), n=n)
    peer = fla_product(n)
    peers = {} if peer is None else {"fla chunk_gated_delta_product": peer}
    return dataclasses.replace(work, peers=peers)


def selective_work(b: int, t: int, c: int, n: int) -> Work:
    def make() -> dict[str, Tensor]:
        return {
            "u": torch.randn(b, t, c, device="cuda", dtype=torch.bfloat16),
            "delta": torch.rand(b, t, c, device="cuda").to(torch.bfloat16),
            "A": -4 * torch.rand(c, n, device="cuda"),
            "B": torch.randn(b, t, n, device="cuda", dtype=torch.bfloat16),
            "C": torch.randn(b, t, n, device="cuda", dtype=torch.bfloat16),
            "D": torch.randn(c, device="cuda"),
        }

    def run(backend: str) -> Run:
        return lambda x: ops.selective_scan(**x, low=-1.0, backend=backend)[0]

    name = f"selective_scan B{b} T{t} C{c} N{n} bf16"
    exact = "triton" if t > 4096 else "reference"  # as in `delta_work`
    return Work(name, make, run("triton"), run(exact), shared=("A", "D"))


def diagonal_work(b: int, t: int, m: int) -> Work:
    def make() -> dict[str, Tensor]:
        decay = 2 * torch.rand(b, t, m, device="cuda") - 1
        return {"decay": decay, "inputs": torch.randn(b, t, m, device="cuda")}

    def run(backend: str) -> Run:
        return lambda x: ops.diagonal_scan(**x, backend=backend)[0]

    name = f"diagonal_scan B{b} T{t} M{m} fp32"
    return Work(name, make, run("triton"), run("reference"))


def slstm_work(b: int, t: int, h: int, d: int) -> Work:
    def make() -> dict[str, Tensor]:
        return {
            "gates": torch.randn(b, t, 4, h, d, device="cuda"),
            "R": torch.randn(4, h, d, d, device="cuda") / d**0.5,
        }

    def run(backend: str) -> Run:
        return lambda x: ops.slstm_scan(**x, backend=backend)[0]

    name = f"slstm_scan B{b} T{t} H{h} D{d} fp32"
    peers = {"torch loop": run("reference")}
    return Work(name, make, run("triton"), run("reference"), peers, shared=("R",))


def attention_work(
    b: int,
    t: int,
    h: int,
    k: int,
    v: int,
    dtype: torch.dtype,
    peers: tuple[str, ...] = (),
    *,
    gate: str,
) -> Work:
    """Gates in (-1, 0]: ours take them as they are, a peer, which knows no sign, as logarithms."""

    def make() -> dict[str, Tensor]:
        gates = k if gate == "vector" else 1
        return {
            "q": torch.randn(b, t, h, k, device="cuda", dtype=dtype),
            "k": torch.randn(b, t, h, k, device="cuda", dtype=dtype) / k**0.5,
            "v": torch.randn(b, t, h, v, device="cuda", dtype=dtype),
            "decay": -torch.rand(b, t, h, gates, device="cuda").to(dtype),
        }

    def run(backend: str) -> Run:
        return lambda x: ops.linear_attention(**x, backend=backend)[0]

    kind = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    size = f"D{k}" if k == v else f"K{k} V{v}"
    name = f"linear_attention {gate} B{b} T{t} H{h} {size} {kind}"
    found = {f"fla {peer}": gla for peer in peers if (gla := fla_gla(peer)) is not None}
    exact, rows = ("triton", 1) if t > 1024 else ("reference", 2)  # as in `delta_work`
    return Work(name, make, run("triton"), run(exact), found, check_rows=rows)


def fla_gla(name: str) -> Run | None:
    try:
        from fla.ops import gla
    except ImportError:
        return None
    op = getattr(gla, name)

    def run(x: dict[str, Tensor]) -> Tensor:
        q, k, v, gates = x.values()
        return op(q, k, v, gates, scale=1.0)[0]

    return run


def convolution_work(b: int, t: int, c: int) -> Work:
    def make() -> dict[str, Tensor]:
        return {
            "x": torch.randn(b, t, c, device="cuda", dtype=torch.bfloat16),
            "weight": torch.randn(c, 4, device="cuda"),
            "bias": torch.randn(c, device="cuda"),
        }

    def run(backend: str) -> Run:
        return lambda x: ops.short_convolution(**x, activation="silu", backend=backend)[0]

    peers = {}
    try:
        from fla.modules.causal_conv1d import causal_conv1d

        peers["fla causal_conv1d"] = lambda x: causal_conv1d(**x, activation="silu")[0]
    except ImportError:
        pass
    name = f"short_convolution B{b} T{t} C{c} W4 bf16"
    return Work(name, make, run("triton"), run("reference"), peers, shared=("weight", "bias"))


def works() -> list[Work]:
    bf16, fp32 = torch.bfloat16, torch.float32
    fused, chunk = "fused_recurrent_delta_rule", "chunk_delta_rule"
    fused_gla = "fused_recurrent_gla"
    return [
        delta_work("delta_rule", 1024, 40, 4, 32, bf16, (fused, chunk)),
        delta_work("delta_rule", 1024, 40, 4, 32, fp32, (fused,)),
        delta_work("delta_rule", 1024, 64, 4, 32, bf16, (fused,)),
        delta_work("delta_rule", 1024, 64, 4, 32, fp32, (fused,)),
        delta_work("delta_rule", 1024, 256, 4, 32, bf16, (fused, chunk)),
        delta_work("delta_rule", 1024, 40, 4, 64, bf16, (fused,)),
        delta_work("delta_rule gated", 1024, 40, 4, 32, bf16, (), gate=True),
        delta_work("delta_product n=2", 1024, 40, 4, 32, bf16, (), n=2),
        delta_work("delta_rule", 8, 4096, 16, 128, bf16, (chunk,)),
        delta_work("delta_rule gated", 8, 4096, 16, 128, bf16, (), gate=True),
        product_work(8, 4096, 16, 128, 2),
        product_work(8, 4096, 16, 128, 4),
        selective_work(1024, 40, 256, 16),
        selective_work(8, 2048, 2048, 16),
        selective_work(1, 32768, 2048, 16),
        diagonal_work(1024, 40, 256),
        diagonal_work(8, 2048, 2048),
        slstm_work(512, 40, 4, 32),
        slstm_work(512, 256, 4, 32),
        attention_work(1024, 40, 4, 32, 32, bf16, (fused_gla,), gate="vector"),
        attention_work(1024, 40, 4, 32, 32, bf16, gate="scalar"),
        attention_work(1024, 40, 4, 64, 64, bf16, (fused_gla,), gate="vector"),
        attention_work(1024, 40, 4, 64, 65, fp32, gate="scalar"),
        attention_work(1024, 256, 4, 32, 32, bf16, (fused_gla,), gate="vector"),
        attention_work(8, 4096, 16, 128, 128, bf16, ("chunk_gla",), gate="vector"),
        attention_work(8, 4096, 16, 128, 128, bf16, gate="scalar"),
        attention_work(8, 4096, 32, 128, 64, bf16, gate="scalar"),
        attention_work(1, 65536, 16, 128, 128, bf16, ("chunk_gla",), gate="vector"),
        attention_work(1, 65536, 16, 128, 128, bf16, gate="scalar"),
        convolution_work(1024, 40, 384),
        convolution_work(8, 4096, 2048),
    ]


def sweeps() -> list[Work]:
    """Against T at 65,536 tokens in all, against batch at T 4096 and at T 40."""
    bf16 = torch.bfloat16
    chunk, fused, gla = "chunk_delta_rule", "fused_recurrent_delta_rule", "chunk_gla"
    long = [(65536 // t, t) for t in (256, 1024, 4096, 16384, 65536)]
    wide = [(b, 4096) for b in (1, 4, 64)]
    found = [delta_work("delta_rule", b, t, 16, 128, bf16, (chunk,)) for b, t in long + wide]
    found += [
        attention_work(b, t, 16, 128, 128, bf16, (gla,), gate="vector") for b, t in long + wide
    ]
    return found + [
        delta_work("delta_rule", b, 40, 4, 32, bf16, (fused,)) for b in (64, 256, 1024, 4096, 8192)
    ]


# ------------------------------------------------------------------------------------ measuring


def forward(run: Run, x: dict[str, Tensor], dy: Tensor) -> None:
    with torch.no_grad():
        run(x)


def forward_backward(run: Run, x: dict[str, Tensor], dy: Tensor) -> None:
    torch.autograd.grad(run(x), list(x.values()), dy)


PHASES = {"forward": forward, "forward+backward": forward_backward}


def check(work: Work, run: Run, tolerance: float) -> None:
    """Output and gradients of the first batch rows against the float64 reference."""
    x = work.make()
    rows = {n: t if n in work.shared else t[: work.check_rows] for n, t in x.items()}
    exact = {n: t.double().requires_grad_() for n, t in rows.items()}
    got = {n: t.clone().requires_grad_() for n, t in rows.items()}
    y, want = run(got), work.reference(exact)
    dy = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, list(got.values()), dy)]
    expected = [want, *torch.autograd.grad(want, list(exact.values()), dy.double())]
    for name, a, b in zip(["y", *got], found, expected, strict=True):
        error = ((a.double() - b).norm() / b.norm()).item()
        if not error < tolerance:
            raise AssertionError(f"{work.name}: {name} is off by {error:.2e}")


def timed(call: Callable[[int], None], repeats: int = 40) -> float:
    """Median milliseconds of call(i) by device events."""
    for i in range(max(2, repeats // 5)):
        call(i)
    marks = []
    for i in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(i)
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


def eager_and_graph(phase: str, run: Run, sets: list[dict[str, Tensor]], dy: Tensor, repeats: int):
    step = PHASES[phase]
    sets = [{n: t.detach().requires_grad_(phase != "forward") for n, t in x.items()} for x in sets]
    step(run, sets[0], dy)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(run, sets[0], dy)
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 1e6
    # several calls between events, as in training: the host may run ahead of the device
    eager = timed(lambda i: [step(run, x, dy) for x in sets], repeats) / len(sets)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for x in sets:
            step(run, x, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for x in sets:
                step(run, x, dy)
        replay = timed(lambda i: graph.replay(), repeats) / len(sets)
    except Exception as error:  # a peer that cannot be captured still has its eager time
        print(f"    no graph: {type(error).__name__}: {str(error)[:80]}")
        replay = None
    return eager, replay, peak


def first_call(index: int) -> float:
    """Seconds of the first forward and backward in a fresh process with an empty kernel cache."""
    code = (
        "import sys, time, torch; sys.path.insert(0, 'benchmarks'); import gpu;"
        f"w = gpu.works()[{index}]; x = {{n: t.requires_grad_() for n, t in w.make().items()}};"
        "torch.cuda.synchronize(); t = time.perf_counter(); y = w.ours(x);"
        "torch.autograd.grad(y.sum(), list(x.values())); torch.cuda.synchronize();"
        "print(time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as empty:
        env = os.environ | {"TRITON_CACHE_DIR": empty}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
    return float(done.stdout.split()[-1])


def decode_rows(row: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """One token with a state, as a graph replay."""
    rows = []
    for batch in (1, 16, 256):
        x = delta_inputs(batch, 1, 4, 64, torch.bfloat16)()
        state = torch.randn(batch, 4, 64, 64, device="cuda")

        def step(i: int, x: dict[str, Tensor] = x, state: Tensor = state) -> None:
            ops.delta_rule(**x, initial_state=state, backend="triton")

        with torch.no_grad():
            step(0)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(20):
                    step(i)
            eager = timed(step)
            replay = timed(lambda i, graph=graph: graph.replay()) / 20
        name = f"delta_rule decode B{batch} H4 D64 bf16"
        rows += [row(name, "decode", "ours", "eager", eager, None)]
        rows += [row(name, "decode", "ours", "graph", replay, None)]
    return rows


def plot(rows: list[dict[str, Any]]) -> None:
    """Forward+backward against T and batch, as graphs replay: lines of three points or more.

    Along a line against T the batch is fixed, or the number of tokens; against batch it is T.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, dict[str, list[tuple[int, float]]]] = {"length": {}, "batch": {}}
    for row in rows:
        size = re.fullmatch(r"(.*) B(\d+) T(\d+) (.*)", row["work"])
        if size and row["mode"] == "graph" and row["phase"] == "forward+backward":
            op, (b, t), rest = size[1], (int(size[2]), int(size[3])), size[4]
            for picture, x, fixed in (
                ("length", t, f"B{b}"),
                ("length", t, f"{b * t:,} tokens"),
                ("batch", b, f"T{t}"),
            ):
                line = f"{op} {fixed} {rest}, {row['who']}"
                lines[picture].setdefault(line, []).append((x, row["ms"]))
    for picture, found in lines.items():
        found = {line: points for line, points in found.items() if len(set(points)) > 2}
        if not found:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        for line, points in found.items():
            style = "o-" if line.endswith("ours") else "x--"
            axes.loglog(*zip(*sorted(points), strict=True), style, label=line)
        axes.set_xlabel("tokens T of a sequence" if picture == "length" else "sequences")
        axes.set_ylabel("ms, forward and backward")
        figure.legend(loc="outside lower center", fontsize=7)
        images = Path(__file__).parents[1] / "docs" / "images"
        figure.savefig(images / f"gpu_against_{picture}.png", dpi=120)


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="substring of the work's name")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--skip-peer", default="none of them", help="substring of a peer's name")
    parser.add_argument("--no-first-call", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="times against T and batch instead")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument(
        "--plot",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="draw what is in these, measure nothing",
    )
    args = parser.parse_args()
    if args.plot:
        plot([row for file in args.plot for row in json.loads(file.read_text())])
        return
    import triton

    today = datetime.date.today().isoformat()
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    versions |= {name: version for name in ("fla-core",) if (version := installed(name))}
    device = torch.cuda.get_device_name()
    name = f"gpu_sweep_{today}.json" if args.sweep else f"gpu_{today}.json"
    out = args.out or Path(__file__).parent / "results" / name
    out.parent.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []

    def row(work: str, phase: str, who: str, mode: str, ms: float, peak: float | None):
        print(f"{work:42s} {phase:17s} {who:34s} {mode:6s} {ms:9.4f} ms  {peak or 0:8.1f} MB")
        return {
            "work": work,
            "phase": phase,
            "who": who,
            "mode": mode,
            "ms": ms,
            "peak_mb": peak,
            "device": device,
            "versions": versions,
            "date": today,
        }

    for index, work in enumerate(sweeps() if args.sweep else works()):
        if args.only not in work.name:
            continue
        torch.manual_seed(0)
        check(work, work.ours, 2e-2 if "bf16" in work.name else 2e-5)
        if not (args.no_first_call or args.sweep):
            seconds = first_call(index)
            rows.append(row(work.name, "first_call", "ours", "eager", 1e3 * seconds, None))
        sets = [work.make() for _ in range(SETS)]
        dy = torch.randn_like(work.ours(sets[0]))
        peers = {} if args.no_peers else work.peers
        runs = {"ours": work.ours} | {w: r for w, r in peers.items() if args.skip_peer not in w}
        for who, run in runs.items():
            start = time.perf_counter()
            for phase in PHASES:
                try:
                    eager, replay, peak = eager_and_graph(phase, run, sets, dy, args.repeats)
                except Exception as error:
                    print(f"{work.name} {who} {phase}: {type(error).__name__}: {str(error)[:100]}")
                    continue
                rows.append(row(work.name, phase, who, "eager", eager, peak))
                if replay is not None:
                    rows.append(row(work.name, phase, who, "graph", replay, peak))
            print(f"    {time.perf_counter() - start:.1f} s for {who}", flush=True)
            out.write_text(json.dumps(rows, indent=1) + "\n")  # what is done stays done
    if args.only in "decode" and not args.sweep:
        rows += decode_rows(row)
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
