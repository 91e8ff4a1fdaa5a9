"""`dplr` on a GPU: token by token, in chunks, and fla's chunk_kda and chunk_rwkv7 beside them.

    PYTHONPATH=src python benchmarks/dplr.py [--peers FOLDER] [--out FILE] [CASE ...]

A case is form:shape, such as chunks:long. Each one has a process of its own. All compile at the
same time, and then one after the other is timed as the replay of CUDA graphs. Ours is first
compared with float64 token by token. fla tunes itself for minutes; here every kernel of it gets one
tile (`PICKS` in segments.py), so its times are no better than what it would find.
"""

import argparse
import datetime
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from segments import PICKS, graph_ms, steps, with_one_tile
from torch import Tensor

from statetrack import ops

Run = Callable[[dict[str, Tensor]], Tensor]
BF16 = torch.bfloat16
SHAPES = {  # batch, time, heads, key = value
    "long": (8, 4096, 16, 128),
    "longest": (1, 65536, 16, 128),
    "short": (8, 256, 16, 128),
    **{f"t{time}": (8192 // time, time, 8, 128) for time in (32, 64, 128, 256, 512)},
    **{f"d64 t{time}": (8192 // time, time, 8, 64) for time in (32, 128, 4096)},
}
CASES = [
    *(f"{form}:{shape}" for form in ("tokens", "chunks") for shape in SHAPES),
    *(f"{peer}, {pick}:long" for peer in ("kda", "rwkv7") for pick in PICKS),
    "kda, large:longest",
]


def vectors(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Unit q and k, v, β up to 2, and gates from 7/8 to 1, of which a tenth is negative."""
    batch, time, heads, size = shape
    g = torch.Generator("cuda").manual_seed(0)
    rows = (batch, time, heads, size)
    q, k, v = (torch.randn(rows, generator=g, device="cuda") for _ in range(3))
    beta = 2 * torch.rand(batch, time, heads, 1, generator=g, device="cuda")
    gate = 1 - torch.rand(rows, generator=g, device="cuda") / 8
    negative = torch.rand(rows, generator=g, device="cuda") < 0.1
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    return {"q": q, "k": k, "v": v, "beta": beta, "gate": gate, "negative": negative}


def ours(shape: tuple[int, ...]) -> dict[str, Tensor]:
    x = vectors(shape)
    decay = torch.where(x["negative"], -x["gate"], x["gate"])
    half = {"q": x["q"], "k": x["beta"] * x["k"], "v": x["v"]}
    half = {name: part.to(BF16) for name, part in half.items()}
    return half | {"decay": decay, "left": x["k"], "right": -x["beta"] * decay * x["k"]}


def run_ours(x: dict[str, Tensor]) -> Tensor:
    return ops.dplr(**x, backend="triton")[0]


def errors(x: dict[str, Tensor]) -> dict[str, float]:
    """Of y and of all gradients against float64, token by token."""
    found: list[list[Tensor]] = []
    for dtype in (torch.float32, torch.float64):
        wide = dtype == torch.float64
        leaves = {name: (t.double() if wide else t.clone()) for name, t in x.items()}
        leaves = {name: t.requires_grad_() for name, t in leaves.items()}
        y = run_ours(leaves)
        dy = (found[0][0] if wide else y).detach().to(y.dtype)
        found.append([y.detach(), *torch.autograd.grad(y, list(leaves.values()), dy)])
    return {
        name: ((a.double() - b).norm() / b.norm()).item()
        for name, a, b in zip(["y", *x], *found, strict=True)
    }


def fla(peer: str, pick: str, shape: tuple[int, ...]) -> tuple[Run, dict[str, Tensor]]:
    """fla knows no signs: it gets the logarithms of the sizes of the same gates."""
    with_one_tile(pick)
    x = vectors(shape)
    log = x["gate"].log()
    if peer == "kda":
        from fla.ops.kda import chunk_kda

        given = {name: x[name].to(BF16) for name in ("q", "k", "v")}
        given |= {"g": log, "beta": x["beta"][..., 0]}
        return lambda z: chunk_kda(**z, scale=1.0)[0], given
    from fla.ops.rwkv7 import chunk_rwkv7

    given = {"r": x["q"], "k": x["k"], "v": x["v"], "a": -x["k"], "b": x["k"] * x["beta"] / 2}
    given = {name: part.to(BF16) for name, part in given.items()}
    return lambda z: chunk_rwkv7(**z)[0], given | {"w": log}


def one(case: str, out: Path) -> None:
    """Checks and times one case, and adds a row to `out`."""
    form, name = case.split(":")
    shape = SHAPES[name]
    row: dict[str, Any] = {"case": case, "shape": shape}
    if form in ("tokens", "chunks"):
        from statetrack.ops.dplr.triton import choose

        choose.SHORTEST = 1 if form == "chunks" else sys.maxsize
        row["errors"] = errors(ours((2, 304, *shape[2:])))
        run, x = run_ours, ours(shape)
    else:
        run, x = fla(*form.split(", "), shape)
    timed = steps(run, x)
    for step in timed.values():
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with open(out.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        row |= {name: graph_ms(step, 10) for name, step in timed.items()}
        row["peak_mib"] = (torch.cuda.max_memory_allocated() - base) / 2**20
        import triton

        row |= {"torch": torch.__version__, "triton": triton.__version__}
        row |= {"device": torch.cuda.get_device_name(), "date": f"{datetime.date.today()}"}
        with open(out, "a") as rows:
            rows.write(json.dumps(row) + "\n")
    print(f"{case:28s} {row['forward']:9.3f} / {row['forward+backward']:9.3f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES, help="all of them if none is named")
    parser.add_argument("--peers", type=Path, help="folder that holds the package fla")
    parser.add_argument("--alone", action="store_true", help="one case, in this process")
    results = Path(__file__).parent / "results"
    today = datetime.date.today().isoformat()
    parser.add_argument("--out", type=Path, default=results / f"gpu_dplr_{today}.jsonl")
    args = parser.parse_args()
    if args.alone:
        return one(args.cases[0], args.out)
    env = os.environ.copy()
    if args.peers is not None:
        env["PYTHONPATH"] = os.pathsep.join([env.get("PYTHONPATH", ""), str(args.peers)])
    command = [sys.executable, __file__, "--alone", "--out", str(args.out)]
    cases = [case for case in args.cases if "," not in case or args.peers is not None]
    running = [(case, subprocess.Popen([*command, case], env=env)) for case in cases]
    failed = [case for case, process in running if process.wait() != 0]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    args.out.with_suffix(".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
