"""Linear attention on a real GPU: every tile and both forms against the float64 reference."""

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.gpu.test_kernels import expect_match
from tests.helpers import relative_error
from tests.ops.cases import Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def attention(time: int, key: int, value: int, *, vector: bool) -> Case:
    """Gates of both signs, with tokens whose gates are all exactly 0, -1 and 1."""
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    decay = torch.tanh(2 * draw(2, time, 2, key if vector else 1))
    for t, gate in ((3, 0.0), (5, -1.0), (6, 1.0)):
        decay[:, t] = gate
    made = {
        "q": draw(2, time, 2, key),
        "k": draw(2, time, 2, key) / key**0.5,
        "v": draw(2, time, 2, value),
        "decay": decay,
        "initial_state": draw(2, 2, key, value),
    }
    return Case("linear_attention", lambda t, g: made, ("q", "k", "v", "decay"), {"scale": 0.7})


def in_dtype(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {n: x if n == "initial_state" else x.to(dtype) for n, x in inputs.items()}


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
GATES = pytest.mark.parametrize("vector", [True, False], ids=["vector", "scalar"])


@DTYPES
@GATES
@pytest.mark.parametrize(
    ("chunks", "key", "value"),
    [(False, *size) for size in [(16, 32), (32, 32), (32, 33), (64, 64), (64, 65), (128, 128)]]
    + [(False, 256, 64), (True, 32, 32), (True, 48, 65), (True, 128, 128), (True, 256, 64)],
)
def test_every_tile(
    key: int,
    value: int,
    vector: bool,
    dtype: torch.dtype,
    chunks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each head size has its own (tile, warps); both forms must be right at all of them."""
    from statetrack.ops.linear_attention.triton import choose

    monkeypatch.setattr(choose, "runs_in_chunks", lambda k, v, decay, dtype, longest: chunks)
    case = attention(77, key, value, vector=vector)
    inputs = in_dtype(case.inputs(77), dtype)
    expect_match(case, inputs, 2e-5 if dtype == torch.float32 else 1e-2)
    state = case.run(inputs, "triton")[1]
    exact = case.run({n: x.double() for n, x in inputs.items()}, "reference")[1]
    assert relative_error(state, exact) < 2e-5


@pytest.mark.parametrize(
    ("key", "value", "dtypes", "final", "packed"),
    [
        (64, 65, "bf16 fp32", False, True),  # mLSTM's
        (64, 65, "bf16 fp32", True, True),
        (64, 65, "fp32 fp32", True, True),
        (64, 65, "bf16 bf16", False, True),
        (128, 64, "bf16 bf16", True, True),  # Mamba2's
        (48, 100, "fp16 fp16", False, False),
        (256, 128, "bf16 bf16", True, False),
    ],
)
def test_short_sequences(key: int, value: int, dtypes: str, final: bool, packed: bool) -> None:
    """A program has all tokens of a head; gates of -1, 0 and 1 are among them."""
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    half, of_keys = (kinds[name] for name in dtypes.split())
    g = torch.Generator("cuda").manual_seed(0)
    time = 130 if packed else 40
    draw = lambda size: torch.randn(2, time, 3, size, generator=g, device="cuda")  # noqa: E731
    decay = torch.tanh(2 * draw(1))
    for t, gate in ((1, 0.0), (5, -1.0), (6, 1.0), (34, -1.0), (35, 0.0)):
        decay[:, t] = gate
    low = {"q": draw(key), "k": draw(key) / key**0.5, "v": draw(value), "decay": decay}
    low |= {name: low[name].to(half) for name in "qv"} | {"k": low["k"].to(of_keys)}
    cuts = [[0, 1, 17, 17, 49, 113, 130], [0, 64, 80, 96, 128, 129, 130]]
    packing = ops.Packing(torch.tensor(cuts, device="cuda"), 64) if packed else None
    found: list[list[Tensor]] = []
    for backend in ("triton", "reference"):
        wide = backend == "reference"
        leaves = {n: (x.double() if wide else x).clone().requires_grad_() for n, x in low.items()}
        y, state = ops.linear_attention(**leaves, scale=0.7, cu_seqlens=packing, backend=backend)
        loss = y.double().square().sum() + (state.double().sin().sum() if final else 0)
        found.append([y, state, *torch.autograd.grad(loss, list(leaves.values()))])
    tolerance = 2e-5 if half == torch.float32 else 1e-2
    for name, got, want in zip(("y", "state", *low), *found, strict=True):
        assert relative_error(got, want) < (2e-5 if name == "state" else tolerance), name


@DTYPES
@pytest.mark.parametrize(
    ("heads", "groups", "value", "part"),
    [(8, 1, 64, 8), (8, 1, 64, 1), (8, 2, 64, 2), (4, 1, 128, 4)],
)
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("ends", [False, True], ids=["zero", "state"])
def test_heads_that_share_q_and_k(
    heads: int,
    groups: int,
    value: int,
    part: int,
    packed: bool,
    ends: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mamba2's keys and values, with `part` heads for a program; gates of -1, 0 and 1 are there."""
    from statetrack.ops.linear_attention.triton import shared

    monkeypatch.setattr(shared, "_part", lambda group, programs: part)
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    decay = torch.tanh(2 * draw(2, 300, heads, 1))
    for t, gate in ((1, 0.0), (5, -1.0), (6, 1.0), (70, -1.0), (150, 0.0)):
        decay[:, t] = gate
    low = {
        "q": draw(2, 300, groups, 128),
        "k": draw(2, 300, groups, 128) / 128**0.5,
        "v": draw(2, 300, heads, value),
        "decay": decay,
    }
    low = in_dtype(low, dtype)
    cuts = [[0, 130, 130, 131, 300], [0, 0, 64, 128, 300]]
    packing = ops.Packing(torch.tensor(cuts, device="cuda"), 172) if packed else None
    if ends:
        low["initial_state"] = draw(8 if packed else 2, heads, 128, value)
    found: list[list[Tensor]] = []
    for backend in ("triton", "reference"):
        wide = backend == "reference"
        leaves = {n: (x.double() if wide else x).clone().requires_grad_() for n, x in low.items()}
        y, state = ops.linear_attention(**leaves, scale=0.7, cu_seqlens=packing, backend=backend)
        loss = y.double().square().sum() + (state.double().sin().sum() if ends else 0)
        found.append([y, state, *torch.autograd.grad(loss, list(leaves.values()))])
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    for name, got, want in zip(("y", "state", *low), *found, strict=True):
        assert relative_error(got, want) < (2e-5 if name == "state" else tolerance), name


@GATES
def test_long_sequences_keep_their_state(vector: bool) -> None:
    """16,384 tokens with gates of ±1: nothing is forgotten, and float32 sums stay near float64."""
    g = torch.Generator("cuda").manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    q, k, v = (draw(1, 16384, 1, 64) for _ in range(3))
    decay = draw(1, 16384, 1, 64 if vector else 1).sign()
    with torch.no_grad():
        _, state = ops.linear_attention(q, k, v, decay, backend="triton")
        wide = (x.double() for x in (q, k, v, decay))
        _, exact = ops.linear_attention(*wide, backend="triton")  # float64: the recurrence
    assert relative_error(state, exact) < 1e-5


@pytest.mark.parametrize("name", ["q", "k", "v", "decay"])
def test_nan_in_chunks(name: str) -> None:
    """A NaN shows from its token on, not in the tokens of its chunk before it."""
    case = attention(300, 32, 32, vector=True)
    inputs = {n: x.clone() for n, x in case.inputs(300).items()}
    inputs[name][0, 150] = torch.nan
    y, _ = case.run(inputs, "triton")
    assert y[0, 150].isnan().all()
    assert not y[0, :150].isnan().any() and not y[1:].isnan().any()
    assert name == "q" or y[0, 151:].isnan().all()
