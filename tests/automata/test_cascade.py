"""Both decompositions on many random machines, proved table by table, and proofs that can fail."""

import dataclasses
import sys
import time

import numpy as np
import pytest

from statetrack.automata import Cascade, Level, Machine, drop_point, facts, holonomy, named
from statetrack.automata.permutation_group import PermutationGroup
from tests.automata.cases import KINDS, lively_word, random_machine
from tests.helpers import mostly_slow


@pytest.mark.parametrize("n", mostly_slow(range(2, 9), fast=[2, 3, 5]))
def test_both_decompositions_of_random_machines_are_proved_exhaustively(n: int) -> None:
    rng = np.random.default_rng(100 + n)
    for i in range(75):  # 7 sizes x 75 = 525 machines, three cascades each
        machine = random_machine(rng, n, int(rng.integers(1, 4)), KINDS[i % 3])
        cascades = [holonomy(machine), holonomy(machine, labels="disjoint"), drop_point(machine)]
        word = lively_word(rng, machine, 60)
        states = machine.run(word)
        for cascade in cascades:
            assert cascade.verify() == machine.delta.size
            assert np.array_equal(cascade.run(word).states, states)
        assert cascades[2].sizes == tuple(range(machine.num_states, 1, -1))


def test_the_groups_of_holonomy_are_those_of_the_machine() -> None:
    rng = np.random.default_rng(8)
    for i in range(150):
        machine = random_machine(rng, int(rng.integers(2, 7)), 2, KINDS[i % 2])
        found = facts(machine)
        for level in holonomy(machine, labels="disjoint").levels:
            group = PermutationGroup.generated_by(level.permutations, degree=level.size)
            assert group.is_trivial or not found.is_aperiodic
            assert group.is_2_group or not found.is_2_group
            assert group.is_solvable or not found.is_solvable


def test_shared_labels_can_enlarge_the_group() -> None:
    """Why constructions for 2-groups use disjoint labels: shared ones mix two groups Z2 into S3.

    From states 7, 8, 9 letter p leads to the set {0, 1, 2}, letter r to {3, 4, 5}, and each sends
    the other's set to the sink 6. Letter a swaps 0, 1 and 4, 5: first two labels here, last two
    there. Letter b only makes 8 and 9 reachable.
    """
    letters = {
        "a": [1, 0, 2, 3, 5, 4, 6, 7, 8, 9],
        "b": [0, 1, 2, 3, 4, 5, 6, 8, 9, 9],
        "p": [0, 1, 2, 6, 6, 6, 6, 0, 1, 2],
        "r": [6, 6, 6, 3, 4, 5, 6, 3, 4, 5],
    }
    machine = Machine.from_table(np.array(list(letters.values())).T, start=7, alphabet=letters)
    assert machine.num_states == 10 and facts(machine).is_2_group

    def last_group(cascade: Cascade) -> PermutationGroup:
        level = cascade.levels[-1]
        return PermutationGroup.generated_by(level.permutations, degree=level.size)

    assert last_group(holonomy(machine)).order == 6
    assert last_group(holonomy(machine, labels="disjoint")).order == 4


def test_drop_point_may_use_groups_the_machine_does_not_have() -> None:
    machine = Machine.from_regex("(aab|bba)*", "ab")
    assert facts(machine).is_aperiodic
    orders = [
        PermutationGroup.generated_by(level.permutations, degree=level.size).order
        for level in drop_point(machine).levels
    ]
    assert [order for order in orders if order > 1] == [24, 6, 2]


def test_sets_before_and_after_are_what_the_type_says() -> None:
    machine = named("cerny_4")
    rng = np.random.default_rng(0)
    word = rng.integers(0, 2, 300)
    for cascade in (holonomy(machine), drop_point(machine)):
        run = cascade.run(word)
        states = np.concatenate([[0], run.states])
        for t, letter in enumerate(word):
            for i, level in enumerate(cascade.levels):
                after = int(run.sets[t, i])
                before = int(run.sets[t - 1, i]) if t else _coded(cascade, i)
                assert states[t] in cascade.sets[before] and states[t + 1] in cascade.sets[after]
                moved = {int(machine.delta[q, letter]) for q in cascade.sets[before]}
                assert moved <= set(cascade.sets[after])  # T·w is in T'
                old = int(run.labels[t - 1, i]) if t else cascade.start[i]
                new = int(run.labels[t, i])
                if cascade.active[after] != i:
                    assert new == old
                    continue
                match = (level.before == before) & (level.after == after) & (level.letter == letter)
                (context,) = np.flatnonzero(match)
                assert level.actions[level.action[context], old] == new
        assert (run.sets[:, 0] == 0).all()
        assert [cascade.sets[s] for s in run.sets[:, -1]] == [(q,) for q in run.states]


def _coded(cascade: Cascade, level: int) -> int:
    current = 0
    for i in range(level):
        if cascade.active[current] == i:
            current = int(cascade.child[current, cascade.start[i]])
    return current


def test_a_level_that_looks_at_the_set_after_instead_of_before_is_wrong() -> None:
    """(a|b)*ab: whoever reads T' where T is meant runs another automaton."""
    machine = Machine.from_regex("(a|b)*ab", "ab")
    cascade = holonomy(machine)
    word = machine.encode("abbabab")
    after = np.zeros(len(word), dtype=np.int64)
    for i, level in enumerate(cascade.levels):
        label, track = cascade.start[i], []
        for s, letter in zip(after, word, strict=True):
            match = (level.before == s) & (level.after == s) & (level.letter == letter)
            if match.any():  # the literal construction: the set after in both places
                label = int(level.actions[level.action[np.flatnonzero(match)[0]], label])
            track.append(label)
        after = np.where(cascade.active[after] == i, cascade.child[after, track], after)
    wrong = [cascade.sets[s] for s in after]
    assert wrong != [(q,) for q in machine.run(word)]
    assert np.array_equal(cascade.run(word).states, machine.run(word))


