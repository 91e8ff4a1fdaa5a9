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


# No empty sequence: the stabiliser of an empty sLSTM state is infinite.
FULL = [[300, 1, 39, 60, 300], [3, 260, 37, 200, 200]]


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
    state: tuple[int, ...] | None = None,
    **options: object,
) -> None:
    """`state` is the shape of an initial state, drawn for each sequence."""
    packing = cuts(lengths)
    if state is not None:
        inputs = inputs | {"initial_state": random(ROWS * len(lengths[0]), *state)}
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


with_state = pytest.mark.parametrize("state", [False, True], ids=["empty", "state"])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@with_state
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_delta(dtype: torch.dtype, gated: bool, state: bool) -> None:
    shape = (ROWS, TIME, 2, HEADS)
    inputs = {
        "q": random(ROWS, TIME, HEADS, DIM),
        "k": random(*shape, DIM),
        "v": random(*shape, DIM),
        "beta": 2 * torch.sigmoid(3 * random(*shape)),
    }
    if gated:
        inputs["decay"] = torch.tanh(2 * random(ROWS, TIME, HEADS))
    start = (HEADS, DIM, DIM) if state else None
    expect_pieces("delta_product", inputs, dtype, state=start)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("use_states", [False, True], ids=["y", "y and states"])
@with_state
def test_short_delta(dtype: torch.dtype, use_states: bool, state: bool) -> None:
    q, k, v = (random(ROWS, TIME, HEADS, DIM) for _ in range(3))
    beta = 2 * torch.sigmoid(3 * random(ROWS, TIME, HEADS))
    inputs = {"q": q, "k": k, "v": v, "beta": beta}
    start = (HEADS, DIM, DIM) if state else None
    expect_pieces("delta_rule", inputs, dtype, SHORT, use_states, state=start)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@with_state
@pytest.mark.parametrize("gate", ["key", "head"])
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["recurrent", "chunked"])
def test_linear_attention(
    lengths: list[list[int]], gate: str, dtype: torch.dtype, state: bool
) -> None:
    """Sequences beyond 256 tokens go in chunks, as do shorter ones in half precision if large."""
    value = 2 * DIM  # other than the keys' size, so that no one is taken for the other
    decay = 1 - torch.rand(ROWS, TIME, HEADS, DIM if gate == "key" else 1, device="cuda") / 8
    inputs = {
        "q": random(ROWS, TIME, HEADS, DIM),
        "k": random(ROWS, TIME, HEADS, DIM),
        "v": random(ROWS, TIME, HEADS, value),
        "decay": decay * random(*decay.shape).sign(),
    }
    start = (HEADS, DIM, value) if state else None
    expect_pieces("linear_attention", inputs, dtype, lengths, state=start, scale=0.3)


@with_state
def test_diagonal(state: bool) -> None:
    inputs = {"decay": torch.tanh(2 * random(ROWS, TIME, 96)), "inputs": random(ROWS, TIME, 96)}
    expect_pieces("diagonal_scan", inputs, torch.float32, state=(96,) if state else None)


@pytest.mark.parametrize("dim", [16, 64], ids=["on the chip", "in memory"])
def test_slstm(dim: int) -> None:
    inputs = {"gates": random(ROWS, TIME, 4, 2, dim), "R": random(4, 2, dim, dim) / dim}
    expect_pieces("slstm_scan", inputs, torch.float32, FULL)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@with_state
def test_selective(dtype: torch.dtype, state: bool) -> None:
    inputs = {
        "u": random(ROWS, TIME, 96),
        "delta": random(ROWS, TIME, 96).abs(),
        "A": -random(96, 16).exp(),
        "B": random(ROWS, TIME, 16),
        "C": random(ROWS, TIME, 16),
        "D": random(96),
    }
    expect_pieces("selective_scan", inputs, dtype, low=-1.0, state=(96, 16) if state else None)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@with_state
def test_convolution(dtype: torch.dtype, state: bool) -> None:
    inputs = {"x": random(ROWS, TIME, 96), "weight": random(96, 4), "bias": random(96)}
    start = (3, 96) if state else None
    expect_pieces("short_convolution", inputs, dtype, activation="silu", state=start)
