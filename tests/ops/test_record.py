"""Which backends really ran: recorded where an op is called, traced or run by compiled code."""

import subprocess
import sys
import textwrap

import torch

from statetrack import ops

COMPILED = textwrap.dedent(
    """
    import torch
    from statetrack import ops

    for backend in ("reference", "torch", "numba"):
        run = torch.compile(
            lambda x, backend=backend: ops.diagonal_scan(x, x, backend=backend)[0],
            fullgraph=True, backend="aot_eager",
        )
        x = torch.full((1, 3), 0.5)
        with ops.record_backends() as traced:
            y = run(x)
        assert torch.equal(y, ops.diagonal_scan(x, x, backend=backend)[0])
        assert traced == {"diagonal_scan": [backend]}, traced
        with ops.record_backends() as again:
            run(x)
        expected = {} if backend == "reference" else {"diagonal_scan": [backend]}
        assert again == expected, again
    """
)


def scan(backend: ops.Backend) -> None:
    ops.diagonal_scan(torch.ones(1, 2), torch.ones(1, 2), backend=backend)


def test_every_backend_once_and_in_order() -> None:
    k = torch.ones(1, 2, 1, 3)
    with ops.record_backends() as used:
        scan("torch")
        scan("reference")
        scan("torch")
        ops.delta_rule(k, k, k, torch.ones(1, 2, 1), backend="torch")
    assert used == {"diagonal_scan": ["reference", "torch"], "delta_product": ["torch"]}
    scan("numba")
    assert used["diagonal_scan"] == ["reference", "torch"]


def test_auto_is_what_it_became() -> None:
    with ops.record_backends() as used:
        scan("auto")
    assert used == {"diagonal_scan": [ops.explain_backend("diagonal_scan").backend]}


def test_blocks_inside_blocks() -> None:
    with ops.record_backends() as outer:
        with ops.record_backends() as inner:
            scan("torch")
        scan("reference")
    assert inner == {"diagonal_scan": ["torch"]}
    assert outer == {"diagonal_scan": ["reference", "torch"]}


def test_nothing_where_nothing_ran() -> None:
    with ops.record_backends() as used:
        pass
    assert used == {}


def test_compiled_code_is_recorded_when_traced_and_when_run() -> None:
    """In a process of its own: the test run's shape checks cannot be traced."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
