"""Many sequences in one row on a real GPU, against the float64 reference on each of them."""

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.helpers import relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS, TIME, HEADS, DIM = 2, 700, 4, 32
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


# One piece beyond the distance of saved states, empty ones, and many of ordinary lengths.
LONG = [[300, 0, 1, 40, 39, 20, 100, 200, 0], [3, 260, 37, 0, 0, 200, 200, 0, 0]]
# What the short delta rule takes in chunks of 16.
SHORT = [[200, 0, 1, 16, 17, 200, 256, 10], [40, 40, 40, 40, 40, 100, 200, 200]]


def cuts(lengths: list[list[int]]) -> ops.Packing:
    ends = torch.tensor(lengths).cumsum(1)
    assert (ends[:, -1] == TIME).all()
    offsets = torch.cat([torch.zeros(ROWS, 1).long(), ends], dim=1)
    return ops.Packing(offsets.cuda(), max(max(row) for row in lengths))


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(7)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def expect_pieces(
    op: str,
    inputs: dict[str, Tensor],
    dtype: torch.dtype,
    lengths: list[list[int]] = LONG,
    use_states: bool = True,
    **options: object,
) -> None:
    packing = cuts(lengths)
    low = {name: x.to(dtype) for name, x in inputs.items()}
    results = []
    for backend, values in (
        ("triton", low),
        ("reference", {name: x.double() for name, x in low.items()}),
    ):
        leaves = {name: x.clone().requires_grad_() for name, x in values.items()}
        y, states = getattr(ops, op)(**leaves, **options, cu_seqlens=packing, backend=backend)
        loss = y.double().square().sum()
        if use_states:
            loss = loss + states.double().sin().sum()
        results.append((y, states, *torch.autograd.grad(loss, list(leaves.values()))))
    for name, got, want in zip(("y", "states", *inputs), *results, strict=True):
        assert relative_error(got, want) < TOLERANCE[dtype], name


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_delta(dtype: torch.dtype, gated: bool) -> None:
    shape = (ROWS, TIME, 2, HEADS)
    inputs = {
        "q": random(ROWS, TIME, HEADS, DIM),
        "k": random(*shape, DIM),
        "v": random(*shape, DIM),
        "beta": 2 * torch.sigmoid(3 * random(*shape)),
    }
    if gated:
        inputs["decay"] = torch.tanh(2 * random(ROWS, TIME, HEADS))
    expect_pieces("delta_product", inputs, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("use_states", [False, True], ids=["y", "y and states"])
def test_short_delta(dtype: torch.dtype, use_states: bool) -> None:
    q, k, v = (random(ROWS, TIME, HEADS, DIM) for _ in range(3))
    beta = 2 * torch.sigmoid(3 * random(ROWS, TIME, HEADS))
    inputs = {"q": q, "k": k, "v": v, "beta": beta}
    expect_pieces("delta_rule", inputs, dtype, SHORT, use_states)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_selective(dtype: torch.dtype) -> None:
    inputs = {
        "u": random(ROWS, TIME, 96),
        "delta": random(ROWS, TIME, 96).abs(),
        "A": -random(96, 16).exp(),
        "B": random(ROWS, TIME, 16),
        "C": random(ROWS, TIME, 16),
        "D": random(96),
    }
    expect_pieces("selective_scan", inputs, dtype, low=-1.0)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_convolution(dtype: torch.dtype) -> None:
    inputs = {"x": random(ROWS, TIME, 96), "weight": random(96, 4), "bias": random(96)}
    expect_pieces("short_convolution", inputs, dtype, activation="silu")
