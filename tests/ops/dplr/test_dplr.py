"""`dplr` against the other ops where they meet, and what it promises over long sequences."""

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.helpers import relative_error
from tests.ops.cases import CASES, cpu_backends
from tests.ops.delta.test_delta import key_sequences, norm_drift

BACKENDS = cpu_backends("dplr")
CASE = next(case for case in CASES if case.op == "dplr")
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@each_backend
def test_the_recurrence_of_its_matrices(backend: str) -> None:
    """A = Diag(a) + l rᵀ and B = k vᵀ, written out, through `matrix_scan`."""
    x = CASE.inputs(17)
    y, state = CASE.run(x, backend)
    matrices = torch.diag_embed(x["decay"]) + x["left"][..., None] * x["right"][..., None, :]
    writes = x["k"][..., None] * x["v"][..., None, :]
    by_head = [part.transpose(1, 2).flatten(0, 1) for part in (matrices, writes)]
    states, _ = ops.matrix_scan(by_head[0], x["initial_state"].flatten(0, 1), by_head[1])
    states = states.unflatten(0, x["initial_state"].shape[:2])
    wanted = CASE.options["scale"] * torch.einsum("bhtkv,bthk->bthv", states, x["q"])
    assert relative_error(y, wanted) < 1e-12
    assert relative_error(state, states[:, :, -1]) < 1e-12


@each_backend
def test_without_rank_one_it_is_linear_attention(backend: str) -> None:
    x = CASE.inputs(33)
    x["left"] = torch.zeros_like(x["left"])
    y, state = CASE.run(x, backend)
    names = ("q", "k", "v", "decay", "initial_state")
    wanted, end = ops.linear_attention(**{name: x[name] for name in names}, **CASE.options)
    assert relative_error(y, wanted) < 1e-12 and relative_error(state, end) < 1e-12


@each_backend
@pytest.mark.parametrize("normalize", [True, False])
def test_equal_gates_are_the_delta_rule_of_one_gate(backend: str, normalize: bool) -> None:
    """Values and every gradient, by kernels that share no code with these."""
    case = next(case for case in CASES if str(case) == "delta_rule-gated")
    x = {name: part.requires_grad_() for name, part in case.inputs(20).items()}
    options = {"normalize": normalize, "scale": 0.3, "backend": backend}
    results = []
    for by_key in (False, True):
        given = x if normalize else x | {"k": x["k"] / 3}
        if by_key:
            given = given | {"decay": x["decay"][..., None].expand_as(x["k"])}
        y, state = ops.delta_rule(**given, **options)
        grads = torch.autograd.grad(y.sin().sum() + state.cos().sum(), list(x.values()))
        results.append([y, state, *grads])
    for got, wanted in zip(*reversed(results), strict=True):
        assert relative_error(got, wanted) < 1e-11


def test_gates_of_keys_turn_their_own_rows() -> None:
    """β = 0: a gate of -1 flips its row of the state, 0 empties it, 1 keeps it."""
    gates = torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3)
    zero = torch.zeros(1, 1, 1, 3)
    _, state = ops.delta_rule(
        zero, zero, zero, zero[..., 0], gates, initial_state=torch.ones(1, 1, 3, 3)
    )
    assert torch.equal(state[0, 0, :, 0], torch.tensor([-1.0, 0.0, 1.0]))


@pytest.mark.parametrize("size", [32, 128])
def test_norm_stays_over_65536_reflections(size: int) -> None:
    k, state = key_sequences(size, 65_536)
    v, beta = torch.zeros_like(k[..., :16]), torch.full_like(k[..., 0], 2.0)
    with torch.no_grad():
        _, end = ops.delta_rule(k, k, v, beta, torch.ones_like(k), initial_state=state)
    assert norm_drift(end, state) < 1e-3
    assert relative_error(end[0], state[0]) < 1e-3


@each_backend
def test_out_of_range_gates_are_found_when_asked(backend: str) -> None:
    x: dict[str, Tensor] = CASE.inputs(3)
    x["decay"] = 1.5 * torch.ones_like(x["decay"])
    with ops.check_values(), pytest.raises(ValueError, match=r"decay must lie in \[-1, 1\]"):
        CASE.run(x, backend)
