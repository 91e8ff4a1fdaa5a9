"""The functions of float32 against those of float64, where they are finite and where they end."""

import numpy as np
import pytest
from numba import njit

from statetrack.ops._numba import functions

WANTED = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log_sigmoid": lambda x: -np.logaddexp(0, -x),
}
LEAST = 1.2e-38  # what is smaller may be 0


@pytest.mark.parametrize("name", list(WANTED))
def test_close_to_float64_from_end_to_end(name: str) -> None:
    """e^x of 88.38 to 88.72 is between 2^127.5 and 2^128: it had been NaN, and so was a sigmoid."""
    function = getattr(functions, name)

    @njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # as kernels are
    def run(x, y):
        for i in range(x.shape[0]):
            y[i] = function(x[i])

    x = np.concatenate([np.linspace(-110, 110, 200_001), np.linspace(88.3, 88.73, 10_001)])
    x = np.concatenate([x, -x, [np.inf, -np.inf, 0.0, np.nan]]).astype(np.float32)
    got = np.empty_like(x)
    run(x, got)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = WANTED[name](x.astype(np.float64))
        rounded = wanted.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    inside = np.isfinite(rounded) & (np.abs(wanted) >= LEAST) & (np.abs(x) < 88.72283)
    error = np.abs(got[inside] - wanted[inside]) / np.abs(wanted[inside])
    assert error.max() < 3e-7
    outside = ~inside & ~np.isnan(x) & (np.abs(x) > 89)
    assert np.allclose(got[outside], rounded[outside], rtol=3e-7, atol=LEAST)
