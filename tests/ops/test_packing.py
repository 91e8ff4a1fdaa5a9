"""Several sequences in one row: each as if it were alone."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops._spec import find
from tests.helpers import relative_error, unhooked
from tests.ops.cases import CASES, Case

CUTS = [[0, 3, 4, 4, 11], [0, 0, 7, 9, 11]]
"""Two rows of 11 tokens as four sequences, of which two are empty."""
OTHER_CUTS = (CUTS, [[0, 1, 2, 5, 11], [0, 5, 10, 10, 11]])


def in_a_row(
    case: Case, seed: int = 0, cuts: list[list[int]] = CUTS, *, state: bool = False
) -> tuple[dict[str, Tensor], ops.Packing]:
    """Inputs of packed rows, with a state for each sequence if asked for (or always needed)."""
    inputs = case.inputs(cuts[0][-1], state=state, seed=seed)
    if "initial_state" in inputs:
        seeds = range(100 + seed, 99 + seed + len(cuts[0]))
        inputs["initial_state"] = torch.cat(
            [case.inputs(1, seed=s)["initial_state"] for s in seeds]
        )
    longest = max(last - first for row in cuts for first, last in pairwise(row))
    return inputs, ops.Packing(torch.tensor(cuts), longest)


def measure(case: Case, y: Tensor, states: Tensor) -> Tensor:
    """A number that depends on all results but sLSTM's stabiliser, which carries no gradient."""
    y, states = (torch.view_as_real(x) if x.is_complex() else x for x in (y, states))
    if case.op == "slstm_scan":
        states = states[:, [0, 1, 3]]
    return y.double().square().sum() + states.double().sin().sum()


def expect_pieces(
    case: Case,
    backend: str,
    *,
    state: bool = False,
    cuts: list[list[int]] = CUTS,
    dtype: torch.dtype = torch.float64,
    error: float = 1e-9,
) -> None:
    """Outputs, states and all gradients are those of the float64 reference on each alone."""
    inputs, packing = in_a_row(case, cuts=cuts, state=state)
    kind = {torch.float64: torch.complex128, torch.float32: torch.complex64}[dtype]
    given = {name: x.to(kind if x.is_complex() else dtype) for name, x in inputs.items()}
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    y, states = getattr(ops, case.op)(**leaves, **case.options, cu_seqlens=packing, backend=backend)
    grads = torch.autograd.grad(measure(case, y, states), list(leaves.values()))

    wide = {
        n: x.to(torch.complex128 if x.is_complex() else torch.float64) for n, x in given.items()
    }
    alone = {name: x.clone().requires_grad_() for name, x in wide.items()}
    loss = torch.zeros((), dtype=torch.float64)
    blank = find(case.op).blank(states.detach())
    for b, row in enumerate(cuts):
        for s, (first, last) in enumerate(pairwise(row)):
            which = b * (len(row) - 1) + s
            piece = {
                name: x[b : b + 1, first:last] if name in case.seq else x
                for name, x in alone.items()
            }
            if "initial_state" in piece:
                piece["initial_state"] = piece["initial_state"][which : which + 1]
            if first == last:
                kept = piece["initial_state"][0] if "initial_state" in piece else blank[which]
                assert torch.equal(states[which], kept.to(states.dtype))
                loss = loss + measure(case, y.new_zeros(0), kept[None])
                continue
            wanted_y, wanted_state = case.run(piece, "reference")
            assert relative_error(y[b : b + 1, first:last], wanted_y) < error
            assert relative_error(states[which], wanted_state[0]) < error
            loss = loss + measure(case, wanted_y, wanted_state)
    for name, got, want in zip(
        alone, grads, torch.autograd.grad(loss, list(alone.values())), strict=True
    ):
        assert relative_error(got, want) < error, name


