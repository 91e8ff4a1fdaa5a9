"""L* against machines that are known, and against AALpy."""

import random

import numpy as np
import pytest
from aalpy.base import SUL
from aalpy.learning_algs import run_Lstar
from aalpy.oracles import RandomWMethodEqOracle

from statetrack.analysis.black_box import BlackBox, black_box
from statetrack.analysis.extract import difference
from statetrack.analysis.lstar import Table, Unlearnable
from statetrack.automata import Machine, read
from tests.analysis.machines import box_of, random_machine


def never() -> None:
    pass


def learn(box: BlackBox, target: Machine) -> tuple[Table, int]:
    """The table once it equals the machine, told the shortest word on which it does not."""
    table, rounds = Table(box, 100, never), 0
    while (found := difference(table.hypothesis.machine(box), target)) is not None:
        table.refine(found.word)
        rounds += 1
    return table, rounds


@pytest.mark.parametrize(
    "name", ["parity", "(a|b)*ab", "(ab)*", "s3", "counter_5", "dyck_2_depth_3", "q8", "a*b*"]
)
def test_the_minimal_machine_is_found(name: str) -> None:
    machine = read(name)
    table, rounds = learn(box_of(machine), machine)
    found = table.hypothesis.machine(table.box)
    assert found.num_states == machine.minimal().num_states and rounds < found.num_states
    assert difference(found, machine) is None
    assert found.alphabet == machine.alphabet and found.outputs.dtype == machine.outputs.dtype


@pytest.mark.parametrize("seed", range(20))
def test_random_machines_are_found_whatever_the_counterexamples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    machine = random_machine(rng, states=12, letters=3)
    box = box_of(machine)
    table = Table(box, 100, never)
    for _ in range(200):  # long words with an error somewhere, not the shortest
        words = rng.integers(0, 3, (50, 30))
        wrong = table.hypothesis.says(words) != box.ask(words)
        if wrong.any():
            row, end = np.argwhere(wrong)[-1]
            table.refine(tuple(words[row, : end + 1].tolist()))
    assert difference(table.hypothesis.machine(box), machine) is None
    assert len(set(table.hypothesis.access)) == len(table.hypothesis.access)


def test_a_state_is_where_its_word_leads() -> None:
    table, _ = learn(box_of(read("dyck_2_depth_3")), read("dyck_2_depth_3"))
    for state, word in enumerate(table.hypothesis.access[1:], 1):
        assert table.hypothesis.states(np.array([word]))[0, -1] == state


def test_the_start_is_the_nearest_state_that_goes_on_like_it() -> None:
    """`b` and `ab` go on alike, one rejects and one accepts; nobody asked before the first."""
    table, _ = learn(box_of(read("(a|b)*ab")), read("(a|b)*ab"))
    assert table.hypothesis.machine(table.box) == read("(a|b)*ab")


def test_a_start_like_no_other_stays() -> None:
    pairs = Machine.from_table(
        [[1, 2], [1, 3], [4, 2], [1, 3], [4, 2]], outputs=[0, 0, 0, 1, 1], alphabet="01"
    )
    table, _ = learn(box_of(pairs), pairs)
    assert table.hypothesis.start == 0 and table.hypothesis.machine(table.box).num_states == 5


def test_each_word_is_asked_once() -> None:
    asked: list[tuple[int, ...]] = []
    machine = read("counter_5")

    def answers(tokens: object) -> object:
        asked.extend(map(tuple, np.asarray(tokens).tolist()))
        return machine.outputs[machine.run(np.asarray(tokens))]

    table, _ = learn(black_box(answers, alphabet=machine.alphabet), machine)
    assert len(asked) == len(set(asked)) == table.queries


def test_too_many_states() -> None:
    with pytest.raises(Unlearnable, match="more than 4 states"):
        Table(box_of(read("s3")), 4, never)


def test_a_word_that_is_no_counterexample_is_a_contradiction() -> None:
    table, _ = learn(box_of(read("parity")), read("parity"))
    with pytest.raises(Unlearnable, match="changes with the letters that follow"):
        table.refine((1, 0, 1))


def test_time_is_asked_for_before_every_batch() -> None:
    def over() -> None:
        raise Unlearnable("time")

    with pytest.raises(Unlearnable, match="time"):
        Table(box_of(read("parity")), 10, over)


class Asked(SUL):  # type: ignore[misc]
    """A black box letter by letter, as AALpy asks."""

    def __init__(self, box: BlackBox) -> None:
        super().__init__()
        self.box = box

    def pre(self) -> None:
        self.word: list[int] = []

    def post(self) -> None:
        pass

    def step(self, letter: int) -> int:
        self.word.append(letter)
        return int(self.box.ask(np.array([self.word]))[0, -1])


@pytest.mark.parametrize("name", ["parity", "(a|b)*ab", "(ab)*", "z3", "s3", "counter_5"])
def test_aalpy_finds_the_same(name: str) -> None:
    """As a Mealy machine, because AALpy's other kinds ask for an answer to the empty word."""
    machine = read(name)
    box = box_of(machine)
    letters = list(range(machine.num_letters))
    random.seed(0)
    oracle = RandomWMethodEqOracle(letters, Asked(box), walks_per_state=10, walk_len=12)
    peer = run_Lstar(letters, Asked(box), oracle, "mealy", print_level=0)
    ours = learn(box, machine)[0].hypothesis
    rng = np.random.default_rng(0)
    words = rng.integers(0, machine.num_letters, (50, 40))
    theirs = []
    for word in words.tolist():
        peer.reset_to_initial()
        theirs.append([peer.step(letter) for letter in word])
    assert (ours.says(words) == theirs).all()
    assert peer.size <= len(ours.access)  # a Mealy machine is never larger
