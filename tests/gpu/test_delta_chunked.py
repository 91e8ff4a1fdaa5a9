"""The chunked kernels of the delta rule on a real GPU. Skipped where there is none.

What they are compared with is the token-by-token kernel in float64, which test_kernels.py compares
with the definition.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops.delta.triton import choose, chunked
from tests.helpers import relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def always_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except in float64, in which the other kernel is the judge."""
    monkeypatch.setattr(
        choose, "runs_in_chunks", lambda q, k, v, dtype, sequences: dtype == torch.float32
    )


@pytest.fixture(params=sorted(chunked.CARRY))
def values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many values of a state a program takes along: the fewer, the fewer heads there are."""
    count: int = request.param
    monkeypatch.setattr(
        chunked, "_carry_values", lambda heads, key, value: min(count, max(chunked._widths(key)))
    )
    return count


def draw(
    batch: int,
    time: int,
    micro: int,
    heads: int,
    key: int,
    value: int,
    *,
    gated: bool,
) -> dict[str, Tensor]:
    """Random inputs in which β and the gates are often at their extremes."""
    g = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device="cuda")

    rows = (batch, time, micro, heads)
    beta = (3 * torch.rand(*rows, generator=g, device="cuda") - 0.5).clamp(0, 2)
    inputs = {
        "q": normal(batch, time, heads, key),
        "k": normal(*rows, key),
        "v": normal(*rows, value),
        "beta": beta,
    }
    if gated:
        decay = (3 * torch.rand(batch, time, heads, generator=g, device="cuda") - 1.5).clamp(-1, 1)
        decay[:, 7::31] = 0
        inputs["decay"] = decay
    inputs = {name: x.to(BF16) for name, x in inputs.items()}
    return inputs | {"initial_state": normal(batch, heads, key, value)}


def with_grads(inputs: dict[str, Tensor], packing: ops.Packing | None = None) -> dict[str, Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    y, state = ops.delta_product(**leaves, backend="triton", cu_seqlens=packing)
    g = torch.Generator("cuda").manual_seed(7)
    dy, dstate = (torch.randn(x.shape, generator=g, device="cuda").to(BF16) for x in (y, state))
    grads = torch.autograd.grad(
        [y, state], list(leaves.values()), [dy.to(y.dtype), dstate.to(state.dtype)]
    )
    return {"y": y, "state": state} | {f"d{n}": x for n, x in zip(leaves, grads, strict=True)}


def expect_match(inputs: dict[str, Tensor], packing: ops.Packing | None = None) -> None:
    expected = with_grads({name: x.double() for name, x in inputs.items()}, packing)
    got = with_grads(inputs, packing)
    for name, want in expected.items():
        error = relative_error(got[name], want)
        allowed = 5e-5 if name == "state" else 1e-2
        assert error < allowed, f"{name}: relative error {error:.2e}, allowed {allowed:.0e}"


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("micro", "time", "key", "value"),
    [
        (1, 1, 64, 64),
        (1, 63, 64, 64),
        (1, 1000, 128, 128),
        (1, 200, 96, 160),
        (2, 65, 64, 64),
        (2, 500, 128, 128),
        (3, 50, 64, 64),
        (4, 300, 128, 128),
        (1, 200, 256, 160),
        (2, 130, 192, 64),
        (4, 70, 256, 64),
    ],
)
def test_equals_token_by_token_in_float64(
    micro: int, time: int, key: int, value: int, gated: bool, values: int
) -> None:
    expect_match(draw(2, time, micro, 2, key, value, gated=gated))


LENGTHS = [[300, 0, 1, 64, 63, 21, 251, 0], [2, 260, 36, 0, 65, 128, 209, 0]]
"""Of packed sequences: empty ones, one behind the last token, and whole chunks among them."""


def packed(
    lengths: list[list[int]], *sizes: int, gated: bool
) -> tuple[dict[str, Tensor], ops.Packing]:
    """Inputs of two rows, with a start for every sequence."""
    ends = torch.tensor(lengths).cumsum(1)
    time, sequences = int(ends[0, -1]), ends.numel()
    micro, heads, key, value = sizes
    inputs = draw(len(lengths), time, micro, heads, key, value, gated=gated)
    start = inputs["initial_state"][:1]
    inputs["initial_state"] = torch.cat([start.roll(i, 2) * (i % 3) for i in range(sequences)])
    offsets = torch.cat([torch.zeros(len(lengths), 1).long(), ends], dim=1)
    return inputs, ops.Packing(offsets.cuda(), max(max(row) for row in lengths))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("micro", "key", "value"),
    [(1, 64, 64), (1, 128, 128), (2, 96, 160), (3, 64, 64), (4, 128, 128), (1, 256, 160)],
)
def test_packed_sequences(micro: int, key: int, value: int, gated: bool, values: int) -> None:
    expect_match(*packed(LENGTHS, micro, 2, key, value, gated=gated))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_packed_sequences_are_those_of_rows(gated: bool) -> None:
    """The same chunks, so the same bits: of one sequence in a row, and of four as long."""
    inputs = draw(4, 640, 1, 3, 128, 128, gated=gated)
    got = with_grads(inputs, ops.Packing(torch.tensor([[0, 640]] * 4).cuda(), 640))
    assert all(torch.equal(got[name], x) for name, x in with_grads(inputs).items())
    one = {n: x if n == "initial_state" else x.flatten(0, 1)[None] for n, x in inputs.items()}
    ends = torch.arange(0, 5 * 640, 640, dtype=torch.int32).cuda()
    together = with_grads(one, ops.Packing(ends[None], 640))
    for name, x in got.items():
        if name == "y":
            assert torch.equal(together[name], x.flatten(0, 1)[None])


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("batch", "heads", "micro", "key"),
    [(3, 16, 1, 128), (3, 16, 2, 128), (1, 32, 4, 128), (8, 6, 1, 256), (4, 6, 2, 256)],
)
def test_again_is_the_same_to_the_bit(
    batch: int, heads: int, micro: int, key: int, gated: bool
) -> None:
    """Programs wait for nobody's numbers: what differs from call to call is a race."""
    inputs = draw(batch, 2048, micro, heads, key, key, gated=gated)
    first = with_grads(inputs)
    for _ in range(3):
        again = with_grads(inputs)
        assert [name for name in first if not torch.equal(first[name], again[name])] == []


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    ("batch", "time", "heads", "micro"),
    [(1, 16_411, 16, 1), (1, 65_536, 2, 1), (2, 4099, 16, 1), (3, 4096, 16, 2), (1, 9000, 3, 3)],
)
def test_few_long_sequences(batch: int, time: int, heads: int, micro: int, gated: bool) -> None:
    expect_match(draw(batch, time, micro, heads, 128, 128, gated=gated))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_few_long_sequences_with_long_keys(gated: bool) -> None:
    expect_match(draw(1, 17_000, 1, 2, 256, 512, gated=gated))


