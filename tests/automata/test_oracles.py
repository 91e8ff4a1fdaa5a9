"""Every named automaton against what is known of it, and every form of it against its runs."""

import numpy as np
import pytest

from statetrack.automata import (
    FiniteMemory,
    Machine,
    RookLayer,
    drop_point,
    facts,
    finite_memory,
    holonomy,
    monoid_size,
    one_layer,
)
from tests.automata.cases import CASES, Case, lively_word, random_word

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_facts_are_those_of_the_oracle_table(case: Case) -> None:
    machine = case.make()
    found = facts(machine)
    assert machine.num_states == found.num_states == case.states
    assert found.is_group == case.group
    assert found.is_aperiodic == case.aperiodic
    assert found.is_2_group == case.two_group
    assert found.is_solvable == case.solvable
    assert tuple(sorted(p.group.order for p in found.permutators)) == case.orders


@each_case
def test_monoid_has_the_size_of_the_oracle_table(case: Case) -> None:
    machine = case.make()
    if case.monoid is None:
        with pytest.raises(ValueError, match="too large: the transition monoid reached 20001"):
            monoid_size(machine, limit=20_000)
    else:
        assert monoid_size(machine) == case.monoid


@each_case
def test_words_of_permutators_act_as_their_generators(case: Case) -> None:
    machine = case.make()
    for permutator in facts(machine).permutators:
        assert len(permutator.words) == len(permutator.group.generators)
        for word, generator in zip(permutator.words, permutator.group.generators, strict=True):
            state = np.array(permutator.states)
            for letter in word:
                state = machine.delta[state, letter]
            assert state.tolist() == [permutator.states[i] for i in generator]


@each_case
def test_holonomy_has_the_levels_of_the_oracle_table(case: Case) -> None:
    machine = case.make()
    cascade = holonomy(machine)
    assert cascade.sizes == case.sizes
    assert cascade.verify() == machine.delta.size
    apart = holonomy(machine, labels="disjoint")
    assert apart.verify() == machine.delta.size
    moving = any(p != tuple(range(len(p))) for level in apart.levels for p in level.permutations)
    assert moving != case.aperiodic


@each_case
def test_drop_point_always_has_n_minus_1_levels(case: Case) -> None:
    machine = case.make()
    if machine.num_states > 11:
        with pytest.raises(ValueError, match=f"{machine.num_states} states"):
            drop_point(machine)
        return
    cascade = drop_point(machine)
    assert cascade.sizes == tuple(range(machine.num_states, 1, -1))
    assert cascade.verify() == machine.delta.size


@each_case
def test_cascades_run_as_the_machine_does(case: Case) -> None:
    machine = case.make()
    rng = np.random.default_rng(7)
    words = [random_word(rng, machine, 200), lively_word(rng, machine, 2000)]
    cascades = [holonomy(machine), holonomy(machine, labels="disjoint")]
    if machine.num_states <= 11:
        cascades.append(drop_point(machine))
    for cascade in cascades:
        for word in words:
            run = cascade.run(word)
            assert np.array_equal(run.states, machine.run(word))
            assert run.labels.shape == (len(word), len(cascade.levels))
            assert cascade.decode(run.labels[-1].tolist()) == run.states[-1]
        assert [cascade.decode(cascade.encode(q)) for q in range(machine.num_states)] == list(
            range(machine.num_states)
        )


@each_case
def test_one_layer_form(case: Case) -> None:
    machine = case.make()
    found = one_layer(machine)
    if case.one_layer is None:
        assert found is None
        return
    kind, dim = case.one_layer
    assert found is not None and found.dim == dim
    rng = np.random.default_rng(3)
    for word in (random_word(rng, machine, 300), lively_word(rng, machine, 300)):
        states = machine.run(word)
        if isinstance(found, FiniteMemory):
            assert kind == "memory"
            assert [found.state(word[: t + 1]) for t in range(len(word))] == states.tolist()
        else:
            assert kind == found.kind
            _assert_layer_tracks(found, word, states)


def _assert_layer_tracks(layer: RookLayer, word: np.ndarray, states: np.ndarray) -> None:
    matrices = [layer.transition(letter) for letter in range(len(layer.maps))]
    h = layer.code(0)
    codes = {tuple(layer.code(q).tolist()): q for q in range(len(layer.coordinate))}
    assert len(codes) == len(layer.coordinate)
    for letter, state in zip(word, states, strict=True):
        a, b = matrices[letter]
        h = a @ h + b
        assert codes[tuple(h.tolist())] == state


@pytest.mark.parametrize("case", [c for c in CASES if c.accepts], ids=str)
def test_words_are_accepted_and_rejected(case: Case) -> None:
    machine = case.make()
    assert all(machine.accepts(word) for word in case.accepts)
    assert not any(machine.accepts(word) for word in case.rejects)
    assert not any(machine.complement().accepts(word) for word in case.accepts)


def test_memory_needs_its_whole_length() -> None:
    memory = finite_memory(Machine.from_regex("(a|b)*a(a|b){2}", "ab"))
    assert memory is not None and memory.length == 3
    machine = memory.machine
    assert machine.run("aab")[-1] != machine.run("bab")[-1]
    assert memory.history == (1, 1, 1)


def test_memory_without_history_starts_empty() -> None:
    machine = Machine.from_table([[1, 2], [1, 2], [1, 2]])  # start is never entered again
    memory = finite_memory(machine)
    assert memory is not None and memory.length == 1
    assert memory.history is None and memory.dim == 2


def test_memory_finds_a_history_that_is_no_repeated_letter() -> None:
    machine = Machine.from_regex("(a|b)*ab", "ab")
    shifted = Machine.from_table(machine.delta, start=2, alphabet="ab")  # starts as after ab
    memory = finite_memory(shifted)
    assert memory is not None and memory.history is not None
    for start in range(shifted.num_states):
        state = start
        for letter in memory.history:
            state = int(shifted.delta[state, letter])
        assert state == 0


def test_minimal_arithmetic_is_smaller_than_the_textbook_machine() -> None:
    for modulus, states in ((2, 9), (3, 19), (5, 51)):
        from statetrack.automata import mod_arithmetic

        minimal = mod_arithmetic(modulus).minimal()
        assert minimal.num_states == states == 2 * modulus**2 + 1
        assert len(holonomy(minimal).levels) == 3
