"""The sampler: every window once in an epoch, shares as asked, rows that continue."""

from collections import Counter

import pytest

from statetrack.lm.sampler import SLOTS, Sampler, Window, permuted


@pytest.mark.parametrize("size", [1, 2, 3, 10, 257, 1000])
def test_a_permutation(size: int) -> None:
    for key in ("a", "b"):
        assert sorted(permuted(i, size, key) for i in range(size)) == list(range(size))
    if size > 100:
        first, second = ([permuted(i, size, key) for i in range(size)] for key in ("a", "b"))
        assert first != second and first != sorted(first)


def test_every_window_once_before_any_again() -> None:
    windows = {"code": 30, "prose": 11}
    sampler = Sampler(windows, batch=4, seed=3)
    found = [sampler.window(step, row) for step in range(41) for row in range(4)]
    everything = {Window(name, i) for name, count in windows.items() for i in range(count)}
    for epoch in range(4):
        assert set(found[41 * epoch : 41 * (epoch + 1)]) == everything
    assert found[:41] != found[41:82]


def test_it_depends_on_the_seed_alone() -> None:
    first, again = (Sampler({"a": 50}, batch=2, seed=1) for _ in range(2))
    other = Sampler({"a": 50}, batch=2, seed=2)
    late = first.window(17, 1)  # asked out of order
    rows = [first.window(s, r) for s in range(20) for r in range(2)]
    assert rows == [again.window(s, r) for s in range(20) for r in range(2)]
    assert rows != [other.window(s, r) for s in range(20) for r in range(2)]
    assert late == again.window(17, 1)


def test_a_mixture_has_its_shares_and_repeats_no_window_early() -> None:
    sampler = Sampler({"a": 2000, "b": 100}, batch=8, seed=0, mixture={"a": 0.25, "b": 0.75})
    found = [sampler.window(i // 8, i % 8) for i in range(2 * SLOTS)]
    counts = Counter(one.domain for one in found)
    assert counts == {"a": SLOTS // 2, "b": 3 * SLOTS // 2}
    first = [one for one in found if one.domain == "a"]
    assert len(set(first)) == len(first)
    b = [one for one in found if one.domain == "b"]
    for epoch in range(len(b) // 100):
        assert len(set(b[100 * epoch : 100 * (epoch + 1)])) == 100


def test_streams_continue() -> None:
    sampler = Sampler({"a": 21}, batch=2, seed=0, streams=True)
    for row in range(2):
        rows = [sampler.window(step, row).index for step in range(10)]
        assert rows == list(range(rows[0], rows[0] + 10))
    assert {sampler.window(0, row).index for row in range(2)} == {0, 10}
    assert [step for step in range(25) if sampler.begins(step)] == [0, 10, 20]
