"""The delta rule in chunks of 64 writes, kernel by kernel: checked, then timed.

    PYTHONPATH=src python benchmarks/delta_kernels.py [--only times] [--out FILE]

Every width of a state that a program may take along is compared with float64 tensor code, then the
widths in use are timed at four shapes: each launch by events around it, and all as a CUDA graph.
The look for a NaN in the final state, which the op does after them, is left out. Packed sequences,
of random lengths in one row, come last, beside the kernels that go token by token.
"""

import argparse
import collections
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from segments import graph_ms
from torch import Tensor

from statetrack import ops
from statetrack.ops._register import empty_grads
from statetrack.ops.delta.spec import Inputs
from statetrack.ops.delta.triton import chunked, recurrent

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHECKS = [  # micro-steps, tokens, K, V, gates
    (1, 200, 128, 128, "none"),
    (1, 300, 128, 128, "near one"),
    (1, 200, 96, 160, "any"),
    (2, 130, 64, 64, "near one"),
    (3, 50, 64, 64, "any"),
    (1, 200, 256, 160, "none"),
    (1, 300, 256, 64, "near one"),
    (2, 130, 192, 64, "any"),
]
PACKED = [(32768, 16, 128, 128, sequences) for sequences in (1, 16, 64, 256)]  # T, heads, K, V
SHAPES = [  # batch, tokens, heads, K, V
    (1, 65536, 16, 128, 128),
    (2, 16384, 16, 128, 128),
    (8, 4096, 16, 128, 128),
    (8, 4096, 6, 256, 512),  # Gated DeltaNet as its authors have it, at a width of 2048
]


def draw(b: int, t: int, n: int, h: int, key: int, value: int, gates: str) -> Inputs:
    g = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device=DEVICE)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, device=DEVICE)

    beta = (3 * uniform(b, t, n, h) - 0.5).clamp(0, 2)
    decay = None
    if gates == "near one":
        decay = (1 - uniform(b, t, h) / 3) * normal(b, t, h).sign()
        decay[:, 3::17] = 1
        decay[:, 5::19] = -1
    elif gates == "any":
        decay = (3 * uniform(b, t, h) - 1.5).clamp(-1, 1)
        decay[:, 7::31] = 0
    qkv = normal(b, t, h, key), normal(b, t, n, h, key), normal(b, t, n, h, value)
    q, k, v, beta = (x.bfloat16() for x in (*qkv, beta))
    return Inputs(q, k, v, beta, None if decay is None else decay.bfloat16(), True, 1.0, None)


def cut(time: int, sequences: int) -> Tensor:
    """Where so many sequences of random lengths begin in a row, and where the last one ends."""
    g = torch.Generator().manual_seed(0)
    inner = torch.randperm(time - 1, generator=g)[: sequences - 1].sort().values + 1
    ends = torch.cat([torch.tensor([0]), inner, torch.tensor([time])])
    return ends[None].int().to(DEVICE)


def forward_and_backward(
    inputs: Inputs, dy: Tensor, dstate: Tensor, offsets: Tensor | None = None
) -> tuple[Tensor, ...]:
    saved = chunked.forward(inputs, True, offsets)
    return *saved[:2], *chunked.backward(inputs, True, offsets, *saved, dy, dstate)


def token_by_token(
    inputs: Inputs, dy: Tensor, dstate: Tensor, offsets: Tensor, longest: int
) -> None:
    results = recurrent.empty(inputs, True, offsets, longest)
    recurrent.forward(inputs, results, True, offsets, longest, repair=False)
    grads = empty_grads(*inputs, offsets)
    recurrent.backward(inputs, offsets, longest, *results[1:], dy, dstate, grads)


def errors(inputs: Inputs, offsets: Tensor | None = None) -> dict[str, float]:
    """Relative, of y, the state and all gradients."""
    named = {n: x for n, x in inputs._asdict().items() if isinstance(x, Tensor)}
    wide = {n: x.double().requires_grad_() for n, x in named.items()}
    packing = None if offsets is None else ops.Packing(offsets, inputs.q.shape[1])
    y, state = ops.delta_product(**wide, backend="torch", cu_seqlens=packing)
    dy, dstate = torch.randn_like(y).bfloat16(), torch.randn_like(state).float()
    grads = torch.autograd.grad([y, state], list(wide.values()), [dy.double(), dstate.double()])
    expected = dict(zip(["y", "state", *(f"d{n}" for n in wide)], [y, state, *grads], strict=True))
    names = [f"d{n}" for n in inputs._fields if n not in ("normalize", "scale")]
    results = forward_and_backward(inputs, dy, dstate, offsets)
    got = dict(zip(["y", "state", *names, "doffsets"], results, strict=True))
    return {
        n: ((got[n].double() - want).norm() / want.norm()).item() for n, want in expected.items()
    }


