"""Components split into counters modulo primes and a register."""

from math import prod

import numpy as np
import pytest

from statetrack.automata import Level, drop_point, facts, holonomy, named, split
from statetrack.automata.permutation_group import PermutationGroup
from tests.automata.cases import KINDS, random_machine


def assert_split_runs_as_the_level(level: Level, rng: np.random.Generator) -> tuple[int, ...]:
    parts = split(level)
    group = PermutationGroup.generated_by(level.permutations, degree=level.size)
    assert prod(parts.primes) == group.order == len(parts.elements)
    assert all(p in group for p in map(tuple, parts.elements.tolist()))
    actions = rng.integers(0, len(level.actions), 80)
    for start in range(level.size):
        run = parts.run(actions, start)
        label = start
        for t, action in enumerate(actions):
            label = int(level.actions[action, label])
            assert run.labels[t] == label
            if level.resets[action] >= 0 and t:  # a reset leaves the counters as they were
                assert np.array_equal(run.coordinates[t], run.coordinates[t - 1])
            elif t:
                assert run.register[t] == run.register[t - 1]
    return parts.primes


def test_split_of_random_machines() -> None:
    rng = np.random.default_rng(11)
    primes_of_2_groups: set[int] = set()
    for i in range(120):
        machine = random_machine(rng, int(rng.integers(2, 7)), 2, KINDS[i % 3])
        found = facts(machine)
        if not found.is_solvable:
            continue
        for level in holonomy(machine, labels="disjoint").levels:
            primes = assert_split_runs_as_the_level(level, rng)
            if found.is_aperiodic:
                assert primes == ()
            elif found.is_2_group:
                primes_of_2_groups.update(primes)
    assert primes_of_2_groups == {2}


@pytest.mark.parametrize(
    ("name", "primes"),
    [
        ("z8", [(2, 2, 2)]),
        ("q8", [(2, 2, 2)]),
        ("d4", [(2, 2, 2)]),
        ("s4_points", [(2, 3, 2, 2)]),
        ("s4_reset", [(2, 3, 2, 2)]),
        ("counter_5", [(5,)]),
        ("cerny_4", [(2, 2), (3,), (2,)]),
        ("mod_arithmetic", [(2, 2), (5,), ()]),
    ],
)
def test_split_of_named_machines(name: str, primes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    levels = holonomy(named(name), labels="disjoint").levels
    found = [assert_split_runs_as_the_level(level, rng) for level in levels]
    assert sorted(found) == sorted(primes)


def test_a_counter_shifts_by_what_earlier_counters_held_before() -> None:
    """In D4 some shift of a later counter depends on an earlier one: the group is not abelian."""
    (level,) = holonomy(named("d4")).levels
    parts = split(level)
    assert parts.shifts[0].shape == (8, 1) and parts.shifts[2].shape == (8, 4)
    assert any((table != table[:, :1]).any() for table in parts.shifts[1:])


def test_groups_that_are_not_solvable_or_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match="perfect subgroup of order 60"):
        split(holonomy(named("s5_points")).levels[0])
    with pytest.raises(ValueError, match="component's group reached 40320, the limit is 16384"):
        split(drop_point(named("s8_points")).levels[0])
