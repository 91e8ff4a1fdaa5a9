"""Several sequences end to end in one row, so that no token is padding."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.ops._checks import check_devices, checking_values

__all__ = ["Pieces", "check_pieces", "in_a_row", "one_by_one"]


class Pieces(NamedTuple):
    """How the tokens of every row of a batch are cut into sequences of their own.

    Piece s of row b is the tokens offsets[b, s] to offsets[b, s + 1] - 1. The first offset is 0 and
    the last one the number of tokens; a piece may be empty. Every piece starts from a zero state.
    Triton kernels take all pieces at once, the other backends one after the other.

    Attributes:
        offsets: where the pieces begin, and where the last one ends.
        longest: no piece has more tokens than this.
    """

    offsets: Int[Tensor, "batch ends"]
    longest: int


def in_a_row(offsets: Tensor | None) -> int | torch.SymInt:
    """Sequences in every row: the pieces, or the row itself."""
    return 1 if offsets is None else offsets.shape[1] - 1


def check_pieces(pieces: Pieces | None, x: Tensor, initial_state: Tensor | None) -> None:
    """Shapes always; the offsets themselves inside `check_values()`. x is [batch, time, ...]."""
    if pieces is None:
        return
    batch, time = x.shape[:2]
    if initial_state is not None:
        raise ValueError("pieces start from a zero state: leave out initial_state, or pieces")
    offsets = pieces.offsets
    check_devices(x=x, offsets=offsets)
    if offsets.is_floating_point() or offsets.dim() != 2 or offsets.shape[0] != batch:
        raise ValueError(
            f"pieces.offsets has shape {tuple(offsets.shape)} and dtype {offsets.dtype}, but must "
            f"be integers [batch, pieces + 1] with batch = {batch}"
        )
    if checking_values() and offsets.numel() > 0:
        sizes = offsets.diff(dim=1)
        whole = bool((offsets[:, 0] == 0).all()) and bool((offsets[:, -1] == time).all())
        if not whole or bool((sizes < 0).any()) or bool((sizes > pieces.longest).any()):
            raise ValueError(
                f"pieces.offsets must rise from 0 to time = {time} in every row, in steps of at "
                f"most longest = {pieces.longest}"
            )


def one_by_one(
    function: Callable[[Any], Any], sequences: tuple[str, ...]
) -> Callable[[Any, Pieces], tuple[Tensor, Tensor]]:
    """`function` for every piece on its own; `sequences` names its inputs [batch, time, ...].

    The definition of what kernels do at once.
    """

    def run(inputs: Any, pieces: Pieces) -> tuple[Tensor, Tensor]:
        rows: list[Tensor] = []
        states: list[Tensor | None] = []
        for b, ends in enumerate(pieces.offsets.tolist()):
            row = []
            for first, last in pairwise(ends):
                if first == last:
                    states.append(None)
                    continue
                given = {name: getattr(inputs, name) for name in sequences}
                piece = {
                    name: None if x is None else x[b : b + 1, first:last]
                    for name, x in given.items()
                }
                y, state = function(inputs._replace(**piece))
                row.append(y)
                states.append(state)
            rows.append(torch.cat(row, dim=1))
        zero = torch.zeros_like(next(state for state in states if state is not None))
        whole = [zero if state is None else state for state in states]
        return torch.cat(rows), torch.cat(whole)

    return run
