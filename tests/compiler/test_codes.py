"""Numbers that stand for labels, and the readout that finds the nearest."""

import numpy as np
import pytest

from statetrack.compiler.codes import digits, nearest


@pytest.mark.parametrize("count", [1, 2, 64, 65, 300])
def test_digits_are_distinct_small_and_never_zero(count: int) -> None:
    codes = digits(count)
    assert len(np.unique(codes, axis=0)) == count
    assert np.abs(codes).max() <= 32 and (codes != 0).all()


def test_nearest_code_wins_within_half_a_unit() -> None:
    rng = np.random.default_rng(0)
    codes = digits(100)[:, :, None]
    readout = nearest(codes)
    for label in range(100):
        noise = rng.uniform(-0.49, 0.49, codes.shape[1])
        y = np.stack([codes[label, :, 0] + noise, np.ones(codes.shape[1])], axis=1) * 3.7
        assert np.argmax(readout @ y.ravel()) == label
