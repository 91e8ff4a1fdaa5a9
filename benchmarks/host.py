"""What calling an op costs the host in eager mode: directly, and through the registered op.

    python benchmarks/host.py              # one core, half a minute; writes results/host_DATE.json

One token of one head of size one through the delta rule on the CPU: next to nothing is computed.
"""

import datetime
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from statetrack import ops
from statetrack.ops import _register

CALLS, ROUNDS = 500, 15


def forward() -> None:
    with torch.no_grad():
        ops.delta_rule(q, q, q, beta, backend="numba")


def forward_backward() -> None:
    y, _ = ops.delta_rule(q, q, q, beta, backend="numba")
    torch.autograd.grad(y, (q, beta), y.detach())


def microseconds(phase: Callable[[], None]) -> float:
    """The best round of ROUNDS, per call."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            phase()
        times.append(time.perf_counter() - start)
    return min(times) / CALLS * 1e6


if __name__ == "__main__":
    torch.set_num_threads(1)
    q, beta = torch.ones(1, 1, 1, 1, requires_grad=True), torch.ones(1, 1, 1, requires_grad=True)
    today = datetime.date.today().isoformat()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    rows = []
    for who, is_plain in (("direct", _register._plain), ("registered op", lambda values: False)):
        _register._plain = is_plain
        for name, phase in (("forward", forward), ("forward+backward", forward_backward)):
            us = round(microseconds(phase), 1)
            print(f"{who:14s} {name:17s} {us:7.1f} us")
            rows.append(
                {
                    "work": "delta_rule B1 T1 H1 D1 fp32, numba",
                    "phase": name,
                    "who": who,
                    "us": us,
                    "device": "one core of a CPU",
                    "versions": versions,
                    "date": today,
                }
            )
    out = Path(__file__).parent / "results" / f"host_{today}.json"
    out.write_text(json.dumps(rows, indent=1) + "\n")
