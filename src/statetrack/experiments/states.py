"""Figure 2: what the state does on 1111..., for positive and negative eigenvalues.

h_t = a h_{t-1} + b. With a in [0, 1) the state settles, so that odd and even lengths become the
same; with a = -1 it goes back and forth for ever. Nothing is trained here.
"""

from dataclasses import dataclass

import torch

from statetrack import ops

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
    """The state on `length` ones for several eigenvalues, and for the exact parity machine.

    The parity machine is the reflection I - 2 k kᵀ on one dimension started at -1: it has no input
    term, and its state is the parity itself.

    >>> [round(trajectory.gap, 3) for trajectory in states(64)]
    [0.0, 0.001, 0.001, 1.0, 2.0]
    """
    if length < 2:
        raise ValueError(f"length={length} must be at least 2")
    trajectories = [
        _trajectory(f"a = {a:g}", a, start=0.0, write=1.0, length=length)
        for a in (0.5, 0.9, -0.9, -1.0)
    ]
    exact = _trajectory("parity, exact", -1.0, start=-1.0, write=0.0, length=length)
    return [*trajectories, exact]


def _trajectory(
    label: str, eigenvalue: float, *, start: float, write: float, length: int
) -> Trajectory:
    decay = torch.full((1, length, 1), eigenvalue, dtype=torch.float64)
    inputs = torch.full_like(decay, write)
    initial = torch.full((1, 1), start, dtype=torch.float64)
    track, _ = ops.diagonal_scan(decay, inputs, initial)
    return Trajectory(label, eigenvalue, tuple(track.flatten().tolist()))
