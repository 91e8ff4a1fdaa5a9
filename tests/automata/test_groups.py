"""Groups: their machines, their orders and series, and the minimal degrees of the oracle table."""

from collections.abc import Sequence
from itertools import permutations
from math import factorial, prod

import numpy as np
import pytest

from statetrack.automata import (
    Machine,
    PermutationGroup,
    groups,
    minimal_degree,
    minimal_representation,
    named,
    num_householders,
    prime_series,
)
from statetrack.automata.minimal_degree import subgroups
from statetrack.automata.permutation_group import compose, inverse


def group(*generators: Sequence[int]) -> PermutationGroup:
    return PermutationGroup.generated_by(generators)


def of(name: str) -> PermutationGroup:
    return PermutationGroup.from_machine(named(name))


def linear_group(matrices: list[list[list[int]]], field: int) -> PermutationGroup:
    """Matrices over a prime field acting on the non-zero vectors of the plane."""
    vectors = [(x, y) for x in range(field) for y in range(field) if (x, y) != (0, 0)]
    return group(
        *(
            [vectors.index(tuple(int(c) for c in np.array(m) @ v % field)) for v in vectors]
            for m in matrices
        )
    )


def on_pairs(generators: list[Sequence[int]]) -> PermutationGroup:
    pairs = [(i, j) for j in range(5) for i in range(j)]
    return group(
        *([pairs.index(tuple(sorted((g[i], g[j])))) for i, j in pairs] for g in generators)  # type: ignore[arg-type]
    )


def dicyclic3() -> PermutationGroup:
    """a^e x^s with a^6 = 1, x^2 = a^3, x a = a^{-1} x, acting on itself."""

    def times(g: tuple[int, int], h: tuple[int, int]) -> tuple[int, int]:
        (e, s), (f, t) = g, h
        turn = e + (-f if s else f) + (3 if s and t else 0)
        return turn % 6, (s + t) % 2

    every = [(e, s) for s in range(2) for e in range(6)]
    return group(*([every.index(times(g, h)) for g in every] for h in ((1, 0), (0, 1))))


SWAP5, CYCLE5 = (1, 0, 2, 3, 4), (1, 2, 3, 4, 0)
SL23 = linear_group([[[1, 1], [0, 1]], [[1, 0], [1, 1]]], 3)

MINIMAL_DEGREE = [
    ("Z6", of("z6"), 5),
    ("Z12", of("z12"), 7),
    ("Z60", of("z60"), 12),
    ("Z8", of("z8"), 8),
    ("Q8", of("q8"), 8),
    ("SL(2,3)", SL23, 8),
    ("Dic3", dicyclic3(), 7),
    ("D4", of("d4"), 4),
    ("D5", of("d5"), 5),
    ("D6", of("d6"), 5),
    ("C2^3", of("z2_x_z2_x_z2"), 6),
    ("A4", of("a4"), 4),
    ("S4", of("s4"), 4),
    ("A5", of("a5"), 5),
    ("S5", of("s5"), 5),
    ("S5 on pairs", on_pairs([SWAP5, CYCLE5]), 5),
    ("A4 x Z5", of("a4_x_z5"), 9),
    ("trivial", of("z1"), 0),
]


@pytest.mark.parametrize(
    ("known", "degree"), [row[1:] for row in MINIMAL_DEGREE], ids=[r[0] for r in MINIMAL_DEGREE]
)
def test_minimal_degree_and_its_representation(known: PermutationGroup, degree: int) -> None:
    found = minimal_representation(known)
    assert found.degree == degree == sum(found.orbits) == minimal_degree(known)
    images = PermutationGroup.generated_by(found.generators, degree=degree)
    assert images.order == known.order
    # generators side by side generate no more than either: the map is an isomorphism
    both = [
        (*g, *(known.degree + i for i in image))
        for g, image in zip(known.generators, found.generators, strict=True)
    ]
    assert PermutationGroup.generated_by(both).order == known.order


@pytest.mark.parametrize(
    ("name", "count"), [("s4", 30), ("a5", 59), ("s5", 156), ("q8", 6), ("z12", 6), ("d4", 10)]
)
def test_number_of_subgroups(name: str, count: int) -> None:
    assert len(subgroups(of(name))) == count


