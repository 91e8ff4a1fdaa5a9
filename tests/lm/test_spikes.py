"""Which losses stand out."""

import math
import random

from statetrack.lm.spikes import LEAST, Spikes


def test_a_falling_loss_has_none() -> None:
    spikes, dice = Spikes(6.0), random.Random(0)
    losses = [2 + 5 * math.exp(-i / 50) + dice.gauss(0, 0.05) for i in range(400)]
    assert not any(spikes.is_one(loss) for loss in losses)


def test_a_spike_is_not_remembered() -> None:
    spikes = Spikes(6.0)
    for i in range(LEAST):
        assert not spikes.is_one(3.0 + 0.01 * (i % 2))
    before = spikes.state()
    assert spikes.is_one(4.0) and spikes.is_one(math.nan) and spikes.is_one(math.inf)
    assert spikes.state().equal(before)


def test_state_there_and_back() -> None:
    one, other = Spikes(6.0), Spikes(6.0)
    for i in range(130):
        one.is_one(3.0 + 0.01 * (i % 7))
    other.restore(one.state())
    assert other.state().equal(one.state())
    assert other.is_one(4.0) and one.is_one(4.0)
