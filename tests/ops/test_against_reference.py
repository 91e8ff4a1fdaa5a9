"""Every backend of every op equals the float64 reference, in the forward pass and all gradients."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.helpers import mostly_slow, relative_error
from tests.ops.cases import CASES, Case, cpu_backends

SHORT, LONG = [1, 2, 3, 63, 64, 65], 1000
TIME_AND_STATE = list(product([*SHORT, LONG], [True, False]))


def pairs(backends: Callable[[str], list[str]]) -> list:
    return [
        pytest.param(case, backend, id=f"{case}-{backend}")
        for case in CASES
        for backend in backends(case.op)
    ]


FAST = pairs(lambda op: cpu_backends(op)[1:])
ALL = pairs(cpu_backends)


def with_grads(
    case: Case, inputs: dict[str, Tensor], backend: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and the gradients of a random mix of all of them."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    y, state = case.run(leaves, backend)
    outputs = {"y": y, "state": state}
    if case.op == "slstm_scan":  # m, the stabiliser, carries no gradient by definition
        state = torch.stack([state[:, i] for i in (0, 1, 3)], dim=1)
    generator = torch.Generator().manual_seed(7)
    loss = sum(
        (out * torch.randn(out.shape, generator=generator, dtype=torch.float64)).real.sum()
        for out in (y, state)
    )
    names = list(leaves)
    grads = torch.autograd.grad(loss, [leaves[name] for name in names])
    return outputs, dict(zip(names, grads, strict=True))


def single(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs in single precision."""
    return {
        name: x.to(torch.complex64 if x.is_complex() else torch.float32)
        for name, x in inputs.items()
    }


def expect_match(
    case: Case, inputs: dict[str, Tensor], backend: str, *, exact: dict[str, Tensor], tol: float
) -> None:
    expected_out, expected_grad = with_grads(case, exact, "reference")
    got_out, got_grad = with_grads(case, inputs, backend)
    for name, expected in (expected_out | expected_grad).items():
        error = relative_error((got_out | got_grad)[name], expected)
        assert error < tol, f"{name}: relative error {error:.2e}, allowed {tol:.0e}"


def expect_unused_state(case: Case, low: dict[str, Tensor], backend: str, *, tol: float) -> None:
    """y and its gradients are right, in float32, where nobody uses the final state."""
    exact = {name: x.double() for name, x in low.items()}
    found = []
    for whose, inputs in ((backend, low), ("reference", exact)):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        y, _ = case.run(leaves, whose)
        found.append((y, *torch.autograd.grad(y.double().sin().sum(), list(leaves.values()))))
    for name, got, want in zip(("y", *low), *found, strict=True):
        assert relative_error(got, want) < tol, name


@pytest.mark.parametrize(("case", "backend"), FAST)
@pytest.mark.parametrize(
    ("time", "state"),
    mostly_slow(TIME_AND_STATE, fast=[both for both in TIME_AND_STATE if both != (LONG, False)]),
)
def test_equals_reference(case: Case, backend: str, time: int, state: bool) -> None:
    inputs = case.inputs(time, state=state)
    expect_match(case, inputs, backend, exact=inputs, tol=1e-9)


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_float32_is_close(case: Case, backend: str) -> None:
    exact = case.inputs(130)
    low = single(exact)
    rounded = {name: x.to(exact[name].dtype) for name, x in low.items()}
    expect_match(case, low, backend, exact=rounded, tol=2e-5)


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_bfloat16_inputs_lose_only_their_own_rounding(case: Case, backend: str) -> None:
    """State and maths stay in float32; only inputs, y and the input gradients are rounded."""
    if case.label == "complex":
        pytest.skip("there is no complex bfloat16")
    exact = case.inputs(130)
    low = {n: x if n == "initial_state" else x.to(torch.bfloat16) for n, x in exact.items()}
    low["initial_state"] = exact["initial_state"].float() if "initial_state" in exact else None
    low = {name: x for name, x in low.items() if x is not None}
    rounded = {name: x.double() for name, x in low.items()}
    expect_match(case, low, backend, exact=rounded, tol=1e-2)
    _, state = case.run(low, backend)
    _, expected = case.run(rounded, "reference")
    assert state.dtype == torch.float32
    assert relative_error(state, expected) < 2e-5


@pytest.mark.parametrize(("case", "backend"), ALL)
def test_a_state_in_half_precision_is_taken(case: Case, backend: str) -> None:
    if case.label == "complex":
        pytest.skip("there is no complex bfloat16")
    inputs = single(case.inputs(3))
    inputs["initial_state"] = inputs["initial_state"].to(torch.bfloat16)
    y, state = case.run(inputs, backend)
    want, end = case.run(inputs | {"initial_state": inputs["initial_state"].float()}, backend)
    assert torch.equal(y, want) and torch.equal(state, end)


