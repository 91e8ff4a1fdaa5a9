"""Machines out of black boxes, of models that are right for ever, for a while, and never."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from statetrack import automata
from statetrack.analysis import Extraction, difference, extract, extractions
from statetrack.automata import Machine, read
from statetrack.compiler import compile
from statetrack.models import Tagger
from tests.training import tiny

LENGTHS = (8, 16, 32, 64)


def parity(tokens: Tensor) -> Tensor:
    return tokens.cumsum(1) % 2


def fading(horizon: int) -> object:
    """Parity that forgets what is more than `horizon` letters ago."""

    def answers(tokens: Tensor) -> Tensor:
        total = tokens.cumsum(1)
        total[:, horizon:] = total[:, horizon:] - total[:, :-horizon]
        return total % 2

    return answers


def count(tokens: Tensor) -> Tensor:
    """Whether there were more ones than zeros, which no finite machine knows."""
    return ((2 * tokens - 1).cumsum(1) > 0).long()


@pytest.mark.parametrize("name", ["(ab)*", "s3", "dyck_2_depth_3", "mod_arithmetic_3"])
def test_compiled_networks_give_their_machine_back(name: str) -> None:
    machine = read(name)
    network, says = compile(machine), torch.tensor(machine.outputs.astype(np.int64))
    found = extract(
        lambda tokens: says[network(tokens)], alphabet=machine.alphabet, lengths=(8, 16, 32)
    )
    assert found.machine is not None and difference(found.machine, machine) is None
    assert found.machine.num_states == machine.minimal().num_states
    assert (found.trusted_to, found.ended, found.breaks) == (32, "longest", None)
    assert found.queries == found.attempts[-1].queries > 0


def test_a_model_is_trusted_up_to_where_it_breaks() -> None:
    found = extract(fading(25), alphabet=2, lengths=LENGTHS)
    assert found.machine == Machine.from_table([[0, 1], [1, 0]], outputs=[0, 1])
    assert (found.trusted_to, found.ended) == (16, "broke")
    assert [attempt.length for attempt in found.attempts] == [8, 16, 32]
    assert found.breaks is not None and len(found.breaks.word) == 26
    model = fading(25)
    for broken in found.disagreements:
        tokens = torch.tensor([broken.word])
        assert model(tokens)[0, -1] == broken.model != broken.machine  # type: ignore[operator]
        assert parity(tokens)[0, -1] == broken.machine
    lengths = [len(broken.word) for broken in found.disagreements]
    assert lengths == sorted(lengths) and len(set(found.disagreements)) == len(lengths)
    assert "trusted to 16 letters" in str(found) and "breaks after 26 letters" in str(found)


def test_what_is_wrong_after_a_sink_is_found() -> None:
    """`bb(ab)^10` and the like alone are answered wrongly; uniform words hardly show it."""
    machine = read("(ab)*")

    def answers(tokens: Tensor) -> Tensor:
        letters = tokens.numpy()
        said = machine.outputs[machine.run(letters)].astype(np.int64)
        for row, word in enumerate(letters):
            run = 0
            for time in range(1, len(word)):
                run = run + 1 if word[time] != word[time - 1] else 0
                if run >= 19 and word[time] == 1:
                    said[row, time] = 1
        return torch.from_numpy(said)

    found = extract(answers, alphabet="ab", lengths=LENGTHS)
    assert found.machine is not None and found.machine.num_states == 3
    assert found.trusted_to == 16
    assert found.breaks is not None and "again and again" in found.breaks.kind


def test_a_model_without_a_finite_machine_is_said_to_have_none() -> None:
    found = extract(count, alphabet=2, lengths=LENGTHS, max_states=30)
    assert found.machine is None and found.trusted_to is None
    assert found.ended == "states"
    assert "no finite machine" in str(found) and "more than 30 states" in str(found)
    with pytest.raises(ValueError, match="nothing finite"):
        found.save("nowhere.json")
    with pytest.raises(ValueError, match="without both"):
        _ = found.difference


def test_a_constant_model_has_one_state() -> None:
    found = extract(torch.zeros_like, alphabet="ab", lengths=(8, 16))
    assert found.machine is not None and found.machine.num_states == 1
    assert "1 state over 2 letters" in str(found)


def test_more_states_than_the_first_length_shows_are_no_break() -> None:
    """A counter of 12 is another machine at lengths 8 and 16, the same at 16 and 32."""
    found = extract(lambda tokens: tokens.cumsum(1) % 12 // 11, alphabet=2, lengths=LENGTHS)
    assert found.machine is not None and found.machine.num_states == 12
    assert found.trusted_to == 64
    assert [attempt.states for attempt in found.attempts] == [1, 12, 12, 12]


def test_the_number_of_words_is_that_of_the_statement() -> None:
    found = extract(parity, alphabet=2, lengths=(8, 16), epsilon=0.1, delta=0.05)
    rounds = [(np.log(1 / 0.05) + r * np.log(2)) / 0.1 for r in (1, 2)]
    assert [attempt.words for attempt in found.attempts] == [int(np.ceil(n)) for n in rounds]
    assert "except with probability 0.05, at most 10.00%" in str(found)


def test_rare_mistakes_are_found_as_often_as_promised() -> None:
    """Wrong on a share 0.1 of the words of length 16: seen in nearly all of 30 runs."""

    def answers(tokens: Tensor) -> Tensor:
        said = parity(tokens)
        if tokens.shape[1] == 16:
            places = torch.arange(1, 17) ** 2
            said[:, -1] ^= ((tokens * places).sum(1) % 10 == 7).long()
        return said

    missed = 0
    for seed in range(30):
        found = extract(answers, alphabet=2, lengths=(4, 8, 16), epsilon=0.1, delta=0.1, seed=seed)
        missed += found.trusted_to == 16
    assert missed <= 6


def test_time_is_bounded() -> None:
    found = extract(parity, alphabet=2, seconds=1e-9)
    assert (found.ended, found.machine) == ("time", None)
    assert "the time was over" in str(found) and len(found.attempts) == 1


def test_time_that_ends_after_a_machine_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(map(float, range(10_000)))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    found = extract(parity, alphabet=2, seconds=30.0)
    assert found.ended == "time" and found.machine is not None and found.trusted_to is not None
    assert "stopped at length" in str(found)


def test_an_answer_that_depends_on_what_follows_is_a_contradiction() -> None:
    found = extract(lambda tokens: tokens.flip(1), alphabet=2, lengths=LENGTHS)
    assert found.machine is None and found.ended == "contradiction"


def test_what_is_known_after_each_length() -> None:
    steps = list(extractions(parity, alphabet=2, lengths=LENGTHS))
    assert [step.trusted_to for step in steps] == [None, 16, 32, 64]
    assert [step.ended for step in steps] == ["not yet"] * 3 + ["longest"]
    assert str(steps[0]).startswith("no machine yet")
    assert [str(step.attempts[-1]).split(";")[0] for step in steps[:1]] == ["length 8: 2 states"]


def test_the_same_seed_finds_the_same() -> None:
    first, again = (extract(fading(40), alphabet=2, lengths=LENGTHS, seed=5) for _ in range(2))
    assert first.disagreements == again.disagreements and first.queries == again.queries


def test_an_untrained_tagger_of_two_layers_goes_in() -> None:
    model = Tagger(tiny.model(num_layers=2), generator=torch.Generator().manual_seed(0))
    found = extract(model, "parity", lengths=(8, 16), max_states=20)
    assert isinstance(found, Extraction) and found.target is not None
    if found.machine is not None:
        assert found.difference is not None and "not the target machine" in str(found)


def test_the_file_is_read_by_everything_that_reads_machines(tmp_path: Path) -> None:
    machine = read("(a|b)*ab")
    says = torch.tensor(machine.outputs.astype(np.int64))
    found = extract(
        lambda tokens: says[torch.from_numpy(machine.run(tokens.numpy()))],
        alphabet="ab",
        lengths=(8, 16),
    )
    path = found.save(tmp_path / "machine.json")
    assert automata.read(str(path)) == found.machine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (8,)}, "two or more, rising"),
        ({"lengths": (8, 8)}, "two or more, rising"),
        ({"lengths": (0, 8)}, "two or more, rising"),
        ({"epsilon": 0.0}, "epsilon=0.0 must lie between"),
        ({"delta": 1.0}, "delta=1.0 must lie between"),
        ({"max_states": 0}, "must be positive"),
        ({"seconds": 0.0}, "must be positive"),
    ],
)
def test_mistakes(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract(parity, alphabet=2, **options)  # type: ignore[arg-type]


def test_differences_are_shortest_words() -> None:
    three, six = (Machine.from_table([[(q + 1) % n] for q in range(n)]) for n in (3, 6))
    found = difference(three, six)
    assert found is not None and (found.word, found.first, found.second) == ((0, 0, 0), 0, 3)
    assert difference(three, three) is None
    with pytest.raises(ValueError, match="different alphabets"):
        difference(read("(ab)*"), read("(aa)*"))


def test_a_difference_on_the_way_back_to_the_start_is_seen() -> None:
    """Both starts are left and come back to; only the empty word does not count."""
    first = Machine.from_table([[1], [0]], outputs=[0, 1])
    second = Machine.from_table([[1], [0]], outputs=[5, 1])
    found = difference(first, second)
    assert found is not None and found.word == (0, 0)
