"""What the delta rule on a CPU, chunks or loops, promises beyond agreeing with its definition.

Reflections stay reflections over 65,536 tokens, dyadic keys stay exact, memory grows with T only,
and micro-steps are not paid for where they do nothing.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statetrack.ops import delta_product, delta_rule, explain_backend, record_backends
from statetrack.ops.delta.spec import Inputs
from tests.helpers import relative_error

LONG = 65_536
each_backend = pytest.mark.parametrize("backend", ["torch", "numba"])


def reflect(k: Tensor, state: Tensor, backend: str, cut: int | None = None) -> Tensor:
    """The state after reflections (β = 2) along k [batch, time, 1, key], `cut` tokens per call."""
    batch, time, _, _ = k.shape
    v = k.new_zeros(batch, time, 1, state.shape[-1])
    beta = k.new_full((batch, time, 1), 2.0)
    for t in range(0, time, cut or time):
        now = slice(t, t + (cut or time))
        _, state = delta_rule(
            k[:, now], k[:, now], v[:, now], beta[:, now], initial_state=state, backend=backend
        )
    return state


def key_sequences(size: int, time: int, seeds: int = 1) -> tuple[Tensor, Tensor]:
    """Keys [2·seeds, time, 1, size], the same one for ever or five in random order; and states."""
    generator = torch.Generator().manual_seed(size)
    sequences = []
    for _ in range(seeds):
        keys = torch.randn(5, size, generator=generator)
        order = torch.randint(5, (time,), generator=generator)
        sequences += [keys[:1].expand(time, -1), keys[order]]
    k = torch.stack(sequences)[:, :, None]
    return k, torch.randn(2 * seeds, 1, size, 16, generator=generator)


def norm_drift(end: Tensor, start: Tensor) -> float:
    """The largest relative change of norm in the batch."""
    return (end.flatten(1).norm(dim=1) / start.flatten(1).norm(dim=1) - 1).abs().max().item()


@pytest.mark.parametrize("size", [16, 32, 64, 128])
@each_backend
def test_norm_stays_over_65536_reflections(backend: str, size: int) -> None:
    k, state = key_sequences(size, LONG)
    end = reflect(k, state, backend)
    assert norm_drift(end, state) < 1e-3
    # 65,536 is even, so one key leaves the state where it was, direction included
    assert relative_error(end[0], state[0]) < 1e-3


@each_backend
def test_norm_stays_after_writes_in_the_first_tokens(backend: str) -> None:
    k, _ = key_sequences(32, LONG)
    v = torch.zeros(2, LONG, 1, 16)
    v[:, :16].normal_(generator=torch.Generator().manual_seed(0))
    beta = torch.full((2, LONG, 1), 2.0)
    _, start = delta_rule(k[:, :16], k[:, :16], v[:, :16], beta[:, :16], backend="reference")
    _, end = delta_rule(k, k, v, beta, backend=backend)
    assert norm_drift(end, start) < 1e-3


@pytest.mark.parametrize(("cut", "time"), [(1, 1024), (7, 4096), (33, 8192), (1000, LONG)])
@each_backend
def test_norm_stays_however_the_sequence_is_cut(backend: str, cut: int, time: int) -> None:
    """Per token the drift may be a 65,536th of what 65,536 tokens may have."""
    k, state = key_sequences(16, time, seeds=1 if time == LONG else 16)
    assert norm_drift(reflect(k, state, backend, cut), state) < 1e-3 * time / LONG


@pytest.mark.parametrize("size", [32, 128])
@each_backend
def test_bfloat16_inputs_keep_the_float32_accuracy_of_the_state(backend: str, size: int) -> None:
    """Error against float64 on the same rounded inputs, as in docs/measurements/numerics.md."""
    k, state = key_sequences(size, 2048)
    k = k.bfloat16()
    end = reflect(k, state, backend)
    assert end.dtype == torch.float32
    wide, v = k.double(), torch.zeros(2, 2048, 1, 16, dtype=torch.float64)
    beta = torch.full((2, 2048, 1), 2.0, dtype=torch.float64)
    _, exact = delta_rule(wide, wide, v, beta, initial_state=state.double(), backend="reference")
    assert relative_error(end, exact) < 1e-5


@each_backend
def test_parity_is_exact(backend: str) -> None:
    """One-hot key, β = 2 on a one and 0 on a zero, q = k: y is the parity, to the last bit."""
    bits = torch.randint(2, (3, 10_000, 1), generator=torch.Generator().manual_seed(0))
    k = torch.zeros(3, 10_000, 1, 4)
    k[..., 2] = 1.0
    v = torch.zeros(3, 10_000, 1, 2)
    y, _ = delta_rule(k, k, v, 2.0 * bits, initial_state=torch.ones(3, 1, 4, 2), backend=backend)
    parity = 1.0 - 2.0 * (bits.cumsum(1) % 2)
    assert torch.equal(y, parity[..., None].expand_as(y))


@pytest.mark.parametrize("doubled", [False, True], ids=["difference", "doubled"])
@pytest.mark.parametrize("cut", [None, 1], ids=["whole", "steps"])
@each_backend
def test_swaps_of_five_are_exact(backend: str, doubled: bool, cut: int | None) -> None:
    """10,000 swaps of two of five numbers, in float32, to the last bit.

    e_i - e_j with β = 1 and no normalisation is a swap, and so is β = 2 with the key of norm one
    (f_i - f_j)/2 when every number is held twice, f_i = e_{2i} + e_{2i+1}.
    """
    time = 10_000 if cut is None else 200
    generator = torch.Generator().manual_seed(0)
    pairs = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(time)])
    units = torch.eye(5).repeat_interleave(2, dim=1) / 2 if doubled else torch.eye(5)
    k = (units[pairs[:, 0]] - units[pairs[:, 1]])[None, :, None]
    beta = torch.full((1, time, 1), 2.0 if doubled else 1.0)
    numbers = torch.arange(1.0, 6.0)
    copies = 2 if doubled else 1
    state = numbers.repeat_interleave(copies)[None, None, :, None]
    expected = []
    for i, j in pairs.tolist():
        numbers[[i, j]] = numbers[[j, i]]
        expected.append(numbers.clone())
    reads = []
    for t in range(0, time, cut or time):
        part = slice(t, t + (cut or time))
        v = torch.zeros(1, k[:, part].shape[1], 1, 1)
        q = k[:, part]
        _, state = delta_rule(
            q, q, v, beta[:, part], normalize=doubled, initial_state=state, backend=backend
        )
        reads.append(state)
    assert torch.equal(state[0, 0, :, 0], expected[-1].repeat_interleave(copies))
    if cut:
        got = torch.stack(reads)[:, 0, 0, :, 0]
        assert torch.equal(got, torch.stack(expected).repeat_interleave(copies, dim=1))


@each_backend
def test_every_read_of_exact_swaps_is_exact(backend: str) -> None:
    """The same inside the chunks: y at every token is one of the numbers, to the last bit."""
    time = 10_000
    generator = torch.Generator().manual_seed(1)
    pairs = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(time)])
    k = (torch.eye(5)[pairs[:, 0]] - torch.eye(5)[pairs[:, 1]])[None, :, None]
    q = torch.eye(5)[torch.randint(5, (time,), generator=generator)][None, :, None]
    state = torch.arange(1.0, 6.0)[None, None, :, None]
    v, beta = torch.zeros(1, time, 1, 1), torch.ones(1, time, 1)
    y, _ = delta_rule(q, k, v, beta, normalize=False, initial_state=state, backend=backend)
    wide = (x.double() for x in (q, k, v, beta))
    exact, _ = delta_rule(*wide, normalize=False, initial_state=state.double(), backend="reference")
    assert torch.equal(y.double(), exact)


def inputs(
    time: int, micro: int, *, batch: int = 1, size: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """q, k, v, beta and decay, all leaves."""
    g = torch.Generator().manual_seed(time)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()

    beta = 2 * torch.rand(batch, time, micro, 2, generator=g, dtype=dtype)
    decay = 1 - 0.1 * torch.rand(batch, time, 2, generator=g, dtype=dtype)
    return (
        normal(batch, time, 2, size),
        normal(batch, time, micro, 2, size),
        normal(batch, time, micro, 2, size),
        beta.requires_grad_(),
        decay.requires_grad_(),
    )


def saved_bytes(run: Callable[[], Any]) -> int:
    """The memory autograd keeps between the forward and the backward pass."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = run()
    del results
    return sum(kept.values())


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor any operation returns, and every shape."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
                self.shapes.add(tuple(x.shape))
        return out