def test_minimal_degree_refuses_large_groups() -> None:
    with pytest.raises(ValueError, match="the group's order reached 5040, the limit is 1000"):
        minimal_degree(of("s7_points"))


@pytest.mark.parametrize(
    ("known", "series"),
    [
        (of("s5"), (120, 60)),
        (of("a5"), (60,)),
        (of("s4"), (24, 12, 4, 1)),
        (of("s3"), (6, 3, 1)),
        (of("q8"), (8, 2, 1)),
        (of("d4"), (8, 2, 1)),
        (of("z60"), (60, 1)),
        (SL23, (24, 8, 2, 1)),
        (of("z1"), (1,)),
    ],
    ids=str,
)
def test_derived_series(known: PermutationGroup, series: tuple[int, ...]) -> None:
    assert known.derived_series == series
    assert known.is_solvable == (series[-1] == 1)
    assert known.is_2_group == (known.order in (1, 2, 4, 8))


@pytest.mark.parametrize("n", range(2, 13))
def test_symmetric_groups_on_points(n: int) -> None:
    known = PermutationGroup.from_machine(named(f"s{n}_points"))
    assert known.order == factorial(n)
    assert known.is_solvable == (n <= 4)
    if n >= 3:
        even = PermutationGroup.from_machine(named(f"a{n}_points"))
        assert even.order == factorial(n) // 2
        assert known.derived_subgroup.order == even.order
        assert (1, 0, *range(2, n)) not in even


def test_orders_and_membership_agree_with_enumeration() -> None:
    rng = np.random.default_rng(5)
    for _ in range(80):
        n = int(rng.integers(2, 6))
        known = PermutationGroup.generated_by(rng.permutation(n).tolist() for _ in range(2))
        members = closure(set(known.generators))
        assert known.order == len(members)
        assert {p for p in permutations(range(n)) if p in known} == members
        assert {tuple(row) for row in known.elements(1000).tolist()} == members
        commutators = {
            then(then(undone(a), undone(b)), then(a, b)) for a in members for b in members
        }
        assert known.derived_subgroup.order == len(closure(commutators))


def then(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([q[i] for i in p])


def undone(p: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(p)), key=p.__getitem__))