def test_spans_on_two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk in spans beside what prepares them gives the same bits, also as a CUDA graph."""
    inputs = draw(1, 40_000, 1, 2, 128, 128, gated=True)
    run = lambda: ops.delta_product(**inputs, backend="triton")  # noqa: E731
    with torch.no_grad():
        spans, graph = run(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        for x in captured:
            x.fill_(torch.nan)
        graph.replay()
        assert len(chunked._spans(40_000 // 64, 16)) > 2
        monkeypatch.setattr(chunked, "SPAN", 10**6)
        whole = run()
    for got in (spans, captured):
        assert all(torch.equal(a, b) for a, b in zip(got, whole, strict=True))


@pytest.mark.parametrize(("micro", "key"), [(1, 128), (2, 128), (3, 128), (1, 256)])
def test_mild_gates(micro: int, key: int, values: int) -> None:
    """Factors of rows and columns in most chunks; in one a gate is 0, in one the product tiny."""
    inputs = draw(2, 400, micro, 2, key, 128, gated=True)
    sign = inputs["decay"].sign() + (inputs["decay"] == 0)
    inputs["decay"] = sign * (1 - inputs["decay"].abs() / 3)
    inputs["decay"][:, 10:14] = torch.tensor([1.0, -1.0, 1.0, -1.0], device="cuda")[:, None]
    inputs["decay"][:, 70] = 0
    inputs["decay"][:, 200:264] /= 3
    expect_match(inputs)


@pytest.mark.parametrize("micro", [1, 2])
def test_gates_of_any_size(micro: int) -> None:
    """Products of gates are made from logarithms: signs, zeros and tiny numbers all the same."""
    inputs = draw(2, 150, micro, 2, 64, 64, gated=True)
    for t, gate in ((3, 1e-30), (40, -1e-12), (41, 0.0), (42, -1.0), (43, 1.0), (70, -1e-5)):
        inputs["decay"][:, t] = gate
    expect_match(inputs)


def test_gates_and_strengths_may_be_wider() -> None:
    inputs = draw(2, 100, 1, 2, 64, 64, gated=True)
    wider = inputs | {name: inputs[name].float() for name in ("beta", "decay")}
    got, expected = with_grads(wider), with_grads(inputs)
    assert got["dbeta"].dtype == got["ddecay"].dtype == torch.float32
    assert all(relative_error(got[name], expected[name]) < 5e-3 for name in expected)


@pytest.mark.parametrize("keys", [1, 5])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_reflections_do_not_drift(size: int, keys: int, values: int) -> None:
    """β = 2, one key or five in random order; writes only in the first 16 of 8192 tokens."""
    time = 8192
    g = torch.Generator("cuda").manual_seed(1)
    letters = torch.randint(keys, (4, time, 1), generator=g, device="cuda")
    v = torch.randn(4, time, 1, size, generator=g, device="cuda")
    v[:, 16:] = 0
    inputs = {
        "q": torch.randn(4, time, 1, size, generator=g, device="cuda").to(BF16),
        "k": torch.randn(keys, size, generator=g, device="cuda")[letters].to(BF16),
        "v": v.to(BF16),
        "beta": torch.full((4, time, 1), 2.0, device="cuda", dtype=BF16),
        "initial_state": torch.randn(4, 1, size, size, generator=g, device="cuda"),
    }
    with torch.no_grad():
        _, state = ops.delta_rule(**inputs, backend="triton")
        wide = {name: x.double() for name, x in inputs.items()}
        _, exact = ops.delta_rule(**wide, backend="triton")
    assert relative_error(state, exact) < 1e-3


@pytest.mark.parametrize("name", ["q", "k", "v", "beta", "decay"])
def test_nan_in_nan_out(name: str, values: int) -> None:
    """From its token on and only in its own row, although chunks are computed at once."""
    inputs = draw(2, 200, 1, 2, 64, 64, gated=True)
    inputs[name][0, 100] = torch.nan
    with torch.no_grad():
        squeezed = {n: x[:, :, 0] if n in ("k", "v", "beta") else x for n, x in inputs.items()}
        y, state = ops.delta_rule(**squeezed, backend="triton")
    assert y[0, 100].isnan().all()
    assert not y[0, :100].isnan().any()
    assert not y[1:].isnan().any()
    if name != "q":
        assert y[0, 100:].isnan().all() and state[0].isnan().all()


def test_strided_empty_and_same_bits() -> None:
    inputs = draw(2, 150, 2, 2, 64, 64, gated=True)
    first, second = with_grads(inputs), with_grads(inputs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    strided = {name: torch.stack([x, x], dim=-1)[..., 0] for name, x in inputs.items()}
    third = with_grads(strided)
    assert all(torch.equal(first[name], third[name]) for name in first)
    empty = with_grads({name: x[:0] for name, x in inputs.items()})
    assert empty["y"].shape == (0, 150, 2, 64) and empty["dk"].shape == (0, 150, 2, 2, 64)


def test_captured_in_a_cuda_graph() -> None:
    inputs = draw(2, 150, 1, 2, 64, 64, gated=True)
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}

    def step() -> list[Tensor]:
        y, _ = ops.delta_product(**leaves, backend="triton")
        return [y.detach(), *torch.autograd.grad(y.sum(), list(leaves.values()))]

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    for x in captured:
        x.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, expected, strict=True):
        assert torch.equal(got, want)


FIRST_BACKWARD = """
import sys, torch
from statetrack import ops

time, size = int(sys.argv[1]), int(sys.argv[2])
shapes = {"q": (size,), "k": (size,), "v": (size,), "beta": ()}
leaves = {
    name: torch.rand(2, time, 4, *rest, device="cuda").bfloat16().requires_grad_()
    for name, rest in shapes.items()
}
dy = torch.randn(2, time, 4, size, device="cuda").bfloat16()


def step():
    y, _ = ops.delta_rule(**leaves, backend="triton")
    return torch.autograd.grad(y, list(leaves.values()), dy)


expected = step()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    step()
    step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = step()
graph.replay()
torch.cuda.synchronize()
assert all(torch.equal(a, b) for a, b in zip(captured, expected))
"""


@pytest.mark.parametrize(("time", "size"), [(40, 32), (200, 128)], ids=["short", "chunked"])
def test_the_first_backward_of_a_process_is_captured(time: int, size: int) -> None:
    """On a stream of its own that no call before it has used."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_BACKWARD, str(time), str(size)],
        cwd=root / "src",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