@pytest.mark.parametrize("micro", [1, 3])
@each_backend
def test_memory_kept_for_the_backward_is_linear_in_time(backend: str, micro: int) -> None:
    short, long = (
        saved_bytes(lambda time=time: delta_product(*inputs(time, micro), backend=backend))
        for time in (960, 1920)
    )
    assert 1.9 < long / short < 2.1


def test_no_work_tensor_grows_with_the_square_of_time() -> None:
    """And those that are not inputs, outputs or kept do not grow with time at all."""
    from statetrack.ops.delta import torch as chunks

    def largest(time: int) -> int:
        x = [t.detach() for t in inputs(time, 1, size=32)]
        given = Inputs(*x, True, 1.0, None)
        with LargestTensor() as seen:
            results = chunks._forward(given)
            grads = [torch.ones_like(r) for r in results[:2]]
            chunks._backward(given, *results, *grads)
        return seen.largest

    assert largest(16_384) / largest(4_096) < 4.1


@pytest.mark.parametrize("micro", [2, 4])
def test_queries_are_not_padded_to_micro_steps(micro: int) -> None:
    """All that has the row count n·T per chunk belongs to k, v or β: y and q stay at T rows."""
    from statetrack.ops.delta import torch as chunks

    key, value, time = 7, 5, 32 // micro
    q, k, _, beta, decay = (t.detach() for t in inputs(time, micro, size=key))
    v = torch.randn(1, time, micro, 2, value)
    given = Inputs(q, k, v, beta, decay, True, 1.0, None)
    calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is torch.ops.aten.bmm.default:
                calls.append((tuple(args[0].shape[1:]), tuple(args[1].shape[1:])))
            return func(*args, **(kwargs or {}))

    with Products():
        results = chunks._forward(given)
        chunks._backward(given, *results, *(torch.ones_like(r) for r in results[:2]))
    rows = time * micro
    assert ((time, key), (key, rows)) in calls  # Q Kᵀ
    assert ((time, value), (value, rows)) in calls  # dY Uᵀ
    assert ((rows, key), (key, rows)) in calls  # K Kᵀ, and nothing else of that size
    assert sum(call == ((rows, key), (key, rows)) for call in calls) == 2  # forward, backward
    assert sum(call == ((rows, value), (value, rows)) for call in calls) == 1  # dV εᵀ


