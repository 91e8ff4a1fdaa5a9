"""The kernels on a real GPU against the float64 reference. Skipped where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops._spec import find
from tests.helpers import relative_error
from tests.ops.cases import CASES, Case, expect_exact_ends

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

KERNELS = [pytest.param(case, id=str(case)) for case in CASES if "triton" in find(case.op).backends]


def on_gpu(inputs: dict[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {name: x.to("cuda", x.dtype if dtype is None else dtype) for name, x in inputs.items()}


def with_grads(case: Case, inputs: dict[str, Tensor], backend: str) -> dict[str, Tensor]:
    """Outputs and the gradients of a random mix of them, by name."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    y, state = case.run(leaves, backend)
    mixed = state[:, [0, 1, 3]] if case.op == "slstm_scan" else state  # m has no gradient
    generator = torch.Generator("cuda").manual_seed(7)
    loss = sum(
        (
            out * torch.randn(out.shape, generator=generator, dtype=torch.float64, device="cuda")
        ).real.sum()
        for out in (y, mixed)
    )
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {"y": y, "state": state} | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def expect_match(
    case: Case, inputs: dict[str, Tensor], tol: float, names: str | None = None
) -> None:
    wide = {n: x if x.is_complex() else x.double() for n, x in inputs.items()}
    wide = {n: x.to(torch.complex128) if x.is_complex() else x for n, x in wide.items()}
    expected = with_grads(case, wide, "reference")
    got = with_grads(case, inputs, "triton")
    for name, want in expected.items():
        error = relative_error(got[name], want)
        assert error < tol, f"{name}: relative error {error:.2e}, allowed {tol:.0e}"


@pytest.mark.parametrize("case", KERNELS)
@pytest.mark.parametrize("state", [True, False], ids=["state", "zero"])
@pytest.mark.parametrize("time", [1, 2, 9, 65, 300])
def test_equals_reference_in_float64(case: Case, time: int, state: bool) -> None:
    expect_match(case, on_gpu(case.inputs(time, state=state)), 1e-9)


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_ends_of_selective_scans_range_are_exact(low: float) -> None:
    expect_exact_ends("triton", low, device="cuda")


@pytest.mark.parametrize("case", KERNELS)
@pytest.mark.parametrize("time", [1, 130])
def test_float32(case: Case, time: int) -> None:
    dtype = torch.complex64 if case.label == "complex" else torch.float32
    expect_match(case, on_gpu(case.inputs(time), dtype), 2e-5)


@pytest.mark.parametrize("case", KERNELS)
def test_bfloat16_inputs(case: Case) -> None:
    if case.label == "complex":
        pytest.skip("there is no complex bfloat16")
    inputs = on_gpu(case.inputs(130), torch.bfloat16)
    inputs["initial_state"] = inputs["initial_state"].float()
    expect_match(case, inputs, 1e-2)
    state = case.run(inputs, "triton")[1]
    expected = case.run({n: x.double() for n, x in inputs.items()}, "reference")[1]
    assert relative_error(state, expected) < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((size, size) for size in (16, 32, 64, 128, 256)),
        *((16, 32), (32, 16), (32, 64), (96, 48)),
    ],
)
def test_delta_at_every_tile(key: int, value: int, gated: bool, dtype: torch.dtype) -> None:
    """Each head size has its own (tile, warps)."""
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    inputs = {
        "q": draw(2, 40, 2, key),
        "k": draw(2, 40, 2, key),
        "v": draw(2, 40, 2, value),
        "beta": 2 * torch.rand(2, 40, 2, generator=g, device="cuda"),
        "initial_state": draw(2, 2, key, value),
    }
    if gated:
        inputs["decay"] = torch.tanh(draw(2, 40, 2))
    low = {n: x if n == "initial_state" else x.to(dtype) for n, x in inputs.items()}
    case = Case("delta_rule", lambda t, g: inputs, ("q",))
    expect_match(case, low, 2e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("key", "value"), [*((size, size) for size in (16, 32, 64, 128, 256)), (32, 64), (96, 48)]
)
def test_dplr_at_every_tile(key: int, value: int, dtype: torch.dtype) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    unit = torch.nn.functional.normalize(draw(2, 41, 2, key), dim=-1)
    decay = torch.tanh(2 * draw(2, 41, 2, key))
    beta = 2 * torch.rand(2, 41, 2, 1, generator=g, device="cuda")
    inputs = {
        "q": draw(2, 41, 2, key).to(dtype),
        "k": draw(2, 41, 2, key).to(dtype),
        "v": draw(2, 41, 2, value).to(dtype),
        "decay": decay,
        "left": unit,
        "right": -beta * decay * unit,
        "initial_state": draw(2, 2, key, value),
    }
    case = Case("dplr", lambda t, g: inputs, ("q",))
    expect_match(case, inputs, 2e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("channels", "state"), [(40, 16), (256, 16), (33, 4), (64, 64)])
