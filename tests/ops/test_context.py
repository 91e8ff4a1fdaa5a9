"""A sequence on several processes is the same sequence: outputs, last state and every gradient."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from statetrack import ops
from tests.ops.cases import CASES, Case
from tests.ops.processes import on_processes, segment, summed

TIME = 41
CUT = [case for case in CASES if case.op != "slstm_scan"]
KEY = 5


def run(case: Case, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return case.run(inputs, "torch")


def leaves(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}


def score(y: Tensor, weight: Tensor) -> Tensor:
    return (y * weight).sum().real if y.is_complex() else (y * weight).sum()


def compared(case: Case, state: bool) -> dict[str, float]:
    """The greatest errors on this process, by what they are errors of."""
    inputs = case.inputs(TIME, state=state)
    whole = leaves(inputs)
    y, last = run(case, whole)
    generator = torch.Generator().manual_seed(1)
    wy, wl = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (y, last))
    (score(y, wy) + score(last, wl)).backward()

    part = segment(TIME)
    mine = leaves({name: x[:, part] if name in case.seq else x for name, x in inputs.items()})
    with ops.context_parallel(dist.group.WORLD):
        found, end = run(case, mine)
    # every process has the last state: each asks for a share of it
    (score(found, wy[:, part]) + score(end, wl) / dist.get_world_size()).backward()
    errors = {"y": error(found, y[:, part]), "state": error(end, last)}
    for name, x in mine.items():
        assert x.grad is not None and whole[name].grad is not None, name
        if name in case.seq:
            errors[name] = error(x.grad, whole[name].grad[:, part])
        else:
            errors[name] = error(summed(x.grad), whole[name].grad)
    return errors


def error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / (1 + expected.abs().max()))


def all_compared() -> dict[tuple[str, bool], dict[str, float]]:
    return {(str(case), state): compared(case, state) for case in CUT for state in (True, False)}


def five_keys(time: int) -> dict[str, float]:
    """The error of the last state after reflections along five keys in turn, whole and cut."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(5, KEY, generator=generator, dtype=torch.float64)
    k = keys[torch.arange(time) % 5][None, :, None]
    start = torch.randn(1, 1, KEY, 3, generator=generator, dtype=torch.float64)
    v, beta = torch.zeros(1, time, 1, 3), torch.full((1, time, 1), 2.0)
    exact = _reflected((k, k, v.double(), beta.double()), start)
    part, given = segment(time), (k.float(), k.float(), v, beta)
    alone = _reflected(given, start.float())
    with ops.context_parallel(dist.group.WORLD):
        shared = _reflected([x[:, part] for x in given], start.float())
    return {
        name: float((x.double() - exact).norm() / exact.norm())
        for name, x in (("alone", alone), ("shared", shared))
    }


def _reflected(given: Sequence[Tensor], start: Tensor) -> Tensor:
    return ops.delta_rule(*given, initial_state=start, backend="torch")[1]


def half_precision() -> dict[str, Tensor]:
    """bfloat16 in, a float32 state: y of this process, and the same from the whole sequence."""
    case = next(case for case in CUT if str(case) == "delta_rule")
    inputs = {k: x.bfloat16() for k, x in case.inputs(TIME, state=False).items()}
    part = segment(TIME)
    whole, last = run(case, inputs)
    with ops.context_parallel(dist.group.WORLD):
        y, end = run(case, {name: x[:, part] for name, x in inputs.items()})
    return {"y": y, "whole": whole[:, part], "end": end, "last": last}


def refused() -> list[str]:
    """What is said of what cannot be cut."""
    said = []
    with ops.context_parallel(dist.group.WORLD):
        for attempt in (_a_packed_row, _a_short_segment, _a_state_that_is_not_linear):
            with pytest.raises(ValueError) as caught:
                attempt()
            said.append(str(caught.value))
    return said


def _a_packed_row() -> Any:
    x = torch.ones(1, 6, 2)
    return ops.diagonal_scan(x, x, cu_seqlens=torch.tensor([0, 2, 6]), backend="torch")


def _a_short_segment() -> Any:
    return ops.short_convolution(torch.ones(1, 2, 3), torch.ones(3, 4))


def _a_state_that_is_not_linear() -> Any:
    case = next(case for case in CASES if case.op == "slstm_scan")
    return run(case, case.inputs(5))


def afterwards() -> bool:
    """A block that ended, with an error too, leaves nothing behind."""
    x = torch.ones(1, 3, 2)
    with pytest.raises(KeyError), ops.context_parallel(dist.group.WORLD):
        raise KeyError
    return torch.equal(ops.diagonal_scan(x, x, backend="torch")[1], torch.full((1, 2), 3.0))


def everything() -> dict[str, Any]:
    """All of this file's questions, for one start of the processes."""
    return {
        "compared": all_compared(),
        "five keys": five_keys(4000),
        "half precision": half_precision(),
        "refused": refused(),
        "afterwards": afterwards(),
    }


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    return on_processes(3, everything)


@pytest.mark.parametrize("state", [True, False], ids=["state", "empty"])
@pytest.mark.parametrize("case", CUT, ids=str)
def test_three_processes_are_one(case: Case, state: bool, answers: list[dict[str, Any]]) -> None:
    for one in answers:
        errors = one["compared"][str(case), state]
        assert len(errors) == 2 + len(case.inputs(1, state=state))
        assert max(errors.values()) < 1e-10, errors


def test_reflections_stay_reflections(answers: list[dict[str, Any]]) -> None:
    for one in answers:
        assert one["five keys"]["shared"] < max(2 * one["five keys"]["alone"], 1e-6)


def test_the_state_is_float32_for_half_precision(answers: list[dict[str, Any]]) -> None:
    for one in answers:
        found = one["half precision"]
        assert found["y"].dtype == torch.bfloat16 and found["end"].dtype == torch.float32
        torch.testing.assert_close(found["end"], found["last"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["y"], found["whole"], rtol=2**-7, atol=1e-3)


def test_what_cannot_be_cut_is_refused(answers: list[dict[str, Any]]) -> None:
    for one in answers:
        packed, short, other = one["refused"]
        assert "packed sequences cannot be cut" in packed
        assert "a segment of 2 tokens is too short" in short
        assert other.startswith("slstm_scan is not linear in its state")


def test_nothing_is_left_behind(answers: list[dict[str, Any]]) -> None:
    assert all(one["afterwards"] for one in answers)