@each_backend
def test_micro_steps_act_in_order(backend: str) -> None:
    """Two reflections do not commute: the first micro-step acts first, and the gate before it."""
    k = torch.tensor([[1.0, 0.0], [0.6, 0.8]])[None, None, :, None]
    v, beta = torch.zeros(1, 1, 2, 1, 2), torch.full((1, 1, 2, 1), 2.0)
    state = torch.eye(2)[None, None]
    first, second = (torch.eye(2) - 2 * torch.outer(x, x) for x in k[0, 0, :, 0])
    q = k[:, :, 0]
    _, end = delta_product(q, k, v, beta, initial_state=state, backend=backend)
    assert relative_error(end[0, 0], second @ first) < 1e-6
    # a gate of 0 empties the state but not what the token's own micro-steps write
    v = torch.ones_like(v)
    _, end = delta_product(
        q, k, v, beta, torch.zeros(1, 1, 1), initial_state=state, backend=backend
    )
    _, fresh = delta_product(q, k, v, beta, backend=backend)
    assert torch.equal(end, fresh)


@pytest.mark.parametrize("reset", [0, 1, 31, 32, 33, 99])
@each_backend
def test_zero_gate_resets(backend: str, reset: int) -> None:
    """What came before a gate of zero has no influence, neither on values nor through gradients."""
    q, k, v, beta, decay = inputs(100, 2, dtype=torch.float64)
    gate = decay.detach().clone()
    gate[:, reset] = 0.0
    gate.requires_grad_()
    y, end = delta_product(q, k, v, beta, gate, backend=backend)
    later, end_later = delta_product(
        q[:, reset:], k[:, reset:], v[:, reset:], beta[:, reset:], gate[:, reset:], backend=backend
    )
    assert relative_error(y[:, reset:], later) < 1e-12
    assert relative_error(end, end_later) < 1e-12
    grads = torch.autograd.grad(end.square().sum(), (k, v, beta))
    assert all(torch.count_nonzero(grad[:, :reset]) == 0 for grad in grads)
    assert all(torch.count_nonzero(grad[:, reset:]) > 0 for grad in grads)


