"""Machines that read tokens: against the machine itself, byte by byte."""

import numpy as np
import pytest

from statetrack.automata import Machine, TokenMachine, named, over_tokens, read
from tests.automata.cases import random_machine

WORDS = ["a", "b", "ab", "ba", "abab", "bb", "", "ac", None]


def spelled(tokens: list[int], vocabulary: list[str | None]) -> str | None:
    """What tokens write, or None if one of them writes nothing of its own."""
    parts = [vocabulary[token] for token in tokens]
    return None if None in parts else "".join(part or "" for part in parts)


@pytest.mark.parametrize("regex", ["(ab)*", "(a|b)*abb?", "b+"])
def test_tokens_move_states_as_their_letters_do(regex: str) -> None:
    machine = read(regex, "ab")
    tokens = over_tokens(machine, WORDS)
    rng = np.random.default_rng(0)
    for _ in range(300):
        word = rng.integers(0, len(WORDS), rng.integers(1, 6)).tolist()
        text = spelled(word, WORDS)
        accepted = text is not None and "c" not in text and machine.accepts(text)
        assert bool(tokens.machine.outputs[tokens.run(word)[-1]]) == accepted


def reachable(tokens: TokenMachine, state: int) -> bool:
    """Whether some tokens lead from a state to an accepting one, by going everywhere."""
    seen, queue = {state}, [state]
    for q in queue:
        for letter in set(tokens.letter.tolist()):
            target = int(tokens.machine.delta[q, letter])
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return any(tokens.machine.outputs[q] for q in seen)


@pytest.mark.parametrize("seed", range(6))
def test_masks_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = random_machine(rng, 7, 3).delta
    machine = Machine.from_table(table, accepting=[int(rng.integers(len(table)))], alphabet="abc")
    texts = ["".join(rng.choice(list("abc"), rng.integers(1, 5))) for _ in range(12)]
    tokens = over_tokens(machine, [*texts, None, "d"])
    state_of = {0: 0}  # a state over tokens -> the state of the machine
    for q in range(tokens.machine.num_states):
        for number, text in enumerate(texts):
            target = int(tokens.machine.delta[q, tokens.letter[number]])
            if q in state_of:
                at = state_of[q]
                for letter in machine.encode(text):
                    at = int(machine.delta[at, letter])
                assert state_of.setdefault(target, at) == at
        wanted = [
            reachable(tokens, int(tokens.machine.delta[q, letter])) for letter in tokens.letter
        ]
        assert tokens.allowed(q).tolist() == wanted


def test_characters_of_several_bytes_may_be_cut_anywhere() -> None:
    machine = Machine.from_regex("(é€|ê)*", "éê€")
    vocabulary = [bytes([byte]) for byte in range(256)] + ["é€", "€".encode()[:2], "€".encode()[2:]]
    tokens = over_tokens(machine, vocabulary)
    for text, accepted in (("é€ê", True), ("é", False), ("êé€", True), ("x", False)):
        states = tokens.run(list(text.encode()))
        assert bool(tokens.machine.outputs[states[-1]]) == accepted
    whole = tokens.run([256, 256, *"é".encode(), 257, 258])
    assert tokens.machine.outputs[whole].tolist() == [True, True, False, False, False, True]
    letters = over_tokens(Machine.from_table([[0, 1], [1, 0]], alphabet=[97, 98]), [b"ab", b"aab"])
    assert letters.machine.outputs[letters.run([0, 1])].tolist() == [1, 0]


def test_distances_are_shortest() -> None:
    tokens = over_tokens(read("(abc)*abc"), ["a", "b", "c", "ab"])
    assert tokens.distance[0] == 2 and tokens.distance[tokens.run([0])[-1]] == 2
    assert (tokens.distance[tokens.run([1])] > 10).all()  # the sink


def test_a_machine_of_tokens_is_a_machine() -> None:
    door = Machine.from_dict({"shut": {"o": "ajar"}, "ajar": {"s": "shut", "o": "ajar"}}, "shut")
    tokens = over_tokens(door, ["o", "os", "s"])
    assert tokens.machine.says(tokens.letter[[1, 0, 2, 2]]) == ["shut", "ajar", "shut", ""]
    assert tokens.run([[0, 1], [2, 2]]).shape == (2, 2)


def test_many_tokens_are_few_letters() -> None:
    rng = np.random.default_rng(0)
    vocabulary = [bytes(rng.integers(40, 42, rng.integers(1, 12)).tolist()) for _ in range(4000)]
    machine = Machine.from_table(named("dyck_1_depth_3").delta, accepting=[0], alphabet="()")
    tokens = over_tokens(machine, vocabulary)
    assert tokens.machine.num_letters < 60 and len(tokens.letter) == 4000


def test_what_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="the letter 300.*characters or bytes"):
        over_tokens(Machine.from_table([[0]], alphabet=[300]), ["a"])
    with pytest.raises(ValueError, match="the vocabulary is empty"):
        over_tokens(read("a*"), [])
    with pytest.raises(ValueError, match="too large: a table of 40000000 tokens x 2 states"):
        over_tokens(read("a*"), [b"a"] * 40_000_000)
    with pytest.raises(ValueError, match="the vocabulary has 0 to 0"):
        over_tokens(read("a*"), ["a"]).run([1])
    with pytest.raises(ValueError, match="accepting states"):
        _ = over_tokens(read("counter_5"), ["a"]).distance
