"""Machines as black boxes."""

import numpy as np
import torch
from torch import Tensor

from statetrack.analysis.black_box import BlackBox
from statetrack.automata import Machine


def box_of(machine: Machine) -> BlackBox:
    """What answers as the machine does, by the numbers of its outputs."""
    values, numbers = np.unique(machine.outputs, return_inverse=True)

    def answers(tokens: Tensor) -> Tensor:
        return torch.from_numpy(numbers.reshape(-1)[machine.run(tokens.numpy())])

    tokens = tuple(range(machine.num_letters))
    return BlackBox(answers, machine.alphabet, tokens, says=tuple(values.tolist()), target=machine)


def random_machine(rng: np.random.Generator, *, states: int, letters: int) -> Machine:
    """A random table with two outputs."""
    delta = rng.integers(0, states, (states, letters))
    return Machine.from_table(delta, outputs=rng.integers(0, 2, states))
