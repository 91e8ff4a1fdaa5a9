"""Which method compiles a machine, and what is refused in one clear line."""

import tracemalloc

import numpy as np
import pytest

from statetrack.automata import Machine, groups, named
from statetrack.compiler import CompiledRNN, check, compile, compile_program, cost_of
from statetrack.compiler.driver import chosen
from statetrack.compiler.layout import Objective
from statetrack.compiler.profile import Profile
from tests.automata.cases import CASES
from tests.compiler.expect import expect_one_line
from tests.helpers import unhooked

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


# -- cheapest by the cost that is named ---------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "objective", "method", "layers", "householders"),
    [
        (Machine.from_table([[*range(10)]] * 10), "latency", "one-layer", 1, 1),  # last letter
        (named("counter_60"), "latency", "one-layer", 1, 9),  # on 3 + 4 + 5 points, with resets
        (named("dyck_2_depth_3"), "latency", "diagonal", 4, 0),
        (named("dyck_2_depth_3"), "layers", "one-layer", 1, 23),
        (groups.cyclic(64, generators=[1]), "latency", "diagonal", 6, 0),
        (groups.cyclic(64, generators=[1]), "layers", "group", 1, 63),
        (groups.cyclic(64, generators=[1]), "parameters", "diagonal", 6, 0),
    ],
    ids=str,
)
def test_objectives(
    machine: Machine, objective: Objective, method: str, layers: int, householders: int
) -> None:
    network = compile(machine, objective=objective)
    cost = network.plan.cost
    assert (network.plan.method, cost.layers, cost.householders) == (method, layers, householders)
    assert check(network, length=200).errors == 0


def test_counting_modulo_1024_takes_400_weights() -> None:
    network = compile(Machine.from_table([[(q + 1) % 1024] for q in range(1024)]))
    cost = network.plan.cost
    assert (network.plan.method, cost.layers, cost.parameters) == ("diagonal", 10, 400)
    word = np.zeros(2050, dtype=np.int64)
    assert (network.run(word) == network.machine.run(word)).all()


FIFTEEN = [
    *([1, 7], [12, 11], [9, 7], [8, 1], [8, 3], [6, 13], [4, 5], [3, 12], [2, 13], [10, 0]),
    *([10, 0], [9, 14], [5, 8], [14, 14], [7, 12]),
]


@pytest.mark.slow
def test_dropping_points_serves_fifteen_states() -> None:
    network = compile(Machine.from_table(FIFTEEN))
    assert network.plan.cost.layers == 14 and "dropping points" in network.plan.why
    assert check(network, length=200).errors == 0


@pytest.mark.slow
def test_seventeen_states_whose_letters_are_nearly_permutations() -> None:
    rng = np.random.default_rng(0)
    letters = []
    for _ in range(2):
        letter = rng.permutation(17)
        letter[0] = letter[1]
        letters.append(letter)
    network = compile(Machine.from_table(np.array(letters).T))
    assert network.machine.num_states == 17
    assert network.plan.method == "cascade" and network.plan.cost.layers == 16
    assert "dropping points" in network.plan.why
    word = rng.integers(0, 2, 400)
    assert (network.run(word) == network.machine.run(word)).all()


def test_dropping_points_is_left_out_above_16_states_where_another_way_is_known() -> None:
    brackets = named("dyck_1_depth_17")
    table = compile(brackets, objective="layers").plan.table()
    assert "by dropping points" in table and "not built" in table


def test_the_table_has_every_candidate() -> None:
    network = compile(named("dyck_2_depth_2"))
    table = network.plan.table()
    assert len(network.plan.candidates) == len(table.splitlines()) - 1 == 6
    for way in ("a row for each state", "counters and registers", "by holonomy", "remembers"):
        assert way in table
    costs = [c.cost for c in network.plan.candidates if c.cost is not None]
    assert network.plan.cost == costs[0]
    assert [c.steps for c in costs] == sorted(c.steps for c in costs)
    for candidate in network.plan.candidates:
        if candidate.program is not None:
            built = CompiledRNN.from_program(candidate.program)
            assert built.plan.cost == candidate.cost


def test_unknown_objectives_are_refused() -> None:
    expect_one_line(
        lambda: unhooked(chosen)(Profile(named("s3")), "auto", "beauty"),
        "objective='beauty'",
        "latency, layers, parameters, flops",
    )


# -- limits: answered or refused at once, within bounds ------------------------------------------


@pytest.mark.parametrize("name", ["_x_".join(["z2"] * 31), "a5_x_a5", "a5_x_a5_x_a5", "s7"])
def test_large_products_are_refused_before_they_are_built(name: str) -> None:
    tracemalloc.start()
    expect_one_line(lambda: named(name), "the group's table", "generators=")
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_the_way_out_of_large_products_exists() -> None:
    a5 = groups.alternating(5)
    machine = groups.direct_product(a5, a5, generators=[1, 60])
    assert machine.num_letters == 2 and machine.num_states <= 3600


def test_refusals_name_ways_out_that_exist() -> None:
    rng = np.random.default_rng(0)
    wide = Machine.from_table(rng.integers(0, 40, (40, 3)))
    with pytest.raises(ValueError, match=r"the limit is 65536; method='dense' takes it$"):
        compile(wide, "cascade")
    assert compile(wide, "dense").run([0, 1, 2]).tolist() == wide.run([0, 1, 2]).tolist()
    copies = Machine.from_table(rng.integers(0, 40, (40, 3)), outputs=[0] * 40)
    with pytest.raises(ValueError, match="minimise=True leaves 1 of its 38 states"):
        compile(copies, "cascade")
    assert compile(copies, "cascade", minimise=True).machine.num_states == 1


@pytest.mark.slow
def test_random_machines_of_a_hundred_states_compile() -> None:
    machine = Machine.from_table(np.random.default_rng(1).integers(0, 100, (100, 2)))
    network = compile(machine)
    assert network.plan.method == "dense"
    assert check(network, words=2, length=50).errors == 0


@pytest.mark.slow
def test_a_long_cycle_compiles_on_few_points() -> None:
    machine = Machine.from_table([[(q + 1) % 20000] for q in range(20000)])
    network = compile(machine)
    assert network.plan.cost.householders == 31 + 624  # 20000 = 2^5 5^4
    word = np.zeros(50, dtype=np.int64)
    assert (network.run(word) == machine.run(word)).all()