def closure(start: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    found = set(start)
    queue = list(start)
    for p in queue:
        for g in start:
            if then(p, g) not in found:
                found.add(then(p, g))
                queue.append(then(p, g))
    return found


@pytest.mark.parametrize("name", ["s4", "z60", "q8", "d6", "a4_x_z5", "z1", "s3"])
def test_prime_series_multiplies_to_the_order(name: str) -> None:
    known = of(name)
    series = prime_series(known)
    assert prod(step.prime for step in series) == known.order
    above = known
    for step in series:
        assert step.element in above and step.element not in step.subgroup
        for g in above.generators:
            for h in step.subgroup.generators:
                assert compose(compose(inverse(g), h), g) in step.subgroup
        above = step.subgroup
    assert above.is_trivial


def test_prime_series_refuses_groups_that_are_not_solvable() -> None:
    with pytest.raises(ValueError, match="perfect subgroup of order 60: it is not solvable"):
        prime_series(of("s5_points"))


@pytest.mark.parametrize(
    ("machine", "order"),
    [
        (groups.symmetric(1), 1),
        (groups.symmetric(5), 120),
        (groups.alternating(5), 60),
        (groups.cyclic(60), 60),
        (groups.dihedral(10), 20),
        (groups.quaternion(), 8),
        (groups.direct_product(groups.alternating(4), groups.cyclic(5)), 60),
    ],
    ids=str,
)
def test_state_number_is_element_number_when_all_elements_are_letters(
    machine: Machine, order: int
) -> None:
    everyone = np.arange(order)
    assert machine.alphabet == tuple(range(order))
    assert machine.delta.shape == (order, order)
    assert np.array_equal(machine.outputs, everyone)
    assert np.array_equal(machine.delta[0], everyone)  # 1·x = x
    assert np.array_equal(machine.delta[:, 0], everyone)  # x·1 = x
    x, y, z = np.random.default_rng(0).integers(0, order, (3, 500))
    assert np.array_equal(
        machine.delta[machine.delta[x, y], z], machine.delta[x, machine.delta[y, z]]
    )
    assert (np.sort(machine.delta, axis=0) == everyone[:, None]).all()
    assert (np.sort(machine.delta, axis=1) == everyone).all()


def test_products_of_permutations_are_functions_composed_on_the_right() -> None:
    elements = groups.permutations(5).tolist()
    machine = groups.symmetric(5)
    rng = np.random.default_rng(1)
    word = rng.integers(0, 120, 50)
    product = elements[0]
    for x, state in zip(word, machine.run(word), strict=True):
        product = [product[elements[x][i]] for i in range(5)]
        assert elements[state] == product
    assert elements == sorted(elements) and elements[0] == list(range(5))
    even = [p for p in elements if num_householders(p) % 2 == 0]
    a5 = groups.alternating(5)
    x, y = 7, 33
    assert even[a5.delta[x, y]] == [even[x][even[y][i]] for i in range(5)]


def test_fewer_letters_keep_the_elements_as_outputs() -> None:
    full = groups.symmetric(5)
    for letters, count in (
        (groups.displacing_at_most(5, 2), 11),
        (groups.displacing_at_most(5, 3), 31),
    ):
        machine = groups.symmetric(5, generators=letters)
        assert machine.alphabet == letters and len(letters) == count
        assert machine.num_states == 120
        word = np.random.default_rng(2).integers(0, count, 100)
        elements = machine.outputs[machine.run(word)]
        assert np.array_equal(elements, full.run(np.array(letters)[word]))
    assert named("s5_swaps") == groups.symmetric(5, groups.displacing_at_most(5, 2))
    assert groups.cyclic(6, generators=[2]).outputs.tolist() == [0, 2, 4]


def test_relations_of_quaternions_and_dihedral_groups() -> None:
    q8 = groups.quaternion().delta
    minus, i, j, k = 4, 1, 2, 3
    assert q8[i, i] == q8[j, j] == q8[k, k] == minus
    assert (q8[i, j], q8[j, k], q8[k, i]) == (k, i, j)
    assert (q8[j, i], q8[k, j], q8[i, k]) == (k + 4, i + 4, j + 4)
    d7 = groups.dihedral(7).delta
    r, s = 1, 7
    assert d7[s, s] == 0 and d7[d7[s, r], s] == 6


def test_householders_of_a_permutation_are_the_rank() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        p = rng.permutation(int(rng.integers(1, 9)))
        matrix = np.eye(len(p))[:, p]
        assert num_householders(p.tolist()) == np.linalg.matrix_rank(np.eye(len(p)) - matrix)
    counts = [num_householders(p) for p in groups.permutations(5).tolist()]
    assert max(counts) == 4 and counts.count(1) == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: groups.cyclic(0), "cyclic needs an integer of at least 1, got 0"),
        (lambda: groups.symmetric(30), "too large: the points of a symmetric group reached 30.*"),
        (lambda: groups.symmetric(7), "too large: the group's table reached 25401600.*generators="),
        (
            lambda: groups.cyclic(5, generators=[5]),
            r"generator 5 is not an element number in 0\.\.4",
        ),
        (lambda: groups.cyclic(5, generators=[]), "generators is empty"),
        (lambda: groups.direct_product(named("cerny_4"), groups.cyclic(2)), "word problem"),
        (lambda: groups.acting([[1, 0], [0, 1, 2]]), "maps of 2 and of 3 points do not mix"),
        (lambda: groups.acting([[1, 0], [0, 2]]), "state 1, letter 1 goes to 2"),
        (lambda: group((0, 0)), r"\(0, 0\) is not a permutation of 0\.\.1"),
        (lambda: group((0, 1), (0, 1, 2)), r"has 3 points, the group has 2"),
        (lambda: PermutationGroup.from_machine(named("cerny_4")), "letter 'b' does not permute"),
        (lambda: named("s5").complement(), "accepting states"),
    ],
)
def test_bad_groups(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
