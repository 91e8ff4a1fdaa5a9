"""Figure 2."""

import pytest

from statetrack.experiments.states import states


def test_states_settle_or_alternate() -> None:
    by_label = {t.label: t for t in states(64)}
    assert by_label["a = 0.5"].gap < 1e-12
    assert by_label["a = -1"].states[-4:] == (1.0, 0.0, 1.0, 0.0)
    ones = range(1, 65)
    assert by_label["parity, compiled"].states == tuple(-1.0 if t % 2 else 1.0 for t in ones)
    with pytest.raises(ValueError, match="at least 2"):
        states(1)
