"""Rook matrices and their fewest Householder factors; the one-layer detectors' edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statetrack.automata import Machine, RookLayer, factors, one_layer, rook_layer, rook_matrix
from tests.automata.cases import random_machine


@st.composite
def rook_maps(draw: st.DrawFn) -> list[int]:
    dim = draw(st.integers(1, 9))
    images = draw(st.permutations(range(dim)))
    dropped = draw(st.sets(st.integers(0, dim - 1)))
    return [-1 if j in dropped else image for j, image in enumerate(images)]


@settings(deadline=None, max_examples=500)
@given(rook_maps())
def test_factors_are_exact_and_as_few_as_the_rank(images: list[int]) -> None:
    dim = len(images)
    target = rook_matrix(images)
    found = factors(images)
    assert len(found) == np.linalg.matrix_rank(np.eye(dim) - target)
    for dtype in (np.int64, np.float32, np.float16):
        product = np.eye(dim, dtype=dtype)
        for factor in found:
            u = factor.key(dim).astype(dtype)
            product = (np.eye(dim, dtype=dtype) - np.outer(u, u)) @ product
        assert product.tobytes() == target.astype(dtype).tobytes()


def test_factors_of_special_matrices() -> None:
    assert factors([0, 1, 2]) == ()
    assert len(factors([-1, -1, -1])) == 3
    assert len(factors([1, 2, 3, 4, 0])) == 4
    for bad in ([0, 0], [2, 0], [-2]):
        with pytest.raises(ValueError, match="is not a rook map"):
            factors(bad)


def test_detectors_agree_with_the_machine_on_random_machines() -> None:
    rng = np.random.default_rng(0)
    kinds: dict[str, int] = {}
    for _ in range(2000):
        machine = random_machine(rng, int(rng.integers(1, 5)), int(rng.integers(1, 3)))
        found = one_layer(machine)
        kind = found.kind if isinstance(found, RookLayer) else type(found).__name__
        kinds[kind] = kinds.get(kind, 0) + 1
        word = rng.integers(0, machine.num_letters, 40)
        states = machine.run(word)
        if isinstance(found, RookLayer):
            h = found.code(0)
            for letter, state in zip(word.tolist(), states, strict=True):
                a, b = found.transition(letter)
                h = a @ h + b
                assert np.array_equal(h, found.code(int(state)))
                assert a.sum(axis=0).max(initial=0) <= 1 and a.sum(axis=1).max(initial=0) <= 1
        elif found is not None:
            assert [found.state(word[: t + 1]) for t in range(40)] == states.tolist()
    assert set(kinds) == {
        "group",
        "permutation-reset",
        "partial-injection",
        "FiniteMemory",
        "NoneType",
    }


def test_a_detector_says_no_only_when_no_state_can_be_zero() -> None:
    """Brute force over the choice of z, from the definition."""
    rng = np.random.default_rng(1)
    answers = set()
    for _ in range(500):
        machine = random_machine(rng, int(rng.integers(2, 5)), 2)
        n = machine.num_states
        columns = machine.delta.T.tolist()

        def fits(column: list[int], z: int, n: int = n) -> bool:
            if len(set(column)) == 1:
                return True
            alive = [column[q] for q in range(n) if column[q] != z]
            return (z == n or column[z] == z) and len(alive) == len(set(alive))

        possible = any(all(fits(c, z) for c in columns) for z in range(n + 1))
        assert (rook_layer(machine) is not None) == possible
        answers.add(possible)
    assert answers == {True, False}


def test_the_smaller_form_is_preferred() -> None:
    machine = Machine.from_regex("(aa)*", "ab")  # permutation-reset in 3, partial injections in 2
    found = rook_layer(machine)
    assert found is not None and (found.kind, found.dim) == ("partial-injection", 2)
    assert found.coordinate == (0, 1, -1)
    alone = rook_layer(Machine.from_table([[0]]))
    assert alone is not None and (alone.kind, alone.dim) == ("group", 1)