@pytest.mark.parametrize(("case", "backend"), ALL)
@pytest.mark.parametrize("time", mostly_slow([2, 5], fast=[2]))
def test_gradcheck(case: Case, backend: str, time: int) -> None:
    """Finite differences agree with the gradients, at exactly -1, 0 and 1 too."""
    inputs = case.inputs(time)
    names = list(inputs)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        y, state = case.run(dict(zip(names, tensors, strict=True)), backend)
        return (y, state[:, 3]) if case.op == "slstm_scan" else (y, state)

    # the sLSTM state's m has no gradient by definition, so nothing may be perturbed through it
    leaves = [
        x.requires_grad_(not (case.op == "slstm_scan" and name == "initial_state"))
        for name, x in inputs.items()
    ]
    assert torch.autograd.gradcheck(function, leaves, nondet_tol=0.0)


@pytest.mark.parametrize(("case", "backend"), ALL)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_cut_anywhere_equals_whole(case: Case, backend: str, data: st.DataObject) -> None:
    time = data.draw(st.integers(2, 140), label="time")
    cut = data.draw(st.integers(1, time - 1), label="cut")
    inputs = case.inputs(time, seed=time)
    whole, state = case.run(inputs, backend)
    first = inputs | {name: inputs[name][:, :cut] for name in case.seq}
    second = inputs | {name: inputs[name][:, cut:] for name in case.seq}
    y1, middle = case.run(first, backend)
    y2, end = case.run(second | {"initial_state": middle}, backend)
    assert relative_error(torch.cat([y1, y2], dim=1), whole) < 1e-9
    assert relative_error(end, state) < 1e-9


@pytest.mark.parametrize(("case", "backend"), ALL)
def test_step_by_step_equals_parallel(case: Case, backend: str) -> None:
    inputs = case.inputs(70)
    whole, state = case.run(inputs, backend)
    current, steps = inputs["initial_state"], []
    for t in range(70):
        token = inputs | {name: inputs[name][:, t : t + 1] for name in case.seq}
        y, current = case.run(token | {"initial_state": current}, backend)
        steps.append(y)
    assert relative_error(torch.cat(steps, dim=1), whole) < 1e-9
    assert relative_error(current, state) < 1e-9


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_causal(case: Case, backend: str) -> None:
    """Changing a token changes nothing before it, to the last bit."""
    inputs = case.inputs(100)
    before, _ = case.run(inputs, backend)
    changed = dict(inputs)
    for name in case.seq:
        changed[name] = inputs[name].clone()
        changed[name][:, 77:] = case.inputs(100, seed=1)[name][:, 77:]
    after, _ = case.run(changed, backend)
    assert torch.equal(before[:, :77], after[:, :77])
    assert not torch.equal(before[:, 77:], after[:, 77:])


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_batch_rows_do_not_mix(case: Case, backend: str) -> None:
    """A batch of one gives what the row gave in its batch."""
    inputs = case.inputs(40)
    whole, state = case.run(inputs, backend)
    row = {name: x if name in case.shared else x[1:] for name, x in inputs.items()}
    y, end = case.run(row, backend)
    assert relative_error(y, whole[1:]) < 1e-12
    assert relative_error(end, state[1:]) < 1e-12


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_non_contiguous_and_empty_batch(case: Case, backend: str) -> None:
    inputs = case.inputs(20)
    strided = {name: x.flip(-1).contiguous().flip(-1) for name, x in inputs.items()}
    strided = {n: torch.stack([x, x], dim=-1)[..., 0] for n, x in strided.items()}
    assert relative_error(case.run(strided, backend)[0], case.run(inputs, backend)[0]) < 1e-12
    empty = {name: x if name in case.shared else x[:0] for name, x in inputs.items()}
    y, state = case.run(empty, backend)
    assert y.shape[0] == 0 and y.shape[1] == 20 and state.shape[0] == 0


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_nan_in_nan_out(case: Case, backend: str) -> None:
    """A NaN shows from its token on, in its own batch row, and nowhere else."""
    inputs = case.inputs(80)
    name = case.seq[-1]
    inputs[name] = inputs[name].clone()
    inputs[name][0, 50] = torch.nan
    y, _ = case.run(inputs, backend)
    assert y[0, 50].isnan().all()
    assert not y[0, :50].isnan().any()
    assert not y[1:].isnan().any()


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_vmap_folds_into_the_batch(case: Case, backend: str) -> None:
    """vmap over stacked inputs equals a loop, gradients included."""
    stacks = [case.inputs(12, seed=seed) for seed in (0, 1)]
    stacked = {name: torch.stack([s[name] for s in stacks]) for name in stacks[0]}
    leaves = {name: x.clone().requires_grad_() for name, x in stacked.items()}
    y, state = torch.vmap(lambda inputs: case.run(inputs, backend))(leaves)
    if case.op == "slstm_scan":
        state = state[:, :, 3]
    weights = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape).cos()
    grads = torch.autograd.grad((y * weights).real.sum() + state.real.sum(), list(leaves.values()))
    for run, inputs in enumerate(stacks):
        alone = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        y_run, state_run = case.run(alone, backend)
        if case.op == "slstm_scan":
            state_run = state_run[:, 3]
        loss = (y_run * weights[run]).real.sum() + state_run.real.sum()
        expected = torch.autograd.grad(loss, list(alone.values()))
        assert relative_error(y[run], y_run) < 1e-12
        for got, want in zip(grads, expected, strict=True):
            assert relative_error(got[run], want) < 1e-10


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_torch_func_differentiates_as_autograd_does(case: Case, backend: str) -> None:
    """grad, vmap of it, and jacrev, which is a vmap over the backward."""
    inputs = case.inputs(6)

    def loss(leaves: dict[str, Tensor]) -> Tensor:
        y, state = case.run(leaves, backend)
        state = state[:, 3] if case.op == "slstm_scan" else state
        return y.abs().square().sum() + state.real.sin().sum()

    stacked = {name: torch.stack([x, x.flip(0)]) for name, x in inputs.items()}
    together = torch.vmap(torch.func.grad(loss))(stacked)
    for run in range(2):
        leaves = {name: x[run].clone().requires_grad_() for name, x in stacked.items()}
        wanted = torch.autograd.grad(loss(leaves), list(leaves.values()))
        given = {name: x[run] for name, x in stacked.items()}
        alone = torch.func.grad(loss)(given)
        for name, want in zip(leaves, wanted, strict=True):
            assert relative_error(alone[name], want) < 1e-12, name
            assert relative_error(together[name][run], want) < 1e-12, name
    if case.label != "complex":
        first = case.seq[0]
        got = torch.func.jacrev(lambda x: case.run(inputs | {first: x}, backend)[0])(inputs[first])
        want = torch.autograd.functional.jacobian(
            lambda x: case.run(inputs | {first: x}, backend)[0], inputs[first]
        )
        assert relative_error(got, want) < 1e-12


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("case", "backend"), ALL)
def test_forward_derivatives_are_the_references(case: Case, backend: str) -> None:
    """The others refuse, where a custom op would say that every derivative is zero."""
    inputs = case.inputs(4)
    first = case.seq[0]

    def run(x: Tensor) -> Tensor:
        return case.run(inputs | {first: x}, backend)[0]

    at, along = inputs[first], torch.ones_like(inputs[first])
    if backend == "reference":
        assert torch.func.jvp(run, (at,), (along,))[1].abs().amax() > 0
        return
    refused = pytest.raises(RuntimeError, match="no forward derivative; backend='reference' has")
    with refused:
        torch.func.jvp(run, (at,), (along,))
    if not at.is_complex():
        with refused:
            torch.func.jacfwd(run)(at)
    with forward_ad.dual_level(), refused:
        run(forward_ad.make_dual(at, along))


