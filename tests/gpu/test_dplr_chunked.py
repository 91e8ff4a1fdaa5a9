"""`dplr` in chunks on a real GPU. Skipped where there is none.

What it is compared with is the token-by-token kernel in float64, which test_kernels.py compares
with the definition.
"""

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops.dplr.triton import choose, chunked
from tests.helpers import relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def always_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except in float64, in which the other kernel is the judge."""
    monkeypatch.setattr(choose, "SHORTEST", 1)


def draw(time: int, key: int, value: int, *, states: int = 2, heads: int = 2) -> dict[str, Tensor]:
    """Kimi's transitions and, for the last head, others with independent l and r."""
    g = torch.Generator("cuda").manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    unit = lambda x: torch.nn.functional.normalize(x, dim=-1)  # noqa: E731
    rows = (states, time, heads)
    decay = (3 * torch.rand(*rows, key, generator=g, device="cuda") - 1.5).clamp(-1, 1)
    decay[:, 7::31] = 0
    beta = (3 * torch.rand(*rows, 1, generator=g, device="cuda") - 0.5).clamp(0, 2)
    left = unit(normal(*rows, key))
    right = -beta * decay * left
    right[:, :, -1] = -(beta * unit(left + unit(normal(*rows, key)) / 3))[:, :, -1]
    return {
        "q": unit(normal(*rows, key)).to(BF16),
        "k": beta * left,
        "v": normal(*rows, value).to(BF16),
        "decay": decay,
        "left": left,
        "right": right,
        "initial_state": normal(states, heads, key, value),
    }


def with_grads(inputs: dict[str, Tensor], offsets: Tensor | None) -> dict[str, Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    y, state = ops.dplr(**leaves, scale=0.7, cu_seqlens=offsets, backend="triton")
    g = torch.Generator("cuda").manual_seed(7)
    dy, dstate = (torch.randn(x.shape, generator=g, device="cuda").to(BF16) for x in (y, state))
    grads = torch.autograd.grad(
        [y, state], list(leaves.values()), [dy.to(y.dtype), dstate.to(state.dtype)]
    )
    return {"y": y, "state": state} | {f"d{n}": x for n, x in zip(leaves, grads, strict=True)}


def expect_match(inputs: dict[str, Tensor], offsets: Tensor | None = None) -> None:
    expected = with_grads({name: x.double() for name, x in inputs.items()}, offsets)
    got = with_grads(inputs, offsets)
    for name, want in expected.items():
        error = relative_error(got[name], want)
        allowed = 5e-5 if name == "state" else 1e-2
        assert error < allowed, f"{name}: relative error {error:.2e}, allowed {allowed:.0e}"


@pytest.mark.parametrize(
    ("time", "key", "value"),
    [(1, 64, 64), (31, 32, 32), (300, 128, 128), (200, 96, 160), (65, 48, 65), (64, 64, 64)],
)
@pytest.mark.parametrize("programs", [0, 132], ids=["many heads", "few heads"])
def test_equals_token_by_token(
    time: int, key: int, value: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tile of head sizes, and the widths in which values are carried along."""
    monkeypatch.setattr(chunked, "MULTIPROCESSORS", programs)
    expect_match(draw(time, key, value))


def test_few_long_sequences() -> None:
    expect_match(draw(3000, 128, 128, states=1, heads=1))


@pytest.mark.parametrize("size", [64, 128])
def test_packed(size: int) -> None:
    lengths = [0, 7, 7, 170, 203, 301]
    x = draw(301, size, size)
    x = {name: part[:1] for name, part in x.items()}
    g = torch.Generator("cuda").manual_seed(3)
    x["initial_state"] = torch.randn(5, 2, size, size, generator=g, device="cuda")
    expect_match(x, torch.tensor(lengths, device="cuda"))


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("few", [1, 5])
def test_8192_reflections(size: int, few: int) -> None:
    g = torch.Generator("cuda").manual_seed(size)
    keys = torch.randn(few, size, generator=g, device="cuda", dtype=torch.float64)
    k = torch.nn.functional.normalize(keys, dim=-1)
    k = k[torch.randint(few, (1, 8192, 1), generator=g, device="cuda")].float()
    v = torch.zeros(1, 8192, 1, size, device="cuda", dtype=BF16)
    start = torch.randn(1, 1, size, size, generator=g, device="cuda")
    x = {"q": k.to(BF16), "k": k, "v": v, "decay": torch.ones_like(k), "left": k, "right": -2 * k}
    x["initial_state"] = start
    with torch.no_grad():
        state = ops.dplr(**x, backend="triton")[1]
        exact = ops.dplr(**{n: t.double() for n, t in x.items()}, backend="triton")[1]
    assert relative_error(state, exact) < 1e-3


def test_delta_rule_with_a_gate_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bfloat16 model passes goes in chunks."""
    taken = []
    forward = chunked.forward
    monkeypatch.setattr(chunked, "forward", lambda *args: taken.append(0) or forward(*args))
    x = draw(200, 128, 128)
    given = {"q": x["q"], "k": x["left"], "v": x["v"], "decay": x["decay"]}
    given = {name: part.to(BF16) for name, part in given.items()}
    beta = x["k"].norm(dim=-1).clamp(0, 2)
    y, state = ops.delta_rule(**given, beta=beta, backend="triton")
    assert taken
    wide = {name: part.double() for name, part in given.items()}
    want, end = ops.delta_rule(**wide, beta=beta.double(), backend="triton")
    assert relative_error(y, want) < 1e-2 and relative_error(state, end) < 5e-5


@pytest.mark.parametrize("name", ["q", "k", "v", "decay", "left", "right"])
def test_nan_in_chunks(name: str) -> None:
    """A NaN shows from its token on, not in the tokens of its chunk before it."""
    x = draw(300, 64, 64)
    x[name][0, 150] = torch.nan
    y, _ = ops.dplr(**x, backend="triton")
    assert y[0, 150].isnan().all()
    assert not y[0, :150].isnan().any() and not y[1:].isnan().any()
    assert name == "q" or y[0, 151:].isnan().all()


def test_same_bits_again() -> None:
    x = draw(300, 128, 128)
    first, second = with_grads(x, None), with_grads(x, None)
    assert all(torch.equal(first[name], second[name]) for name in first)
