"""Pass: addition modulo m -> `Program` of rotations of the plane: theorems 3 and 6 of the paper.

Position p is the direction p·2π/m. Two reflections in one layer make a rotation (`rotation`); with
a layer that only flips a sign in front, one reflection per token does (`reflections`, theorem 6).
The angles are not exact in floating point, so these two are the inexact constructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statetrack.automata import Machine
from statetrack.compiler.from_one_layer import final_stage
from statetrack.compiler.program import (
    DeltaLayer,
    IntArray,
    Program,
    Reflect,
    Stage,
    Step,
    Symbol,
    Write,
)


@dataclass(frozen=True)
class Cyclic:
    """A machine as addition modulo m: `position` of each state, `increment` of each letter."""

    modulus: int
    position: tuple[int, ...]
    increment: tuple[int, ...]


def cyclic_form(machine: Machine) -> Cyclic | None:
    """The machine as addition modulo its number of states, or None if it is not that.

    >>> from statetrack.automata import groups
    >>> cyclic_form(groups.cyclic(5)).increment
    (0, 1, 2, 3, 4)
    >>> cyclic_form(groups.quaternion()) is None
    True
    """
    m = machine.num_states
    letters = machine.delta.T
    if any(len(np.unique(column)) < m for column in letters):
        return None
    generator = _generator(letters)
    if generator is None:
        return None
    position = np.zeros(m, dtype=np.int64)
    state = 0
    for p in range(m):
        position[state] = p
        state = int(generator[state])
    increment = position[machine.delta[0]]
    if (position[machine.delta] != (position[:, None] + increment) % m).any():
        return None
    return Cyclic(m, tuple(position.tolist()), tuple(increment.tolist()))


def _generator(letters: IntArray) -> IntArray | None:
    """Of letters `[letters, m]` that act as a group of order m: one cycle of all m, if there is.

    A letter itself if one is that; else a product of powers of letters, one for each prime power
    of m.
    """
    m = letters.shape[1]
    orders = [_cycle_of_start(letter) for letter in letters]
    if m in orders:
        return letters[orders.index(m)]
    generator = np.arange(m)
    for power in prime_powers(m):
        letter = next((i for i, order in enumerate(orders) if order % power == 0), None)
        if letter is None:
            return None
        for _ in range(orders[letter] // power):
            generator = letters[letter][generator]
    return generator if _cycle_of_start(generator) == m else None


def _cycle_of_start(permutation: IntArray) -> int:
    images = permutation.tolist()
    length, state = 1, images[0]
    while state:
        length, state = length + 1, images[state]
    return length


def prime_powers(m: int) -> list[int]:
    """The prime powers whose product is m.

    >>> prime_powers(60)
    [4, 3, 5]
    """
    found, p = [], 2
    while m > 1:
        power = 1
        while m % p == 0:
            m, power = m // p, power * p
        if power > 1:
            found.append(power)
        p = p + 1 if p * p <= m else max(m, 2)
    return found


def program_of_rotations(machine: Machine) -> Program:
    """One layer in the plane; a letter is two reflections, which make a rotation (theorem 3).

    >>> from statetrack.automata import groups
    >>> program_of_rotations(groups.cyclic(7)).run([3, 6, 5]).tolist()
    [3, 2, 0]
    """
    form = _needed(machine)
    symbols = []
    for letter, increment in zip(machine.alphabet, form.increment, strict=True):
        steps = (_mirror(form, 0), _mirror(form, increment)) if increment else ()
        symbols.append(Symbol(str(letter), 1.0, steps, ((1.0, 0.0),)))
    layer = _plane(form, symbols)
    states = np.argsort(form.position)
    return Program(machine, "rotation", (final_stage(machine, layer, states),), exact=False)


def program_of_reflections(machine: Machine) -> Program:
    """Two layers with one reflection for each token (theorem 6).

    Layer 1 holds s = (-1)^t. Layer 2 reflects by F(s·x·2π/m), where F(φ) sends direction θ to
    φ - θ; so its direction is s·(x_1 + ... + x_t)·2π/m. Read as the first row of H it is
    (cos, -s·sin) of that, the same direction for either sign: minus the sum.

    >>> from statetrack.automata import groups
    >>> program_of_reflections(groups.cyclic(7)).run([3, 6, 5]).tolist()
    [3, 2, 0]
    """
    form = _needed(machine)
    k = machine.num_letters
    flip = Symbol("flip", 1.0, (Reflect((1.0,)),), ((1.0,),))
    sign = DeltaLayer(
        rows=("sign",),
        columns=("sign",),
        symbols=(flip,),
        start=(Write(0, (1.0,)),),
        labels=("+", "-"),
        readout=np.array([[1.0], [-1.0]]),
    )
    first = Stage(sign, np.zeros(k, dtype=np.int64), np.arange(2 * k).reshape(k, 2))
    symbols = []
    for letter, increment in zip(machine.alphabet, form.increment, strict=True):
        for s, name in ((1, "+"), (-1, "-")):
            mirror = _mirror(form, s * increment)
            symbols.append(Symbol(f"{name}{letter}", 1.0, (mirror,), ((1.0, 0.0),)))
    layer = _plane(form, symbols)
    states = np.argsort(form.position)
    second = Stage(layer, np.arange(2 * k), np.broadcast_to(states, (2 * k, len(states))).copy())
    return Program(machine, "reflections", (first, second), exact=False)


def _needed(machine: Machine) -> Cyclic:
    form = cyclic_form(machine)
    if form is None:
        raise ValueError(
            f"rotations of the plane need addition modulo m, and {machine!r} is something else"
        )
    return form


def _mirror(form: Cyclic, increment: int) -> Step:
    """F(φ) = I - 2 v vᵀ with φ = increment·2π/m and v = (-sin φ/2, cos φ/2)."""
    half = np.pi * increment / form.modulus
    return Reflect((-float(np.sin(half)), float(np.cos(half))))


def _plane(form: Cyclic, symbols: list[Symbol]) -> DeltaLayer:
    """Both axes are followed, so that the row read is a direction whatever the norm."""
    angle = 2 * np.pi * np.arange(form.modulus) / form.modulus
    return DeltaLayer(
        rows=("x", "y"),
        columns=("x", "y"),
        symbols=tuple(symbols),
        start=(Write(0, (1.0, 0.0)), Write(1, (0.0, 1.0))),
        labels=tuple(f"position {p}" for p in range(form.modulus)),
        readout=np.stack([np.cos(angle), -np.sin(angle)], axis=1),
    )
