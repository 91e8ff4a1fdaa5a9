"""Figure 2: what the state does on 1111..., for positive and negative eigenvalues.

h_t = a h_{t-1} + b. With a in [0, 1) the state settles, so that odd and even lengths become the
same; with a = -1 it goes back and forth for ever. Nothing is trained here.
"""

from dataclasses import dataclass

import torch

from statetrack import ops
from statetrack.automata import named
from statetrack.compiler import compile
from statetrack.compiler.network import CompiledStage

__all__ = ["Trajectory", "states"]


@dataclass(frozen=True)
class Trajectory:
    """A state after 1, 2, ... ones."""

    label: str
    eigenvalue: float
    states: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How far apart the last two states are: what a read-out of finite precision must see."""
        return abs(self.states[-1] - self.states[-2])


def states(length: int = 64) -> list[Trajectory]:
    """The state on `length` ones for several eigenvalues, and for the compiled parity machine.

    The compiled machine is one diagonal layer with eigenvalue -1 on a 1: it has no input term, and
    the sign of its state is the parity itself.

    >>> [round(trajectory.gap, 3) for trajectory in states(64)]
    [0.0, 0.001, 0.001, 1.0, 2.0]
    """
    if length < 2:
        raise ValueError(f"length={length} must be at least 2")
    trajectories = [_trajectory(f"a = {a:g}", a, length=length) for a in (0.5, 0.9, -0.9, -1.0)]
    return [*trajectories, _compiled_parity(length)]


def _trajectory(label: str, eigenvalue: float, *, length: int) -> Trajectory:
    """From 0, adding 1 at every step."""
    decay = torch.full((1, length, 1), eigenvalue, dtype=torch.float64)
    track, _ = ops.diagonal_scan(decay, torch.ones_like(decay))
    return Trajectory(label, eigenvalue, tuple(track.flatten().tolist()))


@torch.no_grad()
def _compiled_parity(length: int) -> Trajectory:
    """The first number that the compiled layer keeps; its output is its state."""
    network = compile(named("parity"), "diagonal")
    (stage,) = network.stages
    assert isinstance(stage, CompiledStage)
    inputs = stage.inputs(torch.ones(1, length, dtype=torch.int64))
    start = stage.start(1)
    track, _ = stage.layer(inputs, start)
    eigenvalue = stage.layer.transitions(inputs, start).eigenvalues()[0, 0, 0, 0]
    return Trajectory("parity, compiled", float(eigenvalue), tuple(track[0, :, 0].tolist()))
