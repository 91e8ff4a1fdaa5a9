"""The first call of an op on a GPU: kernels are compiled side by side, before the first launch.

No GPU is needed. Triton gets a driver that says it is one for Hopper and starts nothing. Most tests
also leave out what comes after parsing, which takes the time.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, no_type_check

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402

from statetrack.ops._triton import ahead  # noqa: E402
from statetrack.ops.delta.spec import Inputs as DeltaInputs  # noqa: E402
from statetrack.ops.delta.triton import choose as delta  # noqa: E402
from statetrack.ops.linear_attention.spec import Inputs as AttentionInputs  # noqa: E402
from statetrack.ops.linear_attention.triton import linear_attention  # noqa: E402

pytestmark = pytest.mark.skipif(triton.knobs.runtime.interpret, reason="nothing is compiled")

_devices = itertools.count(1000)  # Triton keeps kernels per device: a new one has none


class Seen:
    """What was compiled, by the main thread or ahead, and what was launched; names of kernels."""

    def __init__(self) -> None:
        self.late: list[str] = []
        self.ahead: list[str] = []
        self.launched: list[str] = []
        self.lock = threading.Lock()

    def compiled(self, src: Any, cache_hit: bool, **_: Any) -> None:
        with self.lock:
            (self.late if in_main_thread() else self.ahead).append(src.name)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def no_gpu(seen: Seen) -> Any:
    """A driver for a Hopper GPU that is not there."""

    class Launcher:
        def __init__(self, src: Any, metadata: Any) -> None:
            self.name = src.name
            assert metadata.num_warps > 0

        def __call__(self, *_: Any) -> None:
            seen.launched.append(self.name)

    class Utils:
        def get_device_properties(self, device: int) -> dict[str, int]:
            return {"max_shared_mem": 232_448}

        def load_binary(self, *_: Any) -> tuple[int, ...]:
            return 1, 1, 0, 0, 1024

    class Driver:
        utils, launcher_cls, device = Utils(), Launcher, next(_devices)

        def get_current_device(self) -> int:
            return self.device

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

    return Driver()


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    seen = Seen()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", no_gpu(seen))
    before = triton.knobs.compilation.listener
    triton.knobs.compilation.listener = seen.compiled
    yield seen
    triton.knobs.compilation.listener = before


@pytest.fixture
def parsed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled to nothing."""
    from triton.backends.nvidia.compiler import CUDABackend

    def to_nothing(module: Any, metadata: dict[str, Any]) -> bytes:
        metadata |= {"name": "kernel", "shared": 0, "tmem_size": 0}
        return b""

    def add_stages(self: Any, stages: dict[str, Any], *_: Any) -> None:
        stages |= {"ttir": lambda module, metadata: module, "cubin": to_nothing}

    monkeypatch.setattr(CUDABackend, "add_stages", add_stages)


# ------------------------------------------------------------------------------------ the real ops


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, requires_grad=True)


def run_delta(
    time: int, micro: int = 1, gated: bool = False, start: bool = False, wide: int = 192
) -> Tensor:
    """`wide`: numbers from one query to the next."""
    q = zeros(2, time, wide)[:, :, :192].unflatten(2, (3, 64))
    k = zeros(2, time, micro, 3, 64)
    v, beta = zeros(2, time, micro, 3, 48), zeros(2, time, micro, 3, dtype=torch.float32)
    decay = zeros(2, time, 3, dtype=torch.float32) if gated else None
    state = zeros(2, 3, 64, 48, dtype=torch.float32) if start else None
    assert delta.runs_in_chunks(q, k, v, torch.float32)
    return delta.delta_product(DeltaInputs(q, k, v, beta, decay, True, 1.0, state))[0]


def run_attention(
    time: int,
    gates: int,
    dtype: torch.dtype = torch.bfloat16,
    start: bool = False,
    value: int = 40,
    groups: int = 3,
) -> Tensor:
    q, k = zeros(2, time, groups, 80, dtype=dtype), zeros(2, time, groups, 80)
    v = zeros(2, time, 3, value)
    state = zeros(2, 3, 80, value, dtype=torch.float32) if start else None
    decay = zeros(2, time, 3, gates)
    return linear_attention(AttentionInputs(q, k, v, decay, 0.5, state))[0]


def run_short(dtype: torch.dtype, size: int = 32, start: bool = False) -> Tensor:
    q, k = zeros(2, 40, 3, size, dtype=dtype), zeros(2, 40, 1, 3, size, dtype=dtype)
    v, beta = zeros(2, 40, 1, 3, 32, dtype=dtype), zeros(2, 40, 1, 3, dtype=torch.float32)
    state = zeros(2, 3, size, 32, dtype=torch.float32) if start else None
    return delta.delta_product(DeltaInputs(q, k, v, beta, None, True, 1.0, state))[0]


