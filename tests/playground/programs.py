"""Programs, words and what the library says of them: what the page's runtime is held to."""

from functools import cache
from typing import Any

import numpy as np

from statetrack.automata import Project, Swap
from statetrack.automata.machine import IntArray
from statetrack.compiler import METHODS, Program, compile_program, json_of_program
from statetrack.compiler.program import (
    DeltaLayer,
    DenseLayer,
    DiagonalLayer,
    FloatArray,
    ProgramLayer,
    Write,
)
from tests.automata.cases import CASES, lively_word, random_word

LOWS = (-1.0, -0.75, -0.25, 0.0)


@cache
def table(least: int, most: int) -> list[tuple[str, Program, IntArray]]:
    """Every machine of the shared table with so many states, by every method that fits."""
    rng = np.random.default_rng(least)
    found = []
    for case in CASES:
        if not least <= case.states <= most:
            continue
        machine = case.make()
        for method in METHODS[1:]:
            try:
                program = compile_program(machine, method)
            except ValueError:
                continue
            words = (lively_word(rng, machine, 40), random_word(rng, machine, 20))
            found.append((f"{case}, {method}", program, np.concatenate(words)))
    return found


def question(program: Program, word: IntArray) -> dict[str, Any]:
    """What the runtime is given."""
    return {"program": json_of_program(program), "word": word.tolist()}


def expected(program: Program, word: IntArray) -> dict[str, Any]:
    """What it has to say: the states, and for each layer symbols, labels and the last H."""
    steps, states = program._run(word)
    layers = [
        {
            "symbols": symbols.tolist(),
            "labels": labels.tolist(),
            "h": stage.layer.run(symbols)[-1].tolist(),
        }
        for stage, (symbols, labels) in zip(program.stages, steps, strict=True)
    ]
    return {"states": states.tolist(), "layers": layers}


def closed_transition(layer: ProgramLayer, symbol: int, low: float) -> FloatArray:
    """A with every factor's beta at most 1 - low and every diagonal entry at least low.

    Written from that sentence with dense matrices; shares no code with the runtime.
    """
    if isinstance(layer, DenseLayer):
        return layer.matrices[symbol]
    if isinstance(layer, DiagonalLayer):
        return np.diag(np.maximum(layer.decay[symbol], low))
    assert isinstance(layer, DeltaLayer)
    size = len(layer.rows)
    matrix = layer.symbols[symbol].gate * np.eye(size)
    for step in layer.symbols[symbol].steps:
        if isinstance(step, Swap):
            beta, key = 2.0, (np.eye(size)[step.i] - np.eye(size)[step.j]) / np.sqrt(2)
        elif isinstance(step, Project):
            beta, key = 1.0, np.eye(size)[step.i]
        elif isinstance(step, Write):
            beta, key = 1.0, np.eye(size)[step.row]
        else:
            beta, key = 2.0, np.array(step.key)
        matrix = (np.eye(size) - min(beta, 1 - low) * np.outer(key, key)) @ matrix
    return matrix


def transitions(least: int, most: int) -> list[tuple[ProgramLayer, int]]:
    """Layers and symbols of the table, few of each, up to ten rows."""
    found: list[tuple[ProgramLayer, int]] = []
    for _, program, _ in table(least, most):
        for stage in program.stages:
            if len(stage.layer.directions) <= 10:
                found += [(stage.layer, s) for s in range(min(3, len(stage.layer.symbol_names)))]
    return found


def apart(found: list[list[float]], values: FloatArray) -> float:
    """How far two lists of eigenvalues are apart, each matched with its nearest."""
    left = [complex(*pair) for pair in found]
    assert len(left) == len(values)
    worst = 0.0
    for value in sorted(values, key=lambda z: (z.real, z.imag)):
        nearest = min(left, key=lambda z: abs(z - value))
        worst = max(worst, abs(nearest - value))
        left.remove(nearest)
    return worst
