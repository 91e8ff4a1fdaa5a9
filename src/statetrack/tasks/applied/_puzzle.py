"""Puzzles: a move, then perhaps a question about one cell, then the next move."""

from collections.abc import Callable

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.tasks._sampling import lengths_of, uniform
from statetrack.tasks._task import Batch, LengthRange, Source
from statetrack.tasks.applied._text import asked_at, dice, lay_out

__all__ = ["num_tokens", "sample"]

QUERIES = 0.5

States = Callable[[Int[Tensor, "batch steps"]], Int[Tensor, "batch steps cells"]]
"""Moves -> what every cell shows after each of them."""


def num_tokens(length: int) -> int:
    """The most tokens of a sequence of that many moves."""
    return 2 * length


def sample(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    num_moves: int,
    num_cells: int,
    states: States,
) -> Batch:
    """Uniform moves; tokens are padding, then the moves, then the questions about the cells."""
    steps = lengths.max
    size = lengths_of(batch, lengths, source, device)[:, None]
    moves = uniform(0, num_moves - 1, (steps, batch), source, device).T
    cells = uniform(0, num_cells - 1, (steps, batch), source, device).T
    step = torch.arange(steps, device=device)
    asked = (dice((steps,), batch, source, device) < QUERIES) | (step == size - 1)
    answers = states(moves).gather(2, cells[..., None]).squeeze(2)
    words = torch.stack([1 + moves, 1 + num_moves + cells], dim=2)
    sizes = (1 + asked.long()).masked_fill(step >= size, 0)
    targets = asked_at(answers, torch.where(asked, 1, -1), 2)
    return lay_out(words, sizes, targets, pad_id=0, possible=num_tokens(steps))