def expect_no_leak(case: Case, backend: str) -> None:
    """What is not a number in one sequence shows in no other one, nor in its gradients."""
    cuts = [[0, 3, 4, 7], [0, 2, 2, 7]]
    inputs, packing = in_a_row(case, cuts=cuts, state=True)
    inputs["initial_state"][0] = torch.nan
    inputs["initial_state"][4] = torch.nan  # of an empty sequence
    for name in case.seq:
        inputs[name][1, :2] = torch.nan
    leaves = {name: x.requires_grad_(name not in case.shared) for name, x in inputs.items()}
    y, states = getattr(ops, case.op)(**leaves, **case.options, cu_seqlens=packing, backend=backend)
    clean = [1, 2, 5]
    assert not y[0, 3:].isnan().any() and not y[1, 2:].isnan().any()
    assert not states[clean].isnan().any() and states[4].isnan().all()
    loss = measure(case, torch.cat([y[0, 3:], y[1, 2:]]), states[clean])
    wanted = [name for name in inputs if name not in case.shared]
    grads = torch.autograd.grad(loss, [leaves[name] for name in wanted])
    for name, grad in zip(wanted, grads, strict=True):
        if name == "initial_state":
            assert not grad[clean].isnan().any()
        else:
            assert not grad[0, 3:].isnan().any() and not grad[1, 2:].isnan().any(), name


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
@pytest.mark.parametrize("state", [False, True], ids=["empty", "state"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_as_if_alone(case: Case, state: bool, backend: str) -> None:
    expect_pieces(case, backend, state=state)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sequences_of_one_length(case: Case) -> None:
    expect_pieces(case, "auto", state=True, cuts=[[0, 2, 4, 6], [0, 2, 4, 6]])


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_leaks(case: Case, backend: str) -> None:
    expect_no_leak(case, backend)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_state_for_each_sequence(case: Case) -> None:
    inputs, packing = in_a_row(case, state=True)
    op = unhooked(getattr(ops, case.op))
    inputs["initial_state"] = inputs["initial_state"][:2]
    with pytest.raises(ValueError, match=r"initial_state has shape .* sequences = 8"):
        op(**inputs, **case.options, cu_seqlens=packing)


def test_bad_offsets_are_named() -> None:
    x, weight = torch.randn(2, 5, 3), torch.randn(3, 2)
    good = torch.tensor([[0, 2, 5], [0, 5, 5]])
    with pytest.raises(ValueError, match=r"about 1 rows and the batch has 2"):
        ops.short_convolution(x, weight, cu_seqlens=ops.Packing(good[:1], 5))
    with pytest.raises(ValueError, match="must be integers"):
        ops.short_convolution(x, weight, cu_seqlens=ops.Packing(good.float(), 5))
    for bad, longest in ((good, 4), (good + 1, 5), (good.flip(1), 5)):
        with pytest.raises(ValueError, match="rise from 0 to time = 5"):
            ops.short_convolution(x, weight, cu_seqlens=ops.Packing(bad, longest))


def test_offsets_alone() -> None:
    """As the field writes them: int32 [sequences + 1], for one row."""
    x, weight = torch.randn(1, 5, 3), torch.randn(3, 2)
    ends = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    y, states = ops.short_convolution(x, weight, cu_seqlens=ends)
    wanted, others = ops.short_convolution(x, weight, cu_seqlens=ops.Packing(ends[None], 3))
    assert torch.equal(y, wanted) and torch.equal(states, others) and len(states) == 3
    same, _ = ops.short_convolution(x, weight, cu_seqlens=ops.Packing(ends, 3))
    assert torch.equal(y, same)
    with pytest.raises(ValueError, match="about 1 rows and the batch has 2"):
        ops.short_convolution(x.expand(2, -1, -1), weight, cu_seqlens=ends)
    for bad in (ends[1:], ends[:-1], torch.tensor([0, 4, 2, 5])):
        with pytest.raises(ValueError, match="rise from 0 to time = 5"):
            ops.short_convolution(x, weight, cu_seqlens=bad)
    with pytest.raises(ValueError, match="cu_seqlens has shape .* must be integers"):
        ops.short_convolution(x, weight, cu_seqlens=ends[:0])
    with pytest.raises(ValueError, match="cu_seqlens must be a tensor of integers .* got list"):
        unhooked(ops.packing_of)(ends.tolist(), x)
