"""The scans at their edges: exact signs and permutations, the map from Δ to a, memory, threads."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops._dispatch import _MODULES
from tests.helpers import relative_error
from tests.ops.cases import expect_exact_ends

DOUBLE = torch.float64


def backends(op: str) -> list[str]:
    return [name for name in _MODULES[op] if name != "triton"]


diagonal = pytest.mark.parametrize("backend", backends("diagonal_scan"))
selective = pytest.mark.parametrize("backend", backends("selective_scan"))
dense = pytest.mark.parametrize("backend", backends("matrix_scan"))
slstm = pytest.mark.parametrize("backend", backends("slstm_scan"))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def selective_inputs(
    batch: int, time: int, channels: int, state: int, dtype: torch.dtype = DOUBLE
) -> dict[str, Tensor]:
    g = generator()

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    return {
        "u": normal(batch, time, channels),
        "delta": normal(batch, time, channels).exp(),
        "A": -normal(channels, state).exp(),
        "B": normal(batch, time, state),
        "C": normal(batch, time, state),
        "D": normal(channels),
    }


def saved_tensors(run: Callable[[], object]) -> list[Tensor]:
    """What autograd keeps for the backward while `run` runs."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return kept


# --- diagonal_scan


@diagonal
def test_gradients_on_the_unit_circle(backend: str) -> None:
    """A complex decay needs the conjugate in the backward; real tests cannot see it."""
    g = generator()
    angle = 6.3 * torch.rand(2, 9, 3, generator=g, dtype=DOUBLE)
    decay = torch.polar(torch.ones_like(angle), angle).requires_grad_()
    inputs = torch.randn(2, 9, 3, generator=g, dtype=torch.complex128).requires_grad_()
    start = torch.randn(2, 3, generator=g, dtype=torch.complex128).requires_grad_()
    run = lambda *args: ops.diagonal_scan(*args, backend=backend)  # noqa: E731
    assert torch.autograd.gradcheck(run, (decay, inputs, start))


@diagonal
def test_parity_is_exact_over_100_000_tokens(backend: str) -> None:
    bits = torch.randint(2, (2, 100_000), generator=generator())
    decay = (1 - 2 * bits).float()
    states, final = ops.diagonal_scan(
        decay, torch.zeros_like(decay), torch.ones(2), backend=backend
    )
    parity = bits.cumsum(1) % 2
    assert torch.equal(states, (1 - 2 * parity).float())
    assert torch.equal(final, states[:, -1])


@diagonal
def test_a_zero_forgets_everything_before_it(backend: str) -> None:
    g = generator()
    decay = torch.randn(1, 50, 4, generator=g).clamp(-1, 1)
    decay[:, 30] = 0
    inputs = torch.randn(1, 50, 4, generator=g)
    states, _ = ops.diagonal_scan(decay, inputs, torch.full((1, 4), 1e30), backend=backend)
    fresh, _ = ops.diagonal_scan(decay[:, 30:], inputs[:, 30:], backend=backend)
    assert torch.equal(states[:, 30], inputs[:, 30])
    assert relative_error(states[:, 30:], fresh) < 1e-6


@diagonal
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_any_number_of_channel_axes(backend: str, shape: tuple[int, ...]) -> None:
    g = generator()
    decay = torch.rand(2, 17, *shape, generator=g, dtype=DOUBLE) * 2 - 1
    inputs = torch.randn(2, 17, *shape, generator=g, dtype=DOUBLE)
    got, _ = ops.diagonal_scan(decay, inputs, backend=backend)
    want, _ = ops.diagonal_scan(decay, inputs, backend="reference")
    assert got.shape == inputs.shape and relative_error(got, want) < 1e-12


# --- selective_scan


def scan_loss(inputs: dict[str, Tensor], weight: Tensor, backend: str) -> Tensor:
    y, _ = ops.selective_scan(**inputs, low=-1.0, backend=backend)
    return (y * weight).sum()


def shortcut_grad_A(inputs: dict[str, Tensor], weight: Tensor) -> Tensor:
    """dA as unsigned Mamba may compute it: exp(Δ A) h_{t-1} read off as h_t - Δ_t u_t B_t."""
    delta, u, A, B, C = (inputs[name] for name in ("delta", "u", "A", "B", "C"))
    a = 2 * torch.exp(delta[..., None] * A) - 1
    written = (delta * u)[..., None] * B[:, :, None, :]
    h, _ = ops.diagonal_scan(a, written, backend="reference")
    g, grad = torch.zeros_like(h[:, 0]), torch.zeros_like(A)
    for t in reversed(range(h.shape[1])):
        g = g + weight[:, t, :, None] * C[:, t, None, :]
        grad += (g * delta[:, t, :, None] * 2 * (h[:, t] - written[:, t])).sum(0)
        g = a[:, t] * g
    return grad


