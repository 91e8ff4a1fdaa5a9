"""Facts found without the monoid against the monoid itself, enumerated."""

from itertools import chain

import numpy as np
import pytest

from statetrack.automata import Facts, Machine, facts, holonomy, monoid_size, named
from statetrack.automata.images import image_classes, image_graph
from tests.automata.cases import KINDS, random_machine


def enumerate_monoid(machine: Machine) -> np.ndarray:
    n = machine.num_states
    seen = {tuple(range(n))}
    queue = list(seen)
    columns = machine.delta.T.tolist()
    for s in queue:
        for column in columns:
            image = tuple([column[q] for q in s])
            if image not in seen:
                seen.add(image)
                queue.append(image)
    return np.array(queue)


def power(maps: np.ndarray, exponent: int) -> np.ndarray:
    result = np.broadcast_to(np.arange(maps.shape[1]), maps.shape)
    for _ in range(exponent):
        result = np.take_along_axis(maps, result, axis=1)
    return result


def maximal_subgroups(monoid: np.ndarray) -> set[frozenset[tuple[int, ...]]]:
    """For each idempotent e the permutations of its image by elements with es = s = se."""
    found = set()
    squares = np.take_along_axis(monoid, monoid, axis=1)
    for e in monoid[(squares == monoid).all(axis=1)]:
        image = np.unique(e)
        absorbed = (e[monoid] == monoid).all(axis=1) & (monoid[:, e] == monoid).all(axis=1)
        moves = monoid[absorbed][:, image]
        bijective = (np.sort(moves, axis=1) == image).all(axis=1)
        found.add(frozenset(map(tuple, np.searchsorted(image, moves[bijective]).tolist())))
    return found


def is_solvable(group: frozenset[tuple[int, ...]]) -> bool:
    """Commutators of all elements, closed, again and again."""
    while len(group) > 1:
        elements = np.array(sorted(group))
        inverses = np.argsort(elements, axis=1)
        commutators = {
            tuple(b[a[y[x]]].tolist())
            for a, x in zip(elements, inverses, strict=True)
            for b, y in zip(elements, inverses, strict=True)
        }
        closed = set(commutators)
        queue = list(commutators)
        for p in queue:
            for g in commutators:
                product = tuple([g[i] for i in p])
                if product not in closed:
                    closed.add(product)
                    queue.append(product)
        if len(closed) == len(group):
            return False
        group = frozenset(closed)
    return True


def assert_facts_are_those_of_the_monoid(machine: Machine, found: Facts) -> None:
    n = machine.num_states
    assert n <= 5, "60 is the exponent of every subgroup on at most 5 points"
    monoid = enumerate_monoid(machine)
    assert monoid_size(machine) == len(monoid)
    omega = power(monoid, 60)
    assert found.is_aperiodic == bool((power(monoid, 61) == omega).all())
    assert found.is_2_group == bool((power(monoid, 64) == omega).all())
    assert found.is_group == all(len(set(s)) == n for s in monoid.tolist())
    subgroups = maximal_subgroups(monoid)
    assert found.is_solvable == all(map(is_solvable, subgroups))
    orders = {p.group.order for p in found.permutators}
    assert {len(g) for g in subgroups if len(g) > 1} <= orders
    # permutator groups are groups of maps of the monoid, restricted
    for p in found.permutators:
        restricted = {tuple(row) for row in monoid[:, list(p.states)].tolist()}
        kept = {row for row in restricted if sorted(row) == list(p.states)}
        assert len(kept) == p.group.order


@pytest.mark.parametrize("kind", KINDS)
def test_facts_agree_with_brute_force_on_random_machines(kind: str) -> None:
    rng = np.random.default_rng(2026)
    kinds_seen = set()
    for _ in range(130):
        machine = random_machine(rng, int(rng.integers(2, 6)), int(rng.integers(1, 4)), kind)
        found = facts(machine)
        assert_facts_are_those_of_the_monoid(machine, found)
        kinds_seen.add((found.is_group, found.is_aperiodic, found.is_2_group, found.is_solvable))
    if kind == "order-preserving":
        assert all(aperiodic for _, aperiodic, _, _ in kinds_seen)
    else:  # the sample is not one-sided
        assert len(kinds_seen) >= 4


def test_facts_agree_with_brute_force_on_named_machines() -> None:
    for name in ("t_3", "t_4", "t_5", "cerny_4", "s5_points", "a5_points", "s5_reset", "parity"):
        machine = named(name)
        assert_facts_are_those_of_the_monoid(machine, facts(machine))


def test_aperiodic_exactly_when_holonomy_permutes_nothing() -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for i in range(200):
        machine = random_machine(rng, int(rng.integers(2, 8)), 2, KINDS[i % 3])
        levels = holonomy(machine, labels="disjoint").levels
        moved = any(p != tuple(sorted(p)) for p in chain(*(level.permutations for level in levels)))
        assert facts(machine).is_aperiodic == (not moved)
        seen.add(moved)
    assert seen == {True, False}


def test_star_free_languages_are_closed_under_boolean_operations() -> None:
    star_free = [
        Machine.from_regex(r, "ab") for r in ("a*b*", "(ab)*", "(a|b)*ab", "(a|b)*aa(a|b)*")
    ]
    for a in star_free:
        assert facts(a.complement()).is_aperiodic
        for b in star_free:
            assert facts(a.product(b)).is_aperiodic
            assert facts(a.product(b, np.logical_or).minimal()).is_aperiodic
    counting = Machine.from_regex("(aa)*", "ab")
    assert not facts(counting.product(star_free[0])).is_aperiodic


def test_a_machine_may_have_more_groups_than_its_language() -> None:
    machine = Machine.from_table([[1], [2], [0]], accepting=[0, 1, 2])
    assert facts(machine).permutators[0].group.order == 3
    assert facts(machine.minimal()).is_aperiodic


def test_one_state_is_a_trivial_group() -> None:
    found = facts(Machine.from_table([[0, 0]]))
    assert found.is_group and found.is_aperiodic and found.is_2_group and found.is_solvable
    assert found.permutators == () and found.num_images == 1


def test_classes_are_strongly_connected_and_ordered() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        machine = random_machine(rng, 6, 2, "near-permutations")
        graph = image_graph(machine, singletons=True)
        classes = image_classes(machine, graph)
        place = {p: i for i, c in enumerate(classes) for p in c.members}
        assert len(place) == sum(len(s) > 1 for s in graph.sets)
        for i, found in enumerate(classes):
            root = graph.sets[found.members[0]]
            for p in found.members:
                for letter in found.word_to(p):
                    root = tuple(machine.delta[list(root), letter].tolist())
                assert root == found.forward[p] and tuple(sorted(root)) == graph.sets[p]
                for letter in found.word_back(p):
                    root = tuple(machine.delta[list(root), letter].tolist())
                assert sorted(root) == list(graph.sets[found.members[0]])
                root = graph.sets[found.members[0]]
                for target in graph.step[p]:
                    assert place.get(target, -1) <= i


def test_large_machines_stop_with_the_size_they_hit() -> None:
    with pytest.raises(ValueError, match="too large: image sets of a machine of 20 states reached"):
        facts(named("t_20"))
    with pytest.raises(ValueError, match="65536; the machine is minimal"):
        holonomy(named("t_20"))
    twins = Machine.from_table(named("t_20").delta, outputs=[0] * 20)
    with pytest.raises(ValueError, match="minimise the machine first: 1 of its states are left"):
        holonomy(twins)
    with pytest.raises(ValueError, match="transition monoid reached 101, the limit is 100"):
        monoid_size(named("cerny_4"), limit=100)