def _with_level(cascade: Cascade, i: int, level: Level) -> Cascade:
    levels = list(cascade.levels)
    levels[i] = level
    return Cascade(
        cascade.machine, tuple(levels), cascade.sets, cascade.active, cascade.child, cascade.start
    )


def test_verify_finds_every_changed_action_that_matters() -> None:
    """Change one context's action at a time: what alters a run may not pass for a proof."""
    refused = tried = 0
    for machine in (named("cerny_4"), Machine.from_regex("(ab|ba)*", "ab"), named("t_3")):
        for cascade in (holonomy(machine), drop_point(machine)):
            for i, level in enumerate(cascade.levels):
                for c in range(level.num_contexts):
                    for other in range(len(level.actions)):
                        if other == level.action[c]:
                            continue
                        action = level.action.copy()
                        action[c] = other
                        changed = dataclasses.replace(level, action=action)
                        tried += 1
                        refused += _is_refused(_with_level(cascade, i, changed))
    assert tried > 200 and refused > 0.5 * tried


def _is_refused(changed: Cascade) -> bool:
    """Whether the proof fails; where it does not, the change must not matter."""
    machine = changed.machine
    try:
        changed.verify()
    except AssertionError:
        return True
    word = np.random.default_rng(0).integers(0, machine.num_letters, 2000)
    assert np.array_equal(changed.run(word).states, machine.run(word))
    return False


def test_verify_rejects_corrupted_tables() -> None:
    cascade = drop_point(named("cerny_4"))
    level = cascade.levels[0]

    neither = level.actions.copy()
    neither[0, 0] = neither[0, 1]
    broken = dataclasses.replace(level, actions=neither)
    with pytest.raises(AssertionError, match="level 0: an action is neither"):
        _with_level(cascade, 0, broken).verify()

    swapped = dataclasses.replace(level, action=level.action[::-1].copy())
    with pytest.raises(AssertionError):
        _with_level(cascade, 0, swapped).verify()

    keep = slice(1, None)
    shorter = dataclasses.replace(
        level,
        before=level.before[keep],
        after=level.after[keep],
        letter=level.letter[keep],
        action=level.action[keep],
    )
    with pytest.raises(AssertionError, match="a context that occurs has no action"):
        _with_level(cascade, 0, shorter).verify()

    moved = dataclasses.replace(cascade, start=(0, 0, 0))
    with pytest.raises(AssertionError, match="start"):
        moved.verify()

    other = Machine.from_table(named("cerny_4").delta[:, ::-1])
    with pytest.raises(AssertionError, match="disagrees"):
        dataclasses.replace(cascade, machine=other).verify()


def test_cascades_are_immutable_and_speak_clearly() -> None:
    cascade = holonomy(Machine.from_regex("(ab)*", "ab"))
    with pytest.raises(ValueError, match="read-only"):
        cascade.levels[0].actions[0, 0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        cascade.start = (0, 0)  # type: ignore[misc]
    with pytest.raises(ValueError, match="symbol 'c'"):
        cascade.run("abc")
    with pytest.raises(ValueError, match=r"state 3 is not in 0\.\.2"):
        cascade.encode(3)
    with pytest.raises(ValueError, match="19 states reached 524287, the limit is 262144"):
        drop_point(named("t_19"))
    assert cascade.run("").states.tolist() == []


def test_too_many_contexts_stop_with_the_size_they_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statetrack.automata.cascade.MAX_CONTEXTS", 10)
    module = sys.modules["statetrack.automata.drop_point"]  # the package's name is the function
    monkeypatch.setattr(module, "MAX_DROP_CONTEXTS", 10)
    for decompose in (holonomy, drop_point):
        with pytest.raises(
            ValueError, match=r"contexts of a cascade for 4 states reached \d+, the"
        ):
            decompose(named("cerny_4"))


def test_a_machine_of_one_state_has_no_levels() -> None:
    machine = Machine.from_table([[0, 0]])
    for cascade in (holonomy(machine), drop_point(machine)):
        assert cascade.sizes == () and cascade.verify() == 2
        assert cascade.run([0, 1, 1]).states.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("n", "seconds", "repeats"), mostly_slow([(10, 1.0, 6), (20, 10.0, 4)], fast=[(10, 1.0, 6)])
)
def test_ten_states_take_under_a_second_and_twenty_under_ten(
    n: int, seconds: float, repeats: int
) -> None:
    rng = np.random.default_rng(0)
    for i in range(repeats):
        kind = "near-permutations" if n == 10 and i % 2 else "uniform"
        machine = random_machine(rng, n, 3, kind)
        start = time.process_time()
        facts(machine)
        cascade = holonomy(machine)
        assert time.process_time() - start < seconds
        assert cascade.verify() == machine.delta.size
        if n == 10:
            start = time.process_time()
            cascade = drop_point(machine)
            assert time.process_time() - start < seconds
            assert cascade.verify() == machine.delta.size


def test_a_long_word_runs_level_by_level() -> None:
    machine = named("mod_arithmetic")
    cascade = holonomy(machine)
    word = lively_word(np.random.default_rng(0), machine, 100_000)
    start = time.process_time()
    states = cascade.run(word).states
    assert time.process_time() - start < 3.0
    assert np.array_equal(states, machine.run(word))
    assert len(np.unique(states)) == 60  # all but the sink
