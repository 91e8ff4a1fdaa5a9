"""Pass: any machine -> `Program` of one layer with free matrices. The oracle of all the others."""

from __future__ import annotations

import numpy as np

from statetrack.automata import Machine
from statetrack.automata.limits import too_large
from statetrack.compiler.program import MAX_PROGRAM, DenseLayer, Program, Stage


def program_of_table(machine: Machine) -> Program:
    """A(w) e_q = e_{q·w} on one row for each state: no theory, and no bound on the norm of A.

    >>> program_of_table(Machine.from_regex("a*b*", "ab")).run("aba").tolist()
    [0, 1, 2]
    """
    n, k = machine.delta.shape
    if n * n * k > MAX_PROGRAM:
        raise too_large(
            "entries of the dense matrices", n * n * k, MAX_PROGRAM, "use method='cascade'"
        )
    matrices = np.zeros((k, n, n))
    for letter, column in enumerate(machine.delta.T):
        matrices[letter, column, np.arange(n)] = 1.0
    names = tuple(f"state {q}" for q in range(n))
    layer = DenseLayer(matrices, tuple(map(str, machine.alphabet)), names)
    after = np.broadcast_to(np.arange(n), (k, n)).copy()
    return Program(machine, "dense", (Stage(layer, np.arange(k), after),))
