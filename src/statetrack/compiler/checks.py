"""A network against its machine: on words that reach everywhere, and on all words at once.

`prove` rests on this. If the numbers of a layer are exact, its state takes finitely many values,
bit for bit, and they can all be found: start, take one `step` with every symbol, keep what is new,
go on until nothing is. What is then known is a finite machine for each layer, as it really
computes; that these machines together follow the given one is again a matter of finitely many
steps. So it holds after any number of letters, in the dtype at hand, for a network that is run
letter by letter. What a chunked run does is not looked at: there is `check` with long words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from statetrack._typing import Int
from statetrack.automata import Machine
from statetrack.automata.limits import too_large
from statetrack.compiler.network import CompiledRNN, CompiledStage
from statetrack.layers import LayerState

IntArray = NDArray[np.int64]

MAX_STEPS = 2**20
"""Single steps of one layer, and of all layers beside the machine, that `prove` takes: seconds."""

QUICK_STEPS = 2**16
"""The same where `check` tries a proof in passing."""

AT_ONCE = 2**20
"""Numbers of state that are stepped at once."""

WAY_OUT = "nothing is proved; check it on long words"


@dataclass(frozen=True)
class Proof:
    """What `prove` found.

    Attributes:
        layer_states: for each layer how many states, bit for bit, its symbols can bring about.
        steps: single steps of layers that were taken.
        joint_states: states of the network (layers that behave alike counted once) with the
            machine's state beside them.
        wrong: a shortest word after which the network is wrong, as letter numbers, or None.
    """

    layer_states: tuple[int, ...]
    steps: int
    joint_states: int
    wrong: tuple[int, ...] | None

    def __str__(self) -> str:
        sizes = " + ".join(map(str, self.layer_states))
        found = f"{self.steps} single steps between all {sizes} states of its layers"
        if self.wrong is None:
            return f"proved letter by letter for words of any length: {found}"
        return f"wrong after the {len(self.wrong)} letters {list(self.wrong)}: {found}"


@dataclass(frozen=True)
class Check:
    """How a network did.

    Attributes:
        tokens: letters read in all.
        errors: states that were wrong.
        first_error: where the first of them was, or None.
        states_seen: how many of the machine's states the words visited.
        proof: what `prove` found, or None where the network was not small enough for it; a word
            that it found wrong counts as one error.
    """

    tokens: int
    errors: int
    first_error: int | None
    states_seen: int
    proof: Proof | None = None

    def __str__(self) -> str:
        verdict = "all right" if not self.errors else f"first wrong at letter {self.first_error}"
        proof = "" if self.proof is None else f"; {self.proof}"
        return (
            f"{self.errors} of {self.tokens} states wrong, {verdict}; "
            f"{self.states_seen} states visited{proof}"
        )


def check(network: CompiledRNN, *, words: int = 8, length: int = 1000, seed: int = 0) -> Check:
    """Runs random words, half of them avoiding sinks, through network and machine.

    On uniform words an automaton with a sink soon sits in it, and any network looks right. Where
    the network is exact and small (`QUICK_STEPS`), `prove` is tried as well.

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
    wrong = (np.argwhere(got != expected)[:, 1]).tolist()
    proof = _quick_proof(network)
    if proof is not None and proof.wrong is not None:
        wrong.append(len(proof.wrong) - 1)
    return Check(batch.size, len(wrong), min(wrong, default=None), len(np.unique(expected)), proof)


def _quick_proof(network: CompiledRNN) -> Proof | None:
    if not network.plan.exact:
        return None
    try:
        return prove(network, limit=QUICK_STEPS)
    except ValueError:
        return None


def prove(network: CompiledRNN, *, limit: int = MAX_STEPS) -> Proof:
    """Whether the network, run letter by letter, is right on every word; a word if it is not.

    Raises `ValueError` where more than `limit` single steps would be needed: for rotations, whose
    rounding errors make ever new states, and for large machines. What a reset has shrunk lives on
    in the low bits for a few more resets, so a layer has more states than labels.

    >>> from statetrack.compiler import compile
    >>> prove(compile(Machine.from_regex("(ab)*", "ab"))).wrong is None
    True
    """
    layers, tables = [], []
    for number, stage in enumerate(network.stages, start=1):
        assert isinstance(stage, CompiledStage)
        symbols, column = stage.symbol.unique(return_inverse=True)
        layers.append(_closure(stage, symbols, number, limit))
        tables.append((column.cpu().numpy(), stage.after.cpu().numpy()))
    joint, wrong = _follow(network.machine, list(map(_merge_alike, layers)), tables, limit)
    return Proof(
        layer_states=tuple(len(layer.after) for layer in layers),
        steps=sum(layer.after.size for layer in layers),
        joint_states=joint,
        wrong=wrong,
    )