class Listening(TorchDispatchMode):
    """Hears the names of all ops."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.heard.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_one_op_to_those_who_listen(case: Case, backend: str) -> None:
    """A mode sees one op forward and one backward; their numbers are those of the direct call."""
    inputs = case.inputs(30)
    outputs, grads = with_grads(case, inputs, backend)
    with Listening() as listening:
        heard_outputs, heard_grads = with_grads(case, inputs, backend)
    ours = [name for name in listening.heard if name.startswith("statetrack::")]
    assert len(ours) == 2 and ours[1] == f"{ours[0]}_backward"
    for name, value in (outputs | grads).items():
        assert torch.equal(value, (heard_outputs | heard_grads)[name])


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_the_same_from_a_checkpoint(case: Case, backend: str) -> None:
    leaves = {name: x.requires_grad_() for name, x in case.inputs(20).items()}
    grads = []
    for run in (case.run, partial(checkpoint, case.run, use_reentrant=False)):
        y, _ = run(leaves, backend)
        grads.append(torch.autograd.grad(y.real.sum(), list(leaves.values())))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_gradients_in_a_batch(case: Case, backend: str) -> None:
    leaves = {name: x.requires_grad_() for name, x in case.inputs(20).items()}
    y, _ = case.run(leaves, backend)
    rows = torch.stack([torch.ones_like(y), y.detach().cos()])
    gradient = partial(torch.autograd.grad, y, list(leaves.values()), retain_graph=True)
    together = gradient(rows, is_grads_batched=True)
    alone = [gradient(row) for row in rows]
    for i, got in enumerate(together):
        assert relative_error(got, torch.stack([grads[i] for grads in alone])) < 1e-12


@pytest.mark.parametrize(("case", "backend"), ALL)
def test_second_derivatives_are_the_references(case: Case, backend: str) -> None:
    leaves = {name: x.requires_grad_() for name, x in case.inputs(4).items()}
    y, _ = case.run(leaves, backend)
    loss = y.abs().square().sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    size = sum(grad.abs().square().sum() for grad in grads)
    if backend == "reference":
        torch.autograd.grad(size, list(leaves.values()))
    else:
        with pytest.raises(RuntimeError, match="no second derivative; backend='reference' has"):
            torch.autograd.grad(size, list(leaves.values()))


@pytest.mark.parametrize(("case", "backend"), FAST)
def test_autocast_changes_nothing(case: Case, backend: str) -> None:
    inputs = single(case.inputs(30))
    plain, _ = case.run(inputs, backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = case.run(inputs, backend)
    assert torch.equal(plain, inside)
