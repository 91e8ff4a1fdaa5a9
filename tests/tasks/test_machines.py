"""The law of the words of a machine, by listing all words; and what is refused."""

from itertools import product

import pytest
import torch

from statetrack import tasks
from statetrack.automata import Machine, groups, named
from statetrack.tasks import LengthRange

from .oracles import chi_square, draw, rows

MACHINES = {
    "(ab)*": Machine.from_regex("(ab)*", "ab"),
    "a*b*": Machine.from_regex("a*b*", "ab"),
    "(a|b)*ab": Machine.from_regex("(a|b)*ab", "ab"),
    "two sinks": Machine.from_table(
        [[1, 2], [0, 3], [1, 4], [3, 3], [4, 4]], accepting=[1, 3], alphabet="ab"
    ),
    "dead component": Machine.from_table(
        [[1, 2], [0, 0], [3, 2], [2, 3]], outputs=[0, 1, 2, 2], alphabet="ab"
    ),
}


def law_by_listing(
    machine: Machine, length: int, sink_probability: float
) -> dict[tuple[int, ...], float]:
    """The share of every word of one length, from the four steps in the module's docstring."""
    outputs = machine.outputs.astype(int)
    reachable = {q: {q} for q in range(machine.num_states)}
    for _ in range(machine.num_states):
        for q in reachable:
            reachable[q] |= {r for p in list(reachable[q]) for r in machine.delta[p].tolist()}
    dead = {q for q in reachable if len({outputs[r] for r in reachable[q]}) == 1}
    goals: dict[int, dict[int | None, list[tuple[int, ...]]]] = {}  # answer, death, words
    for word in product(range(machine.num_letters), repeat=length):
        states = machine.run(list(word)).tolist()
        death = next((t for t, q in enumerate(states, 1) if q in dead), None)
        goals.setdefault(outputs[states[-1]], {}).setdefault(death, []).append(word)
    law = {}
    for ways in goals.values():
        alive = [words for death, words in ways.items() if death is None]
        deaths = [words for death, words in ways.items() if death is not None]
        dying = sink_probability if alive and deaths else float(bool(deaths))
        for group, weight in ((alive, 1 - dying), (deaths, dying)):
            for words in group:
                for word in words:
                    law[word] = weight / len(goals) / len(group) / len(words)
    assert abs(sum(law.values()) - 1) < 1e-9
    return law


@pytest.mark.parametrize("sink_probability", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", MACHINES)
def test_law_of_words(name: str, sink_probability: float) -> None:
    machine = MACHINES[name]
    task = tasks.from_machine(machine, sink_probability=sink_probability)
    for length in (1, 2, 5):
        law = law_by_listing(machine, length, sink_probability)
        shares = torch.tensor(list(law.values()))
        batch = draw(task, 8000, length, shortest=length)
        digits = 2 ** torch.arange(length - 1, -1, -1)
        index = torch.tensor([sum(a * 2**i for i, a in enumerate(w[::-1])) for w in law])
        counts = torch.bincount((batch.tokens * digits).sum(dim=1), minlength=2**length)[index]
        possible = int((shares > 0).sum())
        assert counts.sum() == 8000 and (counts[shares == 0] == 0).all()
        if possible > 1:
            assert chi_square(counts, shares) < 4


@pytest.mark.parametrize("dense", [True, False])
def test_labels_are_the_machines_outputs(dense: bool) -> None:
    machine = named("counter_5")
    task = tasks.from_machine(machine, dense=dense)
    for word, asked in rows(task, draw(task, 100, 40)):
        outputs = machine.outputs[machine.run("".join(word))].tolist()
        expected = {t: str(output) for t, output in enumerate(outputs)}
        assert asked == (expected if dense else {len(word) - 1: expected[len(word) - 1]})


def test_last_answers_are_balanced_where_they_can_be() -> None:
    task = tasks.from_machine(Machine.from_regex("(ab)*", "ab"), dense=False)
    batch = draw(task, 4000, 40, shortest=40)
    assert abs(batch.targets[batch.mask].float().mean() - 0.5) < 0.04
    odd = draw(task, 100, 39, shortest=39)
    assert (odd.targets[odd.mask] == 0).all()  # no word of odd length is in the language
    assert task.name.endswith(":last")


def test_words_do_not_all_fall_into_the_sink() -> None:
    """Uniform words over ab leave (ab)* after two letters; ours die anywhere."""
    machine = Machine.from_regex("(ab)*", "ab")
    batch = draw(tasks.from_machine(machine), 2000, 100, shortest=100)
    states = torch.tensor(machine.run(batch.tokens.numpy()))
    sink = next(q for q in range(3) if (machine.delta[q] == q).all())
    alive = (states != sink).sum(dim=1).float()
    assert 0.4 < (alive == 100).float().mean() < 0.6
    assert 40 < alive[alive < 100].mean() < 60


@pytest.mark.parametrize("regex", ["(ab)*", ".*aaa"])
def test_counts_beyond_float64(regex: str) -> None:
    """Of the 26^300 words, more than float64 can hold, one is in (ab)* and 26^297 end in aaa."""
    machine = Machine.from_regex(regex, "abcdefghijklmnopqrstuvwxyz")
    task = tasks.from_machine(machine, dense=False, eval_lengths=LengthRange(40, 300))
    batch = draw(task, 200, 300, shortest=300)
    assert 60 < int((batch.targets[batch.mask] == 1).sum()) < 140


def test_chance_is_the_share_of_the_most_common_answer() -> None:
    task = tasks.get("regex:(a|b)*ab")
    assert abs(task.chance - 0.75) < 0.01
    batch = tasks.evaluation_set(task, 1024, seed=5)
    answers = batch.targets[batch.mask]
    assert abs(torch.bincount(answers).max() / len(answers) - task.chance) < 0.02


def test_machines_with_many_outputs() -> None:
    machine = groups.symmetric(5)
    with pytest.raises(ValueError, match="balance=False"):
        tasks.from_machine(machine)
    machine = groups.symmetric(4)
    task = tasks.from_machine(machine, balance=False, eval_lengths=LengthRange(40, 60))
    batch = draw(task, 50, 40, shortest=40)
    assert (torch.tensor(machine.run(batch.tokens.numpy())) == batch.targets).all()


def test_alphabets_of_regexes() -> None:
    assert tasks.get("regex:(a|b){2}c").token_names == ("a", "b", "c", "PAD")
    wider = tasks.from_regex("(aa)*", "ab")
    assert wider.token_names == ("a", "b", "PAD") and wider.name != "regex:(aa)*"


def _parity(**lengths: LengthRange) -> tasks.Task:
    return tasks.from_machine(named("parity"), **lengths)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tasks.get("regex:(a|b"), "malformed"),
        (lambda: tasks.get("regex:"), "no letters"),
        (lambda: tasks.get("regex:[^a]*"), "alphabet"),
        (lambda: tasks.get("regex:(a|b)*"), "nothing to learn"),
        (lambda: tasks.from_machine(named("parity"), sink_probability=1.5), "0..1"),
        (lambda: tasks.get("machine:counter5"), "counter_5"),
        (lambda: _parity(train_lengths=LengthRange(0, 5)), "train_lengths .* must be two whole"),
        (lambda: _parity(eval_lengths=LengthRange(5, 3)), "eval_lengths .* must be two whole"),
    ],
)
def test_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
