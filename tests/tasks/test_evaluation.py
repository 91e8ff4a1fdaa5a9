"""Evaluation sets and the seeds of their splits."""

import pytest

from statetrack import tasks
from statetrack.tasks import LengthRange
from tests.helpers import unhooked
from tests.tasks.oracles import NAMES, same


def test_evaluation_sets_are_fixed() -> None:
    batch = tasks.evaluation_set("parity", 64)
    assert same(batch, tasks.evaluation_set(tasks.get("parity"), 64))
    assert not same(batch, tasks.evaluation_set("parity", 64, seed=1))
    assert not same(batch, tasks.evaluation_set("parity", 64, split="test"))
    assert batch.num_tokens.min() >= 39
    short = tasks.evaluation_set("parity", 64, lengths=LengthRange(3, 5))
    assert short.tokens.shape == (64, 4)


@pytest.mark.parametrize(
    ("name", "start"),
    [("parity", "01011011110110110101"), ("mod_arithmetic_brackets", "((-1-(3+-1))+(-2+((0")],
)
def test_evaluation_sets_do_not_change_unnoticed(name: str, start: str) -> None:
    first = tasks.evaluation_set(name, 2, seed=7).tokens[0]
    assert tasks.get(name).decode(first).startswith(start)


def test_splits_cannot_share_a_seed() -> None:
    """The last two bits tell the splits apart, also in the 32 bits the CPU generator keeps."""
    for name in ("parity", "s5"):
        for seed in range(50):
            kept = [
                tasks.seed_of(name, split, seed) % 4 for split in ("train", "validation", "test")
            ]
            assert kept == [0, 1, 2]
    seeds = {tasks.seed_of(name, "train", seed) % 2**32 for name in NAMES for seed in range(50)}
    assert len(seeds) == len(NAMES) * 50
    with pytest.raises(ValueError, match="train, validation, test"):
        unhooked(tasks.seed_of)("parity", "valid", 0)
