"""Machines by name, and the arithmetic machine against Python's own arithmetic."""

import re

import numpy as np
import pytest

from statetrack.automata import groups, mod_arithmetic, named
from statetrack.automata.named import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_name_is_a_machine(name: str) -> None:
    assert named(name).num_states > 1
    assert named(name.upper()) == named(name)


def test_names_of_groups() -> None:
    assert named("s5") == groups.symmetric(5)
    assert named("a5") == groups.alternating(5)
    assert named("z60") == groups.cyclic(60)
    assert named("d10") == groups.dihedral(10) and named("d10").num_states == 20
    assert named("q8") == groups.quaternion()
    assert named("a4_x_z5") == groups.direct_product(groups.alternating(4), groups.cyclic(5))
    assert named("parity") == groups.cyclic(2)


@pytest.mark.parametrize(
    ("name", "near"),
    [("mod_arithmatic", "mod_arithmetic"), ("partiy", "parity"), ("cerny", "cerny_4")],
)
def test_a_wrong_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"no machine is called '{name}'; did you mean '{near}'?"):
        named(name)


def test_wrong_numbers_are_named() -> None:
    for name, message in (
        ("z0", "at least 1, got 0"),
        ("q16", "q8, got q16"),
        ("s99", "reached 99"),
        ("mod_arithmetic_1", "at least 2, got 1"),
        ("dyck_0_depth_2", "at least 1, got 0, 2"),
        ("dyck_4_depth_40", "too large"),
        ("z999999", "too large"),
        ("mod_arithmetic_999", "too large"),
        ("cerny_1", "at least 2"),
    ):
        with pytest.raises(ValueError, match=message):
            named(name)


@pytest.mark.parametrize("modulus", [2, 3, 5, 7])
def test_arithmetic_machine_computes(modulus: int) -> None:
    machine = mod_arithmetic(modulus)
    rng = np.random.default_rng(modulus)
    digits = [str(d) for d in range(modulus)]
    for _ in range(200):
        terms = int(rng.integers(1, 9))
        tokens = [str(rng.choice(digits))]
        for _ in range(terms - 1):
            tokens += [str(rng.choice(list("+-*"))), str(rng.choice(digits))]
        outputs = machine.outputs[machine.run(tokens)]
        for t in range(len(tokens)):
            text = "".join(tokens[: t + 1])
            expected = eval(text) % modulus if t % 2 == 0 else -1
            assert outputs[t] == expected, text


def test_arithmetic_machine_never_leaves_an_error() -> None:
    machine = mod_arithmetic(5)
    for word in ("+", "1+*2", "12", "1++", "*"):
        assert machine.outputs[machine.run(word + "+1")][-1] == -1
        assert re.fullmatch(r"\d([-+*]\d)*", word) is None


@pytest.mark.parametrize("kinds", [1, 4, 5, 27])
def test_brackets_of_any_number_of_kinds(kinds: int) -> None:
    machine = named(f"dyck_{kinds}_depth_2")
    assert machine.num_states == kinds**2 + kinds + 2
    letters = range(2 * kinds)
    pairs = sum(machine.accepts([a, b]) for a in letters for b in letters)
    assert pairs == kinds


def test_large_machines_of_brackets_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer kinds or a smaller depth"):
        named("dyck_9_depth_900")
