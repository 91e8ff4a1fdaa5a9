"""What several test files share."""

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor


def unhooked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as users call it, without the test run's shape hook in front."""
    return inspect.unwrap(function)


def mostly_slow(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """`values` for `parametrize`, marked slow but for those in `fast`; a tuple is several values.

    Where two parameters are both mostly slow, a test is fast if both its values are.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in fast else pytest.mark.slow,
        )
        for value in values
    ]


def relative_error(got: Tensor, expected: Tensor) -> float:
    """‖got - expected‖ / ‖expected‖ in float64 (absolute where nothing is expected)."""
    got, expected = (
        x.detach().to(torch.complex128 if x.is_complex() else torch.float64)
        for x in (got, expected)
    )
    size = expected.norm().item()
    error = (got - expected).norm().item()
    return error / size if size > 0 else error