@dataclass(frozen=True)
class _LayerMachine:
    """A layer as a finite machine: `[states, symbols]` the next state and the label shown."""

    after: IntArray
    label: IntArray
    start: int = 0


@torch.no_grad()
def _closure(
    stage: CompiledStage, symbols: Int[Tensor, "symbols"], number: int, limit: int
) -> _LayerMachine:
    """All states of a layer that sequences of the symbols reach, by single steps."""
    start = stage.start(1)
    known = {b"" if start is None else _bits(start)[0]: 0}
    after: list[int] = []
    label: list[IntArray] = []
    fresh: list[LayerState | None] = [start]
    at_once = max(1, AT_ONCE // (stage.layer.state_size * len(symbols)))
    while fresh:
        taken, fresh = fresh[:at_once], fresh[at_once:]
        labels, states = stage.read(
            symbols.repeat(len(taken)).unsqueeze(1), _stacked(taken, len(symbols))
        )
        for i, bits in enumerate(_bits(states)):
            if bits not in known:
                known[bits] = len(known)
                fresh.append({name: part[i : i + 1].clone() for name, part in states.items()})
            after.append(known[bits])
        label.append(labels.cpu().numpy().reshape(-1))
        if len(known) * len(symbols) > limit:
            raise too_large(
                f"steps between states of layer {number}", len(known) * len(symbols), limit, WAY_OUT
            )
    shape = (len(known), len(symbols))
    return _LayerMachine(np.array(after).reshape(shape), np.concatenate(label).reshape(shape))


def _stacked(states: list[LayerState | None], times: int) -> LayerState | None:
    """The states as one batch, each `times` times in a row; None is the empty start."""
    parts = [state for state in states if state is not None]
    if len(parts) < len(states):
        assert len(states) == 1, "the empty start comes first, alone"
        return None
    return {
        name: torch.cat([state[name] for state in parts]).repeat_interleave(times, dim=0)
        for name in parts[0]
    }


def _bits(state: LayerState) -> list[bytes]:
    """For each row of the batch its state, bit for bit."""
    parts = [part.flatten(1).contiguous().view(torch.uint8) for part in state.values()]
    return [row.tobytes() for row in torch.cat(parts, dim=1).cpu().numpy()]


def _merge_alike(layer: _LayerMachine) -> _LayerMachine:
    """States that show the same labels for ever become one (the coarsest such partition)."""
    kinds, kind = 0, np.zeros(len(layer.after), dtype=np.int64)
    first = kind[:1]
    rows = layer.label
    while len(first) > kinds:
        kinds = len(first)
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        kind = kind.reshape(-1)
        rows = np.column_stack([layer.label, kind[layer.after]])
    return _LayerMachine(kind[layer.after[first]], layer.label[first], int(kind[layer.start]))


def _follow(
    machine: Machine,
    layers: list[_LayerMachine],
    tables: list[tuple[IntArray, IntArray]],
    limit: int,
) -> tuple[int, tuple[int, ...] | None]:
    """Walks through all states of machine and layers together, by letters.

    `tables` are, for each layer, the symbol of each context and the context after [context, label].
    Returns how many there are, and a shortest word after which the last table does not give the
    machine's state (or a table on the way has no entry), or None.
    """
    start = (0, *(layer.start for layer in layers))
    words: dict[tuple[int, ...], tuple[int, ...]] = {start: ()}
    queue = [start]
    for now in queue:
        for letter in range(machine.num_letters):
            word, context = (*words[now], letter), letter
            following = [int(machine.delta[now[0], letter])]
            for layer, (column, after), state in zip(layers, tables, now[1:], strict=True):
                if context < 0:
                    return len(words), word
                symbol = column[context]
                following.append(int(layer.after[state, symbol]))
                context = int(after[context, layer.label[state, symbol]])
            if context != following[0]:
                return len(words), word
            if (reached := tuple(following)) not in words:
                words[reached] = word
                queue.append(reached)
        if len(words) * machine.num_letters > limit:
            raise too_large(
                "steps of all layers together", len(words) * machine.num_letters, limit, WAY_OUT
            )
    return len(words), None


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
