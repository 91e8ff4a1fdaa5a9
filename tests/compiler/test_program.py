"""Programs in numpy against their machines: every case, many random machines, every method."""

import dataclasses

import numpy as np
import pytest

from statetrack.automata import (
    FiniteMemory,
    Machine,
    RookLayer,
    drop_point,
    factors,
    facts,
    groups,
    holonomy,
    named,
    num_householders,
    one_layer,
)
from statetrack.compiler import Program, compile_program, cost_of
from statetrack.compiler.from_cascade import program_of_cascade
from statetrack.compiler.from_group import program_on_points
from statetrack.compiler.from_one_layer import program_of_memory, program_of_rook_layer
from statetrack.compiler.from_split import program_of_split
from statetrack.compiler.from_table import program_of_table
from statetrack.compiler.layout import OBJECTIVES
from statetrack.compiler.program import DeltaLayer, DiagonalLayer, Stage
from tests.automata.cases import CASES, KINDS, Case, lively_word, random_machine, random_word
from tests.helpers import mostly_slow

BY_NAME = {case.name: case for case in CASES}


def assert_emulates(program: Program, seed: int = 0, length: int = 200) -> None:
    """Equal at every letter, on words that fall into sinks and on words that avoid them."""
    rng = np.random.default_rng(seed)
    machine = program.machine
    for word in (random_word(rng, machine, length), lively_word(rng, machine, length)):
        expected = machine.run(word)
        got = program.run(word)
        wrong = np.flatnonzero(got != expected)
        assert not wrong.size, f"{machine!r}, {program.method}: wrong from letter {wrong[0]}"


def programs(machine: Machine) -> list[Program]:
    """Everything that the passes can make of a machine."""
    made = [program_of_cascade(holonomy(machine)), program_of_table(machine)]
    if machine.num_states <= 10:
        made.append(program_of_cascade(drop_point(machine)))
    form = one_layer(machine)
    if isinstance(form, RookLayer):
        made.append(program_of_rook_layer(machine, form))
    elif isinstance(form, FiniteMemory):
        made.append(program_of_memory(form))
    if facts(machine).is_2_group:
        made.append(program_of_split(holonomy(machine, "disjoint")))
    if facts(machine).is_group:
        made.append(compile_program(machine, "group"))
    return made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pass_emulates_every_case(case: Case) -> None:
    machine = case.make()
    methods = set()
    for program in [*programs(machine), compile_program(machine)]:
        assert_emulates(program)
        methods.add(program.method)
        for word in (*case.accepts, *case.rejects):
            if word:
                assert program.run(word).tolist() == machine.run(word).tolist()
    expected = {"cascade", "dense"}
    expected |= {"diagonal"} if case.two_group else set()
    expected |= {"one-layer"} if case.one_layer else set()
    expected |= {"group"} if case.group else set()
    assert expected <= methods


@pytest.mark.parametrize("seed", mostly_slow(range(8), fast=[1]))
def test_random_machines(seed: int) -> None:
    """8 x 45 = 360 machines of 2 to 8 states, each through every pass that fits it."""
    rng = np.random.default_rng(seed)
    for i in range(45):
        machine = random_machine(rng, 2 + i % 7, int(rng.integers(1, 4)), KINDS[i % 3])
        for program in programs(machine):
            assert_emulates(program, seed=i, length=40)


def test_a_machine_of_one_state() -> None:
    machine = Machine.from_table([[0, 0]], alphabet="ab")
    for method in ("auto", "group", "one-layer", "cascade", "diagonal", "dense", "rotation"):
        program = compile_program(machine, method)
        assert program.method == method or method == "auto"
        assert program.run("abba").tolist() == [0, 0, 0, 0]


def test_random_machines_of_ten_states_and_of_twenty() -> None:
    rng = np.random.default_rng(9)
    for n, k in ((10, 2), (10, 3), (20, 2)):
        machine = random_machine(rng, n, k)
        assert_emulates(compile_program(machine, "cascade"), length=300)


def test_no_method_beats_auto() -> None:
    for case in CASES:
        machine = case.make()
        made = [p for p in programs(machine) if p.method != "dense"]
        for objective in OBJECTIVES:
            best = cost_of(compile_program(machine, objective=objective)).key(objective)
            assert best <= min(cost_of(p).key(objective) for p in made)


