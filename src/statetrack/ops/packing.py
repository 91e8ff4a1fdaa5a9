"""Several sequences end to end in one row, so that no token is padding."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.ops._checks import check_devices, checking_values

__all__ = ["CuSeqlens", "Packing", "in_a_row", "one_by_one", "packing_of"]


class Packing(NamedTuple):
    """Several sequences end to end in every row of a batch: where each one begins and ends.

    Sequence s of row b is the tokens offsets[b, s] to offsets[b, s + 1] - 1. The first offset is 0
    and the last one the number of tokens; a sequence may be empty. Each starts from a zero state.
    Triton kernels take all sequences at once, the other backends one after the other.

    `cu_seqlens` arguments take one of these, or the offsets alone as other libraries write them:
    a tensor of integers [sequences + 1], for a batch of one row.

    Attributes:
        offsets: where the sequences begin, and where the last one ends.
        longest: no sequence has more tokens than this.
    """

    offsets: Int[Tensor, "batch ends"]
    longest: int


CuSeqlens = Packing | Tensor


def in_a_row(offsets: Tensor | None) -> int | torch.SymInt:
    """How many sequences a row holds: those packed into it, or the row itself."""
    return 1 if offsets is None else offsets.shape[1] - 1


def packing_of(
    cu_seqlens: CuSeqlens | None, x: Tensor, initial_state: Tensor | None = None
) -> Packing | None:
    """What the argument `cu_seqlens` says about x [batch, time, ...], checked.

    Shapes are checked always. The offsets themselves are checked on a CPU, and inside
    `check_values()` on a GPU, which has to wait for it. Where a GPU need not wait, no sequence of
    bare offsets is known to be shorter than the row.
    """
    if cu_seqlens is None:
        return None
    batch, time = x.shape[:2]
    if initial_state is not None:
        raise ValueError(
            "packed sequences start from a zero state: leave out initial_state, or cu_seqlens"
        )
    longest: int | None
    if isinstance(cu_seqlens, Packing):
        (offsets, longest), axes = cu_seqlens, "[batch, sequences + 1]"
    else:
        offsets, longest, axes = cu_seqlens, None, "[sequences + 1]"
    check_devices(x=x, cu_seqlens=offsets)
    if offsets.is_floating_point() or offsets.dim() != (1 if longest is None else 2):
        raise ValueError(
            f"cu_seqlens has shape {tuple(offsets.shape)} and dtype {offsets.dtype}, but must be "
            f"integers {axes}"
        )
    offsets = offsets.reshape(-1, offsets.shape[-1])
    if len(offsets) != batch:
        raise ValueError(
            f"cu_seqlens is about {len(offsets)} rows and the batch has {batch}: put all sequences "
            "into one row, or give every row its offsets (statetrack.ops.Packing)"
        )
    if _may_look(offsets):
        sizes = offsets.diff(dim=1)
        whole = bool((offsets[:, 0] == 0).all()) and bool((offsets[:, -1] == time).all())
        most = time if longest is None else longest
        if not whole or bool((sizes < 0).any()) or bool((sizes > most).any()):
            raise ValueError(
                f"cu_seqlens must rise from 0 to time = {time} in every row, in steps of at most "
                f"{most}"
            )
        longest = int(sizes.max()) if longest is None else longest
    return Packing(offsets, time if longest is None else longest)


def _may_look(offsets: Tensor) -> bool:
    """Whether reading the offsets is free or asked for, and possible."""
    free = offsets.device.type == "cpu" and not torch.compiler.is_compiling()
    plain = type(offsets) is Tensor and torch._C._functorch.peek_interpreter_stack() is None
    return plain and offsets.numel() > 0 and (free or checking_values())


def one_by_one(
    function: Callable[[Any], Any], sequences: tuple[str, ...]
) -> Callable[[Any, Packing], tuple[Tensor, Tensor]]:
    """`function` for each packed sequence alone; `sequences` names its inputs [batch, time, ...].

    The definition of what kernels do at once.
    """

    def run(inputs: Any, packing: Packing) -> tuple[Tensor, Tensor]:
        rows: list[Tensor] = []
        states: list[Tensor | None] = []
        for b, ends in enumerate(packing.offsets.tolist()):
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
