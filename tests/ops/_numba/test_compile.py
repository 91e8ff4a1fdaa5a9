"""Compiled loops: any number of threads, calls from many, forks, no cache folder."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.ops.cases import generator, selective_inputs


def runs() -> dict[str, Callable[[str], list[Tensor]]]:
    """A forward and backward of each op, in float32, as a list of all results."""
    g = generator(3)
    gates = torch.randn(9, 21, 4, 2, 8, generator=g).requires_grad_()
    R = (0.3 * torch.randn(4, 2, 8, 8, generator=g)).requires_grad_()
    decay = (torch.rand(5, 33, 300, generator=g) * 2 - 1).requires_grad_()
    inputs = torch.randn(5, 33, 300, generator=g).requires_grad_()
    mixer = selective_inputs(5, 70, 100, 4, torch.float32)
    leaves = {name: x.requires_grad_() for name, x in mixer.items()}
    k, v = (torch.randn(3, 70, 2, 5, d, generator=g).requires_grad_() for d in (8, 6))
    beta = (2 * torch.rand(3, 70, 2, 5, generator=g)).requires_grad_()
    gate = torch.rand(3, 70, 5, generator=g).requires_grad_()
    x = torch.randn(3, 33, 700, generator=g).requires_grad_()
    taps = torch.randn(700, 4, generator=g).requires_grad_()

    def results(y: Tensor, wanted: list[Tensor]) -> list[Tensor]:
        return [y, *torch.autograd.grad(y.sin().sum(), wanted)]

    return {
        "diagonal_scan": lambda backend: results(
            ops.diagonal_scan(decay, inputs, backend=backend)[0], [decay, inputs]
        ),
        "selective_scan": lambda backend: results(
            ops.selective_scan(**leaves, backend=backend)[0], list(leaves.values())
        ),
        "delta_product": lambda backend: results(
            ops.delta_product(k[:, :, 0], k, v, beta, gate, backend=backend)[0], [k, v, beta, gate]
        ),
        "slstm_scan": lambda backend: results(
            ops.slstm_scan(gates, R, backend=backend)[0], [gates, R]
        ),
        "short_convolution": lambda backend: results(
            ops.short_convolution(x, taps, activation="silu", backend=backend)[0], [x, taps]
        ),
    }


@pytest.mark.parametrize("op", list(runs()))
def test_the_number_of_threads_changes_no_bit(op: str) -> None:
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(runs()[op]("numba"))
    finally:
        torch.set_num_threads(before)
    one, *others = results
    for other in others:
        # the sLSTM's dR is a matrix product of torch's, whose own sums may move with its threads
        for a, b in list(zip(one, other, strict=True))[: 2 if op == "slstm_scan" else None]:
            assert torch.equal(a, b)


@pytest.mark.parametrize("op", list(runs()))
def test_calls_from_many_threads_at_once(op: str) -> None:
    run = runs()[op]
    expected = run("numba")
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            got = run("numba")
            if not all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)):
                wrong.append(number)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(before)
    assert not wrong


def test_kernels_work_in_a_forked_process_and_without_a_cache_folder() -> None:
    """Worker threads do not survive a fork, and a read-only installation has nowhere to cache."""
    script = textwrap.dedent(
        """
        import os
        import torch
        from numba.core import caching
        caching.CodeLibraryCacheImpl._locator_classes = []
        caching.CompileResultCacheImpl._locator_classes = []
        from statetrack import ops
        torch.set_num_threads(2)
        decay, x = torch.full((4, 9, 3), -1.0), torch.zeros(4, 9, 3)
        run = lambda: ops.diagonal_scan(decay, x, torch.ones(4, 3), backend="numba")[1]
        assert run().sum() == -12
        child = os.fork()
        if child == 0:
            os._exit(0 if run().sum() == -12 else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_kernel_on_disk_is_compiled_again_when_functions_have_changed(tmp_path: Path) -> None:
    """They are inlined, and numba looks at the kernel's own file alone."""
    script = textwrap.dedent(
        """
        import sys
        import torch
        from statetrack import ops
        from statetrack.ops._numba import compile
        compile._FUNCTIONS = sys.argv[1]
        ops.diagonal_scan(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), backend="numba")
        from statetrack.ops.diagonal import numba as kernels
        stats = kernels._forward_kernel.stats
        print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
        """
    )

    def hits_and_misses(functions: str) -> list[str]:
        command = [sys.executable, "-c", script, functions]
        cache = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=cache)
        return done.stdout.split()

    assert hits_and_misses("old") == ["0", "1"]
    assert hits_and_misses("old") == ["1", "0"]
    assert hits_and_misses("new") == ["0", "1"]