@selective
def test_grad_of_A_by_finite_differences_and_not_the_shortcut(backend: str) -> None:
    inputs = selective_inputs(2, 12, 3, 2)
    weight = torch.randn(2, 12, 3, generator=generator(1), dtype=DOUBLE)
    A = inputs["A"].clone().requires_grad_()
    (grad,) = torch.autograd.grad(scan_loss(inputs | {"A": A}, weight, backend), A)

    expected = torch.empty_like(grad)
    for index in torch.cartesian_prod(torch.arange(3), torch.arange(2)):
        step = torch.zeros_like(grad)
        step[tuple(index)] = 1e-6
        above = scan_loss(inputs | {"A": inputs["A"] + step}, weight, "reference")
        below = scan_loss(inputs | {"A": inputs["A"] - step}, weight, "reference")
        expected[tuple(index)] = (above - below) / 2e-6

    assert relative_error(grad, expected) < 1e-7
    assert relative_error(shortcut_grad_A(inputs, weight), expected) > 0.1


@selective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_ends_of_the_range_are_exact(backend: str, low: float, dtype: torch.dtype) -> None:
    expect_exact_ends(backend, low, dtype)


@selective
def test_signs_flip_exactly_for_10_000_tokens(backend: str) -> None:
    """Parity by Δ: a = -1 for a one, a = 1 for a zero."""
    bits = torch.randint(2, (2, 10_000, 1), generator=generator())
    delta = bits * 1e4
    ones, nothing = torch.ones(2, 10_000, 1), torch.zeros(2, 10_000, 1)
    y, _ = ops.selective_scan(
        nothing,
        delta,
        -torch.ones(1, 1),
        ones,
        ones,
        low=-1.0,
        initial_state=torch.ones(2, 1, 1),
        backend=backend,
    )
    assert torch.equal(y, 1.0 - 2 * (bits.cumsum(1) % 2))


@selective
def test_small_delta_in_float32_keeps_its_digits(backend: str) -> None:
    """exp near 0 and over its whole range is as good as float32 allows."""
    delta = torch.logspace(-6, 2, 2001)[None, None]
    channels = delta.shape[2]
    A = -torch.ones(channels, 1)
    one = torch.ones(1, 1, 1)
    start = torch.ones(1, channels, 1)
    u = torch.zeros_like(delta)
    _, final = ops.selective_scan(
        u, delta, A, one, one, low=0.0, initial_state=start, backend=backend
    )
    exact = torch.exp(-delta.double())[0, 0]
    normal = exact > torch.finfo(torch.float32).tiny
    error = (final[0, :, 0].double() - exact).abs() / exact
    assert error[normal].max() < 2.5e-7
    assert (final[0, ~normal, 0].double() - exact[~normal]).abs().max() < 1.2e-38


@selective
def test_without_D(backend: str) -> None:
    inputs = selective_inputs(2, 40, 5, 3)
    del inputs["D"]
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    y, _ = ops.selective_scan(**leaves, backend=backend)
    want, _ = ops.selective_scan(**leaves, backend="reference")
    assert relative_error(y, want) < 1e-12
    names = list(leaves)
    got = torch.autograd.grad(y.cos().sum(), [leaves[n] for n in names])
    exact = torch.autograd.grad(want.cos().sum(), [leaves[n] for n in names])
    for name, a, b in zip(names, got, exact, strict=True):
        assert relative_error(a, b) < 1e-10, name


@selective
@pytest.mark.parametrize("channels", [1, 63, 64, 65, 130])
def test_any_number_of_channels(backend: str, channels: int) -> None:
    """Kernels cut the channels into pieces; the last may be ragged."""
    inputs = selective_inputs(3, 35, channels, 2)
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    names = list(leaves)
    results = []
    for which in (backend, "reference"):
        y, state = ops.selective_scan(**leaves, low=-0.5, backend=which)
        grads = torch.autograd.grad(y.sin().sum() + state.sum(), [leaves[n] for n in names])
        results.append([y, state, *grads])
    for name, got, want in zip(["y", "state", *names], *results, strict=True):
        assert relative_error(got, want) < 1e-10, name


