"""Which method compiles a machine, and what is refused in one clear line."""

import numpy as np
import pytest

from statetrack.automata import Machine, groups, named
from statetrack.compiler import check, compile, compile_program, cost_of
from tests.automata.cases import CASES
from tests.compiler.expect import expect_one_line

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("name", "method", "parts"),
    [
        ("s5", "quick", ("method='quick'", "auto")),
        ("t_3", "group", ("needs letters that permute",)),
        ("t_3", "one-layer", ("does not fit", "proves nothing")),
        ("z3", "diagonal", ("does not fit", "theorem 2")),
        ("q8", "rotation", ("addition modulo m",)),
        ("even_a_ends_b", "reflections", ("addition modulo m",)),
    ],
)
def test_methods_that_do_not_fit(name: str, method: str, parts: tuple[str, ...]) -> None:
    expect_one_line(lambda: compile(named(name), method), *parts)


def test_parity_is_a_rotation() -> None:
    assert compile(named("parity"), "rotation").plan.method == "rotation"


def test_machines_that_are_too_large() -> None:
    rng = np.random.default_rng(0)
    wide = Machine.from_table(rng.integers(0, 40, (40, 3)))
    expect_one_line(lambda: compile(wide, "cascade"), "too large", "reached", "the limit is")
    many = groups.cyclic(600)
    expect_one_line(lambda: compile_program(many, "dense"), "too large", "216000000")
    deep = Machine.from_regex("(a|b)*a(a|b){6}", "ab")
    expect_one_line(lambda: compile(deep, "one-layer"), "shift register reached 7")


def test_long_registers_fall_back_to_another_method() -> None:
    deep = Machine.from_regex("(a|b)*a(a|b){6}", "ab")
    network = compile(deep)
    assert network.plan.method in ("cascade", "diagonal")
    assert check(network, length=200).errors == 0


@pytest.mark.parametrize(
    ("name", "method", "layers", "householders"),
    [
        ("(ab)*", "one-layer", 1, 3),
        ("(a|bb)*", "one-layer", 1, 2),
        ("third letter from the end is a", "one-layer", 1, 4),
        ("arithmetic modulo 5", "cascade", 3, 4),
        ("S5 from a swap and a 5-cycle", "group", 1, 4),
        ("T8, all maps of 8 points", "cascade", 7, 7),
        ("Q8 word problem", "group", 1, 6),
        ("even a, ends in b", "diagonal", 2, 0),
        ("(aa)* over a", "diagonal", 1, 0),
        ("a*b*", "cascade", 2, 2),
    ],
)
def test_auto_takes_the_cheapest(name: str, method: str, layers: int, householders: int) -> None:
    program = compile_program(BY_NAME[name].make(), objective="layers")
    assert program.method == method
    cost = cost_of(program)
    assert (cost.layers, cost.householders) == (layers, householders)