@pytest.mark.parametrize("size", [1e4, 1e-4, 1e18, 1e-9])
@each_backend
def test_only_the_direction_of_a_key_counts(backend: str, size: float) -> None:
    q, k, v, beta, decay = inputs(70, 1)
    y, _ = delta_product(q, k, v, beta, decay, backend=backend)
    scaled, _ = delta_product(q * size, k * size, v, beta, decay, backend=backend)
    assert relative_error(scaled, y) < 1e-5
    grads = torch.autograd.grad(scaled.square().sum(), (q, k))
    expected = torch.autograd.grad(y.square().sum(), (q, k))
    for grad, exact in zip(grads, expected, strict=True):
        assert relative_error(grad, exact) < 1e-4


@each_backend
def test_a_zero_key_writes_nothing_and_has_no_gradient(backend: str) -> None:
    q, k, v, beta, decay = inputs(70, 1, dtype=torch.float64)
    k = k.detach().clone()
    k[:, 10:20] = 0.0
    k[:, 20:30] *= 1e-20
    k.requires_grad_()
    y, end = delta_product(q, k, v, beta, decay, backend=backend)
    grads = torch.autograd.grad(y.sum() + end.sum(), (q, k, v, beta, decay))
    assert all(grad.isfinite().all() for grad in grads)
    assert torch.count_nonzero(grads[1][:, 10:30]) == 0
    assert torch.count_nonzero(grads[2][:, 10:30]) == 0
    exact, _ = delta_product(q, k, v, beta, decay, backend="reference")
    assert relative_error(y, exact) < 1e-12


@pytest.mark.parametrize("micro", [1, 3])
@each_backend
def test_keys_as_they_are(backend: str, micro: int) -> None:
    """normalize=False uses k and q unchanged, forward and in every gradient."""
    leaves = inputs(100, micro, dtype=torch.float64)
    q, k, v, beta, decay = leaves
    k = k / k.norm(dim=-1, keepdim=True) * 0.9
    results = []
    for which in (backend, "reference"):
        y, end = delta_product(q, k, v, beta, decay, normalize=False, scale=0.3, backend=which)
        loss = y.sin().sum() + end.square().sum()
        results.append([y, end, *torch.autograd.grad(loss, leaves, retain_graph=True)])
    for got, exact in zip(*results, strict=True):
        assert relative_error(got, exact) < 1e-10


