"""A network against its machine, on words that reach everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from statetrack.automata import Machine
from statetrack.compiler.network import CompiledRNN


@dataclass(frozen=True)
class Check:
    """How a network did.

    Attributes:
        tokens: letters read in all.
        errors: states that were wrong.
        first_error: where the first of them was, or None.
        states_seen: how many of the machine's states the words visited.
    """

    tokens: int
    errors: int
    first_error: int | None
    states_seen: int

    def __str__(self) -> str:
        verdict = "all right" if not self.errors else f"first wrong at letter {self.first_error}"
        return (
            f"{self.errors} of {self.tokens} states wrong, {verdict}; "
            f"{self.states_seen} states visited"
        )


def check(network: CompiledRNN, *, words: int = 8, length: int = 1000, seed: int = 0) -> Check:
    """Runs random words, half of them avoiding sinks, through network and machine.

    On uniform words an automaton with a sink soon sits in it, and any network looks right.

    >>> from statetrack.compiler import compile
    >>> check(compile(Machine.from_regex("(ab)*", "ab"))).errors
    0
    """
    if words < 1 or length < 1:
        raise ValueError(f"check needs at least one word of one letter, got {words} of {length}")
    rng = np.random.default_rng(seed)
    machine = network.machine
    batch = np.stack(
        [
            lively_word(rng, machine, length)
            if i % 2
            else rng.integers(0, machine.num_letters, length)
            for i in range(words)
        ]
    )
    expected = machine.run(batch)
    device = next(network.buffers()).device
    got = network(torch.from_numpy(batch).to(device)).cpu().numpy()
    wrong = np.argwhere(got != expected)
    return Check(
        batch.size,
        len(wrong),
        int(wrong[:, 1].min()) if len(wrong) else None,
        len(np.unique(expected)),
    )


def lively_word(rng: np.random.Generator, machine: Machine, length: int) -> NDArray[np.int64]:
    """Random letters that avoid sinks (states that no letter leaves) wherever there is a choice."""
    delta = machine.delta
    sinks = (delta == np.arange(machine.num_states)[:, None]).all(axis=1)
    options = [
        np.flatnonzero(~sinks[row]) if (~sinks[row]).any() else np.arange(machine.num_letters)
        for row in delta
    ]
    word = np.empty(length, dtype=np.int64)
    state = 0
    for t, draw in enumerate(rng.random(length)):
        word[t] = options[state][int(draw * len(options[state]))]
        state = int(delta[state, word[t]])
    return word
