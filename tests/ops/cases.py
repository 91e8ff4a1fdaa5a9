"""One table of inputs for every op, used by every test of every backend.

Inputs are float64 and hit the values the library exists for: eigenvalues -1, 0 and 1, β 0, 1 and 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops._spec import find

BATCH, HEADS, KEY, VALUE = 2, 2, 5, 3


@dataclass(frozen=True)
class Case:
    """An op with named tensor arguments.

    `seq` names those with a time axis at position 1, `shared` those without a batch axis.
    """

    op: str
    make: Callable[[int, torch.Generator], dict[str, Tensor]]
    seq: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    shared: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op

    def inputs(self, time: int, *, state: bool = True, seed: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        made = self.make(time, generator)
        if not state and self.op != "matrix_scan":
            made.pop("initial_state", None)
        return made

    def run(self, inputs: dict[str, Tensor], backend: str) -> tuple[Tensor, Tensor]:
        return getattr(ops, self.op)(**inputs, **self.options, backend=backend)


def cpu_backends(op: str) -> list[str]:
    """The backends of `op` that run on a CPU, the reference first."""
    return [name for name in find(op).backends if name != "triton"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def special(generator: torch.Generator, values: list[float], *shape: int) -> Tensor:
    """Half of the entries are drawn from `values`, half uniformly from between their extremes."""
    low, high = min(values), max(values)
    between = low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)
    which = torch.randint(len(values), shape, generator=generator)
    exact = torch.tensor(values, dtype=torch.float64)[which]
    return torch.where(torch.rand(*shape, generator=generator) < 0.5, exact, between)


def diagonal(time: int, g: torch.Generator) -> dict[str, Tensor]:
    return {
        "decay": special(g, [-1.0, 0.0, 1.0], BATCH, time, KEY),
        "inputs": normal(g, BATCH, time, KEY),
        "initial_state": normal(g, BATCH, KEY),
    }


def diagonal_complex(time: int, g: torch.Generator) -> dict[str, Tensor]:
    size = special(g, [0.0, 1.0], BATCH, time, KEY)
    return {
        "decay": torch.polar(size, 7 * normal(g, BATCH, time, KEY)),
        "inputs": torch.complex(normal(g, BATCH, time, KEY), normal(g, BATCH, time, KEY)),
        "initial_state": torch.complex(normal(g, BATCH, KEY), normal(g, BATCH, KEY)),
    }


def selective(time: int, g: torch.Generator) -> dict[str, Tensor]:
    channels, state = 4, 3
    return {
        "u": normal(g, BATCH, time, channels),
        "delta": special(g, [0.0, 1.0, 50.0], BATCH, time, channels),
        "A": -normal(g, channels, state).exp(),
        "B": normal(g, BATCH, time, state),
        "C": normal(g, BATCH, time, state),
        "D": normal(g, channels),
        "initial_state": normal(g, BATCH, channels, state),
    }


def selective_inputs(
    batch: int, time: int, channels: int, state: int, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """All inputs of `selective_scan` but the state, without special values."""
    g = generator()

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    return {
        "u": draw(batch, time, channels),
        "delta": draw(batch, time, channels).exp(),
        "A": -draw(channels, state).exp(),
        "B": draw(batch, time, state),
        "C": draw(batch, time, state),
        "D": draw(channels),
    }


def attention(
    gate: int, heads: int = HEADS, groups: int = HEADS
) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        return {
            "q": normal(g, BATCH, time, groups, KEY),
            "k": normal(g, BATCH, time, groups, KEY),
            "v": normal(g, BATCH, time, heads, VALUE),
            "decay": special(g, [-1.0, 0.0, 1.0], BATCH, time, heads, gate),
            "initial_state": normal(g, BATCH, heads, KEY, VALUE),
        }

    return make


def attention_no_resets(gate: int) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    """Gates of size near one, so that every token still matters far away."""

    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        made = attention(gate)(time, g)
        sign = special(g, [-1.0, 1.0], *made["decay"].shape).sign()
        made["decay"] = sign * (1 - 0.1 * torch.rand(*sign.shape, generator=g, dtype=sign.dtype))
        return made

    return make


def delta(
    micro: int | None, gated: bool, by_key: bool = False
) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        lead = (BATCH, time) if micro is None else (BATCH, time, micro)
        made = {
            "q": normal(g, BATCH, time, HEADS, KEY),
            "k": normal(g, *lead, HEADS, KEY),
            "v": normal(g, *lead, HEADS, VALUE),
            "beta": special(g, [0.0, 1.0, 2.0], *lead, HEADS),
            "initial_state": normal(g, BATCH, HEADS, KEY, VALUE),
        }
        if gated:
            gates = (KEY,) if by_key else ()
            made["decay"] = special(g, [-1.0, 0.0, 1.0], BATCH, time, HEADS, *gates)
        return made

    return make


def dplr(time: int, g: torch.Generator) -> dict[str, Tensor]:
    """Kimi's transitions with signed gates for one head, RWKV-7's for the other."""
    decay = special(g, [-1.0, 0.0, 1.0], BATCH, time, HEADS, KEY)
    beta = special(g, [0.0, 1.0, 2.0], BATCH, time, HEADS, 1)
    unit = torch.nn.functional.normalize(normal(g, BATCH, time, HEADS, KEY), dim=-1)
    rate = special(g, [0.0, 1.0], BATCH, time, HEADS, KEY)
    kimi = torch.tensor([True, False])[:, None]
    return {
        "q": normal(g, BATCH, time, HEADS, KEY),
        "k": normal(g, BATCH, time, HEADS, KEY),
        "v": normal(g, BATCH, time, HEADS, VALUE),
        "decay": torch.where(kimi, decay, decay.abs()),
        "left": torch.where(kimi, unit, -rate * unit),
        "right": torch.where(kimi, -beta * decay * unit, unit),
        "initial_state": normal(g, BATCH, HEADS, KEY, VALUE),
    }


def dense(with_inputs: bool) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        orthogonal = torch.linalg.qr(normal(g, BATCH, time, KEY, KEY)).Q
        # without writes a zero would leave nothing to compare
        size = special(g, [0.0 if with_inputs else 0.98, 1.0], BATCH, time, 1, 1)
        made = {
            "A": size * orthogonal,
            "initial_state": normal(g, BATCH, KEY, VALUE),
        }
        if with_inputs:
            made["inputs"] = normal(g, BATCH, time, KEY, VALUE)
        return made

    return make


def slstm(time: int, g: torch.Generator) -> dict[str, Tensor]:
    state = normal(g, BATCH, 4, HEADS, KEY)
    state[:, 1] = state[:, 1].abs() + 0.5  # the normaliser n is positive
    return {
        "gates": 3 * normal(g, BATCH, time, 4, HEADS, KEY),
        "R": 0.4 * normal(g, 4, HEADS, KEY, KEY),
        "initial_state": state,
    }


def convolution(width: int, bias: bool) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        made = {
            "x": 2 * normal(g, BATCH, time, KEY),
            "weight": normal(g, KEY, width),
            "initial_state": normal(g, BATCH, width - 1, KEY),
        }
        return made | ({"bias": normal(g, KEY)} if bias else {})

    return make


_SILU = {"activation": "silu"}
_WEIGHTS = ("weight", "bias")
_ATTENTION = ("q", "k", "v", "decay")
_SELECTIVE, _A_AND_D = ("u", "delta", "B", "C"), ("A", "D")
_DELTA = ("q", "k", "v", "beta")
_DPLR = ("q", "k", "v", "decay", "left", "right")

CASES = [
    Case("diagonal_scan", diagonal, ("decay", "inputs")),
    Case("diagonal_scan", diagonal_complex, ("decay", "inputs"), label="complex"),
    Case("selective_scan", selective, _SELECTIVE, {"low": -1.0}, "", _A_AND_D),
    Case("selective_scan", selective, _SELECTIVE, {"low": 0.0}, "unsigned", _A_AND_D),
    Case("selective_scan", selective, _SELECTIVE, {"low": -0.3}, "between", _A_AND_D),
    Case("linear_attention", attention(KEY), _ATTENTION, {"scale": 0.7}, "vector"),
    Case("linear_attention", attention(1), _ATTENTION, label="scalar"),
    Case("linear_attention", attention(1, groups=1), _ATTENTION, {"scale": 0.7}, "shared"),
    Case("linear_attention", attention(KEY, heads=4), _ATTENTION, label="shared-vector"),
    Case("linear_attention", attention_no_resets(KEY), _ATTENTION, label="vector-long"),
    Case("linear_attention", attention_no_resets(1), _ATTENTION, label="scalar-long"),
    Case("delta_rule", delta(None, False), _DELTA, {"scale": 0.7}),
    Case("delta_rule", delta(None, True), (*_DELTA, "decay"), label="gated"),
    Case("delta_rule", delta(None, True, True), (*_DELTA, "decay"), {"scale": 0.7}, "gate-per-key"),
    Case("delta_product", delta(2, False), _DELTA, label="two"),
    Case("delta_product", delta(3, True), (*_DELTA, "decay"), {"scale": 2.0}, "three-gated"),
    Case("dplr", dplr, _DPLR, {"scale": 0.7}),
    Case("matrix_scan", dense(False), ("A",)),
    Case("matrix_scan", dense(True), ("A", "inputs"), label="inputs"),
    Case("slstm_scan", slstm, ("gates",), shared=("R",)),
    Case("short_convolution", convolution(4, True), ("x",), _SILU, "silu", _WEIGHTS),
    Case("short_convolution", convolution(4, False), ("x",), {}, "plain", _WEIGHTS),
    Case("short_convolution", convolution(2, True), ("x",), {}, "two", _WEIGHTS),
    Case("short_convolution", convolution(7, False), ("x",), _SILU, "seven", _WEIGHTS),
]


def expect_exact_ends(
    backend: str, low: float, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> None:
    """exp(Δ A) underflows to 0 and then a = low; Δ = 0 gives a = 1. So the state, and its gradient.

    For the ends low = -1 and low = 0, where every product of them is exact.
    """
    generator = torch.Generator().manual_seed(0)
    channels, state, time = 70, 3, 9
    start, given = (normal(generator, 1, channels, state).to(device, dtype) for _ in range(2))
    start.requires_grad_()
    forgets = torch.randint(2, (1, time, channels), generator=generator).to(device, dtype)
    A = -torch.ones(channels, state, dtype=dtype, device=device)
    ones = torch.ones(1, time, state, dtype=dtype, device=device)
    _, final = ops.selective_scan(
        torch.zeros_like(forgets),
        1e6 * forgets,
        A,
        ones,
        ones,
        low=low,
        initial_state=start,
        backend=backend,
    )
    factor = torch.where(forgets == 1, low, 1.0).prod(1)[..., None]
    assert torch.equal(final, factor * start)
    (grad,) = torch.autograd.grad(final, start, given)
    assert torch.equal(grad, factor * given)