@pytest.mark.parametrize("backend", backends("selective_scan")[1:])
def test_saved_memory_is_linear_and_without_the_state_axis(backend: str) -> None:
    batch, channels, state = 2, 8, 16

    def saved(time: int) -> list[Tensor]:
        inputs = selective_inputs(batch, time, channels, state, torch.float32)
        leaves = {name: x.requires_grad_() for name, x in inputs.items()}
        kept = saved_tensors(lambda: ops.selective_scan(**leaves, backend=backend))
        assert kept
        assert max(x.numel() for x in kept) < batch * time * channels * state
        return kept

    short, long = (sum(x.numel() for x in saved(time)) for time in (512, 1024))
    assert 1.9 < long / short < 2.1


# --- matrix_scan


@dense
@pytest.mark.parametrize("n", [5, 17])
def test_permutations_stay_permutations_for_10_000_tokens(backend: str, n: int) -> None:
    g = generator()
    order = torch.stack([torch.randperm(n, generator=g) for _ in range(10_000)])
    A = torch.eye(n)[order][None]
    states, final = ops.matrix_scan(A, torch.arange(float(n))[None, :, None], backend=backend)
    expected = torch.arange(n)
    for t in range(10_000):
        expected = expected[order[t]]
        if t % 500 == 0:
            assert torch.equal(states[0, t, :, 0], expected.float())
    assert torch.equal(final[0, :, 0], expected.float())


@dense
@pytest.mark.parametrize("n", [3, 16, 17, 40])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_small_and_large_matrices(backend: str, n: int, with_inputs: bool) -> None:
    """Small ones go by products of transitions, large ones step by step: one answer."""
    g = generator()
    A = torch.linalg.qr(torch.randn(2, 30, n, n, generator=g, dtype=DOUBLE)).Q
    start = torch.randn(2, n, 2, generator=g, dtype=DOUBLE)
    inputs = torch.randn(2, 30, n, 2, generator=g, dtype=DOUBLE) if with_inputs else None
    leaves = [x.requires_grad_() for x in (A, start, inputs) if x is not None]
    results = []
    for which in (backend, "reference"):
        states, final = ops.matrix_scan(*leaves, backend=which)
        loss = states.sin().sum() + (final * final).sum()
        results.append([states, final, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*results, strict=True):
        assert relative_error(got, want) < 1e-11


# --- slstm_scan


@slstm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_empty_state_gives_no_nan(backend: str, dtype: torch.dtype) -> None:
    """m = -∞ at the start, in the forward and in every gradient, given or not."""
    g = generator()
    gates = torch.randn(2, 7, 4, 2, 5, generator=g, dtype=dtype).requires_grad_()
    R = (0.3 * torch.randn(4, 2, 5, 5, generator=g, dtype=dtype)).requires_grad_()
    start = torch.zeros(2, 4, 2, 5, dtype=dtype)
    start[:, 2] = -torch.inf
    start.requires_grad_()
    implicit, state = ops.slstm_scan(gates, R, backend=backend)
    explicit, _ = ops.slstm_scan(gates, R, start, backend=backend)
    assert torch.equal(implicit, explicit)
    grads = torch.autograd.grad(explicit.sum(), [gates, R, start])
    assert all(x.isfinite().all() for x in (explicit, state, *grads))
    assert (grads[2][:, 2] == 0).all()


@slstm
def test_large_gates_do_not_overflow(backend: str) -> None:
    """Input gates of ±200 would overflow e^ĩ; the stabiliser keeps float32 right."""
    g = generator()
    gates = 200 * torch.randn(2, 30, 4, 2, 4, generator=g)
    R = 0.3 * torch.randn(4, 2, 4, 4, generator=g)
    got, _ = ops.slstm_scan(gates, R, backend=backend)
    want, _ = ops.slstm_scan(gates.double(), R.double(), backend="reference")
    assert relative_error(got, want) < 1e-4


@slstm
@pytest.mark.parametrize(("batch", "dim"), [(1, 1), (9, 6), (17, 16)])
def test_any_batch_and_dim(backend: str, batch: int, dim: int) -> None:
    """Kernels take several rows and four columns at a time; the last ones may be fewer."""
    g = generator()
    gates = torch.randn(batch, 11, 4, 2, dim, generator=g, dtype=DOUBLE).requires_grad_()
    R = (torch.randn(4, 2, dim, dim, generator=g, dtype=DOUBLE) / dim).requires_grad_()
    results = []
    for which in (backend, "reference"):
        h, state = ops.slstm_scan(gates, R, backend=which)
        loss = h.sin().sum() + state[:, [0, 1, 3]].sum()
        results.append([h, state, *torch.autograd.grad(loss, [gates, R])])
    for got, want in zip(*results, strict=True):
        assert relative_error(got, want) < 1e-10


# --- all of them


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
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)