# An op remembers its sizes: no two tests here may use the same ones.
RUNS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "delta": (lambda: run_delta(128), 6),
    "delta, ragged": (lambda: run_delta(70), 6),
    "delta, part of a row": (lambda: run_delta(112, wide=200), 6),
    "gated, from a state": (lambda: run_delta(128, gated=True, start=True), 8),
    "product": (lambda: run_delta(64, micro=2), 6),
    "delta, short": (lambda: run_short(torch.bfloat16), 2),
    "delta, short, from a state": (lambda: run_short(torch.bfloat16, 16, start=True), 2),
    "delta, token by token": (lambda: run_short(torch.float32), 2),
    "attention": (lambda: run_attention(512, 80), 12),
    "attention, one gate a head": (lambda: run_attention(301, 1, torch.float32, start=True), 6),
    "attention, shared q and k": (lambda: run_attention(333, 1, groups=1), 6),
    "attention, token by token": (lambda: run_attention(9, 80), 2),
    "attention, whole sequences": (lambda: run_attention(40, 1, value=64), 2),
}


@pytest.mark.parametrize("name", RUNS)
def test_all_is_compiled_before_the_first_launch(name: str, seen: Seen, parsed_only: None) -> None:
    run, kernels = RUNS[name]
    run().float().sum().backward()
    assert len(seen.launched) == kernels  # some twice, with other options or the same ones
    assert seen.late == []
    assert set(seen.ahead) == set(seen.launched) and len(seen.ahead) <= kernels


def test_without_a_gradient_only_the_forward_is_compiled(seen: Seen, parsed_only: None) -> None:
    with torch.no_grad():
        run_delta(144)
    assert sorted(seen.ahead) == sorted(seen.launched) and len(seen.launched) == 4
    assert seen.late == []


def test_sizes_are_looked_at_once(
    seen: Seen, parsed_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    whole = ahead._launches
    monkeypatch.setattr(ahead, "_launches", lambda *a: looked.append(1) or whole(*a))
    for time in (160, 160, 176, 176):
        run_delta(time)
    assert len(looked) == 2
    assert len(seen.launched) == 4 * 4
    assert len(seen.ahead) == 6 and seen.late == []  # another length needs no other kernels


def test_kernels_are_parsed_one_after_the_other(
    seen: Seen, parsed_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's parser may fail where two threads use it."""
    inside, most = [0], [0]
    parse = triton.compiler.ASTSource.make_ir

    def make_ir(*args: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.02)
        try:
            return parse(*args)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(triton.compiler.ASTSource, "make_ir", make_ir)
    run_delta(192)
    assert len(seen.ahead) == 6 and most[0] == 1


def test_a_kernel_that_fails_ahead_is_compiled_by_its_launch(
    seen: Seen, parsed_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = triton.compiler.ASTSource.make_ir

    def make_ir(self: Any, *args: Any) -> Any:
        if self.name == "_narrow_backward_kernel" and not in_main_thread():
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(self, *args)

    monkeypatch.setattr(triton.compiler.ASTSource, "make_ir", make_ir)
    run_delta(208).float().sum().backward()
    assert seen.late == ["_narrow_backward_kernel"]
    assert sorted(seen.ahead + seen.late) == sorted(seen.launched)


def test_a_triton_that_does_not_know_the_way_compiles_as_ever(
    seen: Seen, parsed_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(triton, "AsyncCompileMode")
    run_delta(224).float().sum().backward()
    assert seen.ahead == [] and seen.late == seen.launched and len(seen.launched) == 6


# ------------------------------------------------------------------------------------ down to SASS


@triton.jit
@no_type_check
def _double_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


@triton.jit
@no_type_check
def _halve_kernel(dy_ptr, dx_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(dx_ptr + at, 0.5 * tl.load(dy_ptr + at))


class One(NamedTuple):
    x: Tensor


def double(inputs: One, save: bool) -> tuple[Tensor]:
    (x,) = inputs
    y = torch.empty_like(x)
    ahead.launch(_double_kernel, (1,), x, y, SIZE=x.numel(), num_warps=1)
    return (y,)


def double_backward(inputs: One, save: bool, y: Tensor, dy: Tensor) -> tuple[Tensor]:
    (x,) = inputs
    dx = torch.empty_like(x)
    ahead.launch(_halve_kernel, (1,), dy, dx, SIZE=x.numel(), num_warps=1)
    return (dx,)


def test_kernels_are_whole(seen: Seen) -> None:
    op = ahead.compiled_ahead(double, double_backward, num_outputs=1)
    given = One(torch.zeros(128))
    (y,) = op(given, True)
    assert sorted(seen.ahead) == ["_double_kernel", "_halve_kernel"]
    assert seen.launched == ["_double_kernel"]
    double_backward(given, True, y, y)
    assert seen.late == [] and seen.launched == ["_double_kernel", "_halve_kernel"]
    for kernel in (_double_kernel, _halve_kernel):
        (made,) = kernel.device_caches[driver.active.get_current_device()][0].values()
        assert made.asm["cubin"].startswith(b"\x7fELF")