def test_selective_at_every_tile(channels: int, state: int, dtype: torch.dtype) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    inputs = {
        "u": draw(2, 41, channels).to(dtype),
        "delta": draw(2, 41, channels).exp().to(dtype),
        "A": -draw(channels, state).exp(),
        "B": draw(2, 41, state).to(dtype),
        "C": draw(2, 41, state).to(dtype),
        "D": draw(channels),
    }
    case = Case("selective_scan", lambda t, g: inputs, ("u",), {"low": -1.0})
    expect_match(case, inputs, 2e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dim", [20, 32, 64, 128])
def test_slstm_at_every_size(dim: int) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    inputs = {
        "gates": 2 * torch.randn(20, 9, 4, 2, dim, generator=g, device="cuda"),
        "R": torch.randn(4, 2, dim, dim, generator=g, device="cuda") / dim**0.5,
    }
    case = Case("slstm_scan", lambda t, g: inputs, ("gates",))
    expect_match(case, inputs, 2e-5)


def test_one_reflection_repeated_65536_times_gives_the_state_back() -> None:
    """β = 2 and one key: after an even number of tokens nothing has changed."""
    g = torch.Generator("cuda").manual_seed(0)
    k = torch.randn(8, 1, 1, 32, generator=g, device="cuda").expand(8, 65536, 1, 32)
    start = torch.randn(8, 1, 32, 32, generator=g, device="cuda")
    v, beta = torch.zeros_like(k), torch.full_like(k[..., 0], 2.0)
    with torch.no_grad():
        _, end = ops.delta_rule(k, k, v, beta, initial_state=start, backend="triton")
    assert relative_error(end, start) < 1e-3


def test_one_reflection_with_gates_per_key_repeated_8192_times_gives_the_state_back() -> None:
    g = torch.Generator("cuda").manual_seed(0)
    k = torch.randn(4, 1, 1, 64, generator=g, device="cuda").expand(4, 8192, 1, 64)
    start = torch.randn(4, 1, 64, 64, generator=g, device="cuda")
    v, beta = torch.zeros_like(k), torch.full_like(k[..., 0], 2.0)
    with torch.no_grad():
        _, end = ops.delta_rule(k, k, v, beta, torch.ones_like(k), initial_state=start)
    assert relative_error(end, start) < 1e-3


def five_keys(time: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Reflections by five keys in random order; writes only in the first 16 tokens."""
    g = torch.Generator("cuda").manual_seed(1)
    letters = torch.randint(5, (4, time, 1), generator=g, device="cuda")
    v = torch.randn(4, time, 1, size, generator=g, device="cuda")
    v[:, 16:] = 0
    return {
        "q": torch.randn(4, time, 1, size, generator=g, device="cuda").to(dtype),
        "k": torch.randn(5, size, generator=g, device="cuda")[letters].to(dtype),
        "v": v.to(dtype),
        "beta": torch.full((4, time, 1), 2.0, device="cuda", dtype=dtype),
    }


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize(
    ("dtype", "time", "tol"),
    [(torch.float32, 65536, 1e-3), (torch.bfloat16, 8192, 1e-3)],
    ids=["fp32", "bf16"],
)
def test_five_keys_do_not_drift(dtype: torch.dtype, time: int, tol: float, size: int) -> None:
    inputs = five_keys(time, size, dtype)
    with torch.no_grad():
        _, state = ops.delta_rule(**inputs, backend="triton")
        wide = {name: x.double() for name, x in inputs.items()}
        _, exact = ops.delta_rule(**wide, backend="triton")  # float64, itself tested above
    assert relative_error(state, exact) < tol


@pytest.mark.parametrize("case", KERNELS)
def test_strided_empty_and_autocast(case: Case) -> None:
    inputs = on_gpu(case.inputs(20))
    plain = case.run(inputs, "triton")[0]
    strided = {name: torch.stack([x, x], dim=-1)[..., 0] for name, x in inputs.items()}
    assert torch.equal(case.run(strided, "triton")[0], plain)
    wide = {name: torch.cat([x, x], dim=-1) for name, x in inputs.items()}
    parts = {name: x[..., : x.shape[-1] // 2] for name, x in wide.items()}
    assert torch.equal(case.run(parts, "triton")[0], plain)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(case.run(inputs, "triton")[0], plain)
    empty = {name: x if name in case.shared else x[:0] for name, x in inputs.items()}
    assert case.run(empty, "triton")[0].shape[:2] == (0, 20)


@pytest.mark.parametrize("case", KERNELS)
def test_same_bits_every_time(case: Case) -> None:
    """No atomics: gradients do not depend on which program finishes first."""
    inputs = on_gpu(case.inputs(50))
    first, second = (with_grads(case, inputs, "triton") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("case", KERNELS)
def test_nan_in_nan_out(case: Case) -> None:
    inputs = on_gpu(case.inputs(80))
    inputs[case.seq[-1]][0, 50] = torch.nan
    y, _ = case.run(inputs, "triton")
    assert y[0, 50].isnan().all()
    assert not y[0, :50].isnan().any()
    assert not y[1:].isnan().any()


@pytest.mark.parametrize("case", KERNELS)
def test_captured_in_a_cuda_graph(case: Case) -> None:
    """Forward and backward in one graph: no look at values, no synchronisation."""
    inputs = on_gpu(case.inputs(12))

    def step(leaves: dict[str, Tensor]) -> list[Tensor]:
        y, _ = case.run(leaves, "triton")
        return [y.detach(), *torch.autograd.grad(y.real.sum(), list(leaves.values()))]

    def fresh() -> dict[str, Tensor]:
        return {name: x.clone().requires_grad_() for name, x in inputs.items()}

    expected = step(fresh())
    leaves = fresh()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(leaves)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = step(leaves)
    for x in captured:
        x.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("case", KERNELS)
def test_vmap_folds_into_the_batch(case: Case) -> None:
    stacks = [on_gpu(case.inputs(12, seed=seed)) for seed in (0, 1)]
    stacked = {name: torch.stack([s[name] for s in stacks]) for name in stacks[0]}
    y, state = torch.vmap(lambda inputs: case.run(inputs, "triton"))(stacked)
    for run, inputs in enumerate(stacks):
        y_run, state_run = case.run(inputs, "triton")
        assert relative_error(y[run], y_run) < 1e-12
        assert relative_error(state[run], state_run) < 1e-12


def test_compiles_into_one_graph() -> None:
    script = Path(__file__).with_name("compile_all.py")
    done = subprocess.run([sys.executable, script, "cuda"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_auto_takes_the_kernels() -> None:
    for op in {case.op for case in CASES}:
        if "triton" in find(op).backends:
            assert ops.explain_backend(op, device="cuda").backend == "triton"
