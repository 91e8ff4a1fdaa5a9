"""Several sequences in one row: each as if it were alone."""

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.ops._spec import find
from tests.helpers import relative_error
from tests.ops.cases import CASES, Case

CUTS = [[0, 3, 4, 4, 11], [0, 0, 7, 9, 11]]
"""Two rows of 11 tokens as four sequences, of which two are empty."""
OTHER_CUTS = (CUTS, [[0, 1, 2, 5, 11], [0, 5, 10, 10, 11]])
PIECEWISE = [case for case in CASES if find(case.op).sequences]


def in_a_row(
    case: Case, seed: int = 0, cuts: list[list[int]] = CUTS
) -> tuple[dict[str, Tensor], ops.Packing]:
    inputs = case.inputs(cuts[0][-1], state=False, seed=seed)
    return inputs, ops.Packing(torch.tensor(cuts), longest=7)


def expect_pieces(case: Case, backend: str) -> None:
    """Outputs, states and all gradients are those of the reference on every piece alone."""
    inputs, packing = in_a_row(case)
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    y, states = getattr(ops, case.op)(**leaves, **case.options, cu_seqlens=packing, backend=backend)
    grads = torch.autograd.grad(y.square().sum() + states.sin().sum(), list(leaves.values()))

    alone = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    loss = torch.zeros((), dtype=torch.float64)
    for b, row in enumerate(CUTS):
        for s, (first, last) in enumerate(zip(row, row[1:], strict=False)):
            state = states[b * (len(row) - 1) + s]
            if first == last:
                assert not state.any()
                continue
            piece = {
                name: x[b : b + 1, first:last] if name in case.seq else x
                for name, x in alone.items()
            }
            wanted_y, wanted_state = case.run(piece, "reference")
            assert relative_error(y[b : b + 1, first:last], wanted_y) < 1e-9
            assert relative_error(state, wanted_state[0]) < 1e-9
            loss = loss + wanted_y.square().sum() + wanted_state.sin().sum()
    for name, got, want in zip(
        alone, grads, torch.autograd.grad(loss, list(alone.values())), strict=True
    ):
        assert relative_error(got, want) < 1e-9, name


@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
@pytest.mark.parametrize("case", PIECEWISE, ids=str)
def test_each_as_if_alone(case: Case, backend: str) -> None:
    expect_pieces(case, backend)


def test_bad_offsets_are_named() -> None:
    x, weight = torch.randn(2, 5, 3), torch.randn(3, 2)
    good = torch.tensor([[0, 2, 5], [0, 5, 5]])
    with pytest.raises(ValueError, match="initial_state"):
        ops.short_convolution(
            x, weight, initial_state=torch.zeros(2, 1, 3), cu_seqlens=ops.Packing(good, 5)
        )
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
    with pytest.raises(ValueError, match="about 1 rows and the batch has 2"):
        ops.short_convolution(x.expand(2, -1, -1), weight, cu_seqlens=ends)
    for bad in (ends[1:], ends[:-1], torch.tensor([0, 4, 2, 5])):
        with pytest.raises(ValueError, match="rise from 0 to time = 5"):
            ops.short_convolution(x, weight, cu_seqlens=bad)