@pytest.mark.parametrize(
    ("machine", "degree", "worst"),
    [
        (groups.symmetric(5), 5, 4),
        (groups.alternating(5), 5, 4),
        (groups.cyclic(60), 12, 9),
        (groups.cyclic(6), 5, 3),
        (groups.dihedral(5), 5, 4),
        (groups.quaternion(), 8, 6),
        (groups.symmetric(5, groups.displacing_at_most(5, 2)), 5, 1),
    ],
    ids=str,
)
def test_theorem_3_counts_householders_in_the_representation_used(
    machine: Machine, degree: int, worst: int
) -> None:
    program = compile_program(machine, "group")
    layer = program.stages[0].layer
    assert isinstance(layer, DeltaLayer)
    assert (len(layer.rows) - 1, layer.num_householders) == (degree, worst)
    for number, symbol in enumerate(layer.symbols):
        matrix, added = layer.transition(number)
        assert not added.any()
        points = matrix[:-1, :-1].argmax(axis=0)
        rank = np.linalg.matrix_rank(np.eye(len(matrix)) - matrix)
        assert len(symbol.steps) == rank == num_householders(points.tolist())
    assert_emulates(program)


def test_points_that_do_not_determine_the_state_are_refused() -> None:
    with pytest.raises(ValueError, match="do not determine"):
        program_on_points(groups.cyclic(4), {0: (0, 1), 1: (1, 0), 2: (0, 1), 3: (1, 0)})


def test_factors_multiply_to_the_matrix_of_every_letter() -> None:
    for name in ("(ab)*", "(aab|bba)*", "Dyck-2, depth 2", "S5 and a reset"):
        machine = BY_NAME[name].make()
        form = one_layer(machine)
        assert isinstance(form, RookLayer)
        layer = program_of_rook_layer(machine, form).stages[0].layer
        for letter in range(machine.num_letters):
            matrix, added = layer.transition(letter)
            expected, code = form.transition(letter)
            assert (matrix[:-1, :-1] == expected).all() and (added[:-1, 0] == code).all()
            if form.resets[letter] is None:
                count = len(factors(form.maps[letter]))
                assert count == np.linalg.matrix_rank(np.eye(form.dim) - expected)


def test_diagonal_programs_of_aperiodic_machines_never_flip_a_sign() -> None:
    for case in CASES:
        if case.two_group:
            program = compile_program(case.make(), "diagonal")
            layers = [stage.layer for stage in program.stages]
            assert all(isinstance(layer, DiagonalLayer) for layer in layers)
            decays = np.concatenate([layer.decay.ravel() for layer in layers])  # type: ignore
            assert (decays.min() >= 0) == case.aperiodic
            assert set(decays.tolist()) <= {1.0, 0.25, -1.0}


def test_the_literal_construction_of_theorem_4_fails() -> None:
    """Handing on the state after the letter in place of the one before runs another automaton."""
    machine = Machine.from_regex("(a|b)*ab", "ab")
    program = compile_program(machine, "cascade")
    first = program.stages[0]
    same = len(first.layer.label_names) - 1  # "the label before was the one it resets to"
    literal = np.broadcast_to(first.after[:, same : same + 1], first.after.shape).copy()
    assert (literal >= 0).all()  # both letters reset this level
    broken = dataclasses.replace(
        program, stages=(Stage(first.layer, first.symbol, literal), *program.stages[1:])
    )
    accepting = machine.outputs[program.run("abab")]
    assert accepting.tolist() == [False, True, False, True]
    assert not machine.outputs[broken.run("ab" * 50)].any()  # rejects every word


def test_programs_are_immutable_values() -> None:
    program = compile_program(named("s3"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        program.method = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        program.stages[0].after[0, 0] = 1


def test_trace_tells_what_each_layer_holds() -> None:
    program = compile_program(Machine.from_regex("(a|b)*ab", "ab"), "cascade")
    trace = program.trace("aab")
    assert trace.letters == ("a", "a", "b") and trace.states == (1, 1, 2)
    assert trace.labels[0] == ("{1}", "{1}", "{0,2}")  # after the letter, resets included
    text = str(trace).splitlines()
    assert len(text) == 4 and text[0].startswith("letter") and text[3].split()[-1] == "2"
