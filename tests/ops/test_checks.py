"""Mistakes are refused with the argument, the value and the way out."""

import pytest
import torch

from statetrack import ops
from tests.helpers import unhooked
from tests.ops.cases import CASES, Case

each_case = pytest.mark.parametrize("case", CASES, ids=str)


def call(case: Case, **changed: object) -> None:
    arguments = case.inputs(4) | case.options | changed
    unhooked(getattr(ops, case.op))(**arguments)


@each_case
def test_wrong_rank_and_size_name_the_argument(case: Case) -> None:
    free = {
        ("slstm_scan", "gates", 1),
        ("matrix_scan", "A", 1),
        ("short_convolution", "x", 1),
        ("matrix_scan", "initial_state", 2),
    }
    for name, tensor in case.inputs(4).items():
        culprit = (
            ".*" if case.op == "diagonal_scan" else name
        )  # there any rank is right if all agree
        with pytest.raises(ValueError, match=rf"{culprit} has shape .* must be \["):
            call(case, **{name: tensor[None]})
        for axis in range(tensor.dim()):
            alone = (case.op, name, axis) in free and "inputs" not in case.seq
            if tensor.shape[axis] == 1 or alone:  # nothing else fixes this size
                continue
            with pytest.raises(ValueError, match="has shape .*(must be|has)"):
                call(case, **{name: tensor.narrow(axis, 0, tensor.shape[axis] - 1)})


@each_case
def test_wrong_dtype_device_and_type(case: Case) -> None:
    for name, tensor in case.inputs(4).items():
        with pytest.raises(ValueError, match=f"{name} has dtype torch.int64.*cast it first"):
            call(case, **{name: torch.zeros(tensor.shape, dtype=torch.int64)})
        with pytest.raises(ValueError, match="is on .* move them to one device"):
            call(case, **{name: tensor.to("meta")})
        if name != "initial_state":
            with pytest.raises(ValueError, match=f"{name} must be a tensor, got list"):
                call(case, **{name: [1.0, 2.0]})


def test_a_matrix_scan_begins_somewhere() -> None:
    case = next(case for case in CASES if case.op == "matrix_scan")
    with pytest.raises(ValueError, match="initial_state must be a tensor, got None"):
        call(case, initial_state=None)


@each_case
def test_no_tokens(case: Case) -> None:
    with pytest.raises(ValueError, match="time must be at least 1"):
        call(case, **{name: case.inputs(4)[name][:, :0] for name in case.seq})


def test_low_out_of_range() -> None:
    case = next(case for case in CASES if case.op == "selective_scan")
    for low in (-1.5, 1.0):
        with pytest.raises(ValueError, match=f"low={low} must be at least -1 and below 1"):
            call(case, low=low)


@pytest.mark.parametrize(
    ("op", "name", "value", "message"),
    [
        ("delta_rule", "beta", 2.5, r"beta must lie in \[0, 2\], but reaches from .* to 2.5"),
        ("delta_rule", "beta", -0.5, r"beta must lie in \[0, 2\]"),
        ("delta_rule-gated", "decay", 1.25, r"decay must lie in \[-1, 1\]"),
        ("delta_rule-gate-per-key", "decay", 1.25, r"decay must lie in \[-1, 1\]"),
        ("linear_attention-vector", "decay", -1.25, r"decay must lie in \[-1, 1\]"),
        ("diagonal_scan", "decay", 1.5, r"decay must lie in \[-1, 1\]"),
        ("selective_scan", "delta", -1.0, r"delta must lie in \[0, inf\]"),
        ("selective_scan", "A", 1.0, r"A must lie in \[-inf, 0\]"),
    ],
)
def test_values_are_checked_only_on_request(op: str, name: str, value: float, message: str) -> None:
    case = next(case for case in CASES if str(case) == op)
    wrong = case.inputs(4)[name].clone()
    wrong.view(-1)[0] = value
    call(case, **{name: wrong})
    with ops.check_values(), pytest.raises(ValueError, match=message):
        call(case, **{name: wrong})
    call(case, **{name: wrong})


def test_nan_passes_the_value_check() -> None:
    case = next(case for case in CASES if case.op == "delta_rule")
    beta = torch.full_like(case.inputs(4)["beta"], torch.nan)
    with ops.check_values():
        call(case, beta=beta)