def by_kernel(step: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median milliseconds of every launch."""
    plain, marks = chunked.launch, []

    def launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        plain(kernel, grid, *args, **options)
        end.record()
        name = kernel.__name__.strip("_").removesuffix("_kernel")
        marks.append((name + (", mild" if options.get("MILD") else ""), start, end))

    chunked.launch = launch
    try:
        for _ in range(repeats):
            step()
    finally:
        chunked.launch = plain
    torch.cuda.synchronize()
    found = collections.defaultdict(list)
    for name, start, end in marks:
        found[name].append(start.elapsed_time(end))
    return {name: round(statistics.median(times), 4) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", choices=("checks", "times"))
    parser.add_argument("--work", default="", help="substrings of what is timed, by commas")
    args = parser.parse_args()
    rows = []

    def wanted(work: str) -> bool:
        return args.only != "checks" and any(words in work for words in args.work.split(","))

    def keep(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        rows.append(row)
        if args.out is not None:
            args.out.write_text("\n".join(map(json.dumps, rows)) + "\n")

    choose = chunked._carry_values
    for case in CHECKS if args.only != "times" else ():
        for values in chunked._widths(case[2]):
            chunked._carry_values = lambda heads, key, value, values=values: values
            for offsets in (None, cut(case[1], 4)):
                found = errors(draw(1, case[1], case[0], 2, *case[2:]), offsets)
                right = all(x < (5e-5 if n == "state" else 1e-2) for n, x in found.items())
                packed = offsets is not None
                about = {"kind": "check", "values": values, "case": case, "packed": packed}
                keep(about | {"right": right} | found)
    chunked._carry_values = choose
    for b, t, h, key, value in SHAPES:
        for gates in ("none", "near one", "any"):
            work = f"B{b} T{t} H{h} K{key} V{value}, gates: {gates}"
            if not wanted(work):
                continue
            inputs = draw(b, t, 1, h, key, value, gates)
            dy = torch.randn(b, t, h, value, device=DEVICE).bfloat16()
            dstate = torch.zeros(b, h, key, value, device=DEVICE)
            both = lambda i=inputs, y=dy, s=dstate: forward_and_backward(i, y, s)  # noqa: E731
            forward = lambda i=inputs: chunked.forward(i, False)  # noqa: E731
            both(), forward()
            row: dict[str, Any] = {"kind": "time", "work": work}
            row |= {"forward": by_kernel(forward, 5), "forward+backward": by_kernel(both, 5)}
            row["graph"] = [graph_ms(forward, args.repeats), graph_ms(both, args.repeats)]
            keep(row)
    for t, h, key, value, sequences in PACKED:
        for gates in ("none", "near one"):
            work = f"T{t} H{h} K{key} V{value} in {sequences} sequences, gates: {gates}"
            if not wanted(work):
                continue
            inputs, offsets = draw(1, t, 1, h, key, value, gates), cut(t, sequences)
            dy = torch.randn(1, t, h, value, device=DEVICE).bfloat16()
            given = inputs, dy, torch.zeros(sequences, h, key, value, device=DEVICE), offsets
            forward = lambda i=inputs, o=offsets: chunked.forward(i, False, o)  # noqa: E731
            both = lambda x=given: forward_and_backward(*x)  # noqa: E731
            longest = int(offsets.diff().max())
            slow = lambda x=(*given, longest): token_by_token(*x)  # noqa: E731
            both(), forward(), slow()
            row = {"kind": "packed", "work": work}
            row["graph"] = [graph_ms(step, args.repeats) for step in (forward, both)]
            keep(row | {"token by token, with backward": graph_ms(slow, 1)})


if __name__ == "__main__":
    main()