@pytest.mark.parametrize(("batch", "time", "micro"), [(37, 40, 1), (3, 300, 2), (1, 2500, 1)])
def test_tiles_join_without_a_seam(
    batch: int, time: int, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the tiles, in batch and in time, the results are those of one tile."""
    from statetrack.ops.delta import torch as chunks

    leaves = inputs(time, micro, batch=batch, dtype=torch.float64)
    state = torch.randn(batch, 2, 8, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for numbers in (2**40, 2**12, 1):
        monkeypatch.setattr(chunks, "TILE_NUMBERS", numbers)
        for initial in (state, None):
            y, end = delta_product(*leaves, initial_state=initial, backend="torch")
            wanted = leaves if initial is None else (*leaves, state)
            grads = torch.autograd.grad(y.sin().sum() + end.cos().sum(), wanted)
            results.append([y, end, *grads])
    for small in (2, 4):
        for offset in (0, 1):
            for got, exact in zip(results[small + offset], results[offset], strict=True):
                assert relative_error(got, exact) < 1e-11


def test_infinite_value_shows_from_its_token_on() -> None:
    q, k, v, beta, decay = (x.detach() for x in inputs(100, 2))
    v[0, 60, 1, 0, 3] = torch.inf
    y, end = delta_product(q, k, v, beta, decay, backend="torch")
    assert y[:, :60].isfinite().all()
    assert y[0, 60:, 0].isnan().all() and end[0, 0].isnan().all()
    assert y[0, :, 1].isfinite().all() and end[0, 1].isfinite().all()


# -- loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_heads_taken_together_change_no_bit(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three heads, one to three of them in a unit of work, over several kept states."""
    from statetrack.ops.delta import numba as loops

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 300, *n, 3, 8, generator=g) for n in ((), (2,), (2,)))
    beta, gate = 2 * torch.rand(2, 300, 2, 3, generator=g), torch.rand(2, 300, 3, generator=g)
    state = torch.randn(2, 3, 8, 8, generator=g)
    leaves = [x.requires_grad_() for x in (q, k, v, beta, state, *([gate] if gated else []))]
    results = []
    for numbers in (1, 2 * 64, 2**20):
        monkeypatch.setattr(loops, "UNIT_NUMBERS", numbers)
        y, end = delta_product(
            q, k, v, beta, gate if gated else None, initial_state=state, backend="numba"
        )
        results.append([y, end, *torch.autograd.grad(y.sin().sum() + end.cos().sum(), leaves)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_gradients_of_thousands_of_reflections_in_float32() -> None:
    """The backward takes the state back by subtraction, from kept states: errors do not pile up."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 3000, 1, 16, generator=g) for _ in range(3))
    beta = torch.full((1, 3000, 1), 2.0)
    results = []
    for backend, dtype in (("numba", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, beta)]
        y, end = delta_rule(*leaves, backend=backend)
        loss = y[:, ::100].square().sum() + end.square().sum()
        results.append([y, end, *torch.autograd.grad(loss, leaves)])
    for got, exact in zip(*results, strict=True):
        assert relative_error(got, exact) < 2e-5


def test_columns_of_the_state_do_not_mix() -> None:
    """An infinite value shows from its token on, in its own column and head."""
    q, k, v, beta, decay = (x.detach() for x in inputs(100, 2))
    v[0, 60, 1, 0, 3] = torch.inf
    y, end = delta_product(q, k, v, beta, decay, backend="numba")
    bad = ~y.isfinite()
    assert bad[0, 60:, 0, 3].all() and bad.sum() == 40
    assert (~end.isfinite()).sum() == 8 and not end[0, 0, :, 3].isfinite().any()


def test_nothing_is_kept_without_gradients() -> None:
    q, k, _, beta, decay = inputs(600, 2)
    v = torch.randn(1, 600, 2, 2, 5)
    seen = {}
    for grad in (True, False):
        with torch.set_grad_enabled(grad), LargestTensor() as tensors:
            delta_product(q, k, v, beta, decay, backend="numba")
        seen[grad] = tensors.shapes
    kept = {(1, 600, 2, 2, 5), (1, 2, 9, 8, 5)}  # e; the states before tokens 64, 128, … 576
    assert kept <= seen[True]
    assert not kept & seen[False]


@pytest.mark.parametrize(
    ("time", "key", "value", "grad", "expected"),
    [
        (40, 32, 64, True, "numba"),
        (40, 64, 64, True, "torch"),
        (49, 64, 128, True, "numba"),
        (49, 128, 128, True, "torch"),
        (1, 128, 128, False, "numba"),
        (1, 128, 129, False, "torch"),
    ],
)
def test_auto_takes_loops_for_small_states(
    time: int, key: int, value: int, grad: bool, expected: str
) -> None:
    q, v, beta = torch.ones(1, time, 1, key), torch.ones(1, time, 1, value), torch.ones(1, time, 1)

    def ran(function: Callable[..., object], *args: Tensor, backend: str = "auto") -> list[str]:
        with torch.set_grad_enabled(grad), record_backends() as used:
            function(*args, backend=backend)
        assert list(used) == ["delta_product"]
        return used["delta_product"]

    assert ran(delta_rule, q, q, v, beta) == [expected]
    assert ran(delta_product, q, q[:, :, None], v[:, :, None], beta[:, :, None]) == [expected]
    assert ran(delta_rule, q, q, v, beta, backend="numba") == ["numba"]  # what is asked for


def test_the_choice_is_explained() -> None:
    assert explain_backend("delta_rule").backend == "numba"
    large = explain_backend("delta_rule", large=True)
    assert large.backend == "torch" and "states this large" in large.reason
