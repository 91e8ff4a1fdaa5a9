"""One sequence on several processes: context parallelism.

Every process has a segment of the tokens, in the order of the ranks. Where one token takes a state
H to A H + B, a segment takes it to P H + C, with P the product of its A and C the end of a walk
from a state of zero. So

    maps    P and C of the own segment, on every process at once
    gather  those of all segments: a few matrices a head, however long the sequence is
    join    the state that each segment begins with: one product and one sum a segment
    walk    the own segment from its true state

There are only products and sums, so eigenvalues -1, 0 and 1 stay exact. Gradients go the same way
back: what a process gathered from another is summed there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "MATRIX",
    "Cut",
    "Walk",
    "context_parallel",
    "in_order",
    "in_use",
    "joined",
    "latest",
    "product",
    "run_cut",
    "times",
]

Walk = Callable[[Any], tuple[Any, Tensor]]
"""Runs an op on inputs of its own kind, here alone."""

Join = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The state after a segment, from P, C and the state before it."""


class Cut(NamedTuple):
    """How an op is run on several processes.

    Attributes:
        maps: P and C of a segment, from the inputs and a `Walk`; the initial state is to be
            ignored.
        join: the state after a segment.
    """

    maps: Callable[[Any, Walk], tuple[Tensor, Tensor]]
    join: Join


class _Place(NamedTuple):
    """Where this process stands among those that share a sequence."""

    name: str
    rank: int
    size: int


# No ContextVar: what a checkpoint computes again, it computes in a thread of autograd's.
_place: _Place | None = None


@contextmanager
def context_parallel(group: "ProcessGroup") -> Iterator[None]:
    """Inside this block the processes of `group` share every sequence, cut in time.

    Process r of the group gives the tokens of segment r to ops and layers and gets its outputs. All
    have the same initial state, if any, and all get the state after the last token of the last
    segment. Segments may differ in length. Every process must call the same ops in the same order,
    and go backward from something that depends on all of its outputs; if activation checkpointing
    is on, inside of this block too.

    The gradient of an input is that of the sum of what all processes went backward from. Gradients
    of weights are, as in data parallelism, to be summed over the processes.

    Ops that are linear in their state can do it, and layers that say so (`splits`). Packed
    sequences and masks cannot be cut.
    """
    global _place
    import torch.distributed as dist

    from statetrack.ops._exchange import known_as

    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group that context_parallel was given")
    before, _place = _place, _Place(known_as(group), rank, dist.get_world_size(group))
    try:
        yield
    finally:
        _place = before


def in_use() -> bool:
    """Whether sequences are cut."""
    return _place is not None


def run_cut(name: str, cut: Cut | None, walk: Walk, inputs: Any, blank: Any) -> tuple[Any, Tensor]:
    """The op on this process's segment, and the state after the last one.

    `blank` makes the empty state from a tensor of its shape.
    """
    if cut is None:
        raise ValueError(
            f"{name} is not linear in its state, so its sequence cannot be cut across processes: "
            "leave out context_parallel"
        )
    p, c = cut.maps(inputs, walk)
    start = inputs.initial_state
    mine, last = joined(p, c, blank(c) if start is None else start.to(c.dtype), cut.join)
    y, _ = walk(inputs._replace(initial_state=mine))
    return y, last


def joined(p: Tensor, c: Tensor, start: Tensor, join: Join) -> tuple[Tensor, Tensor]:
    """What this segment begins with, and what the last one ends with.

    `join` has it from P and C of a segment, here p and c of this one, and from what the segment
    begins with; the first one begins with `start`.
    """
    if _place is None:
        return start, join(p, c, start)
    from statetrack.ops._exchange import gathered

    mine = torch.cat([p.to(c.dtype).flatten(), c.flatten()])
    ps, cs = gathered(mine, _place.name, _place.size).split([p.numel(), c.numel()], dim=1)
    ends = [start]
    for rank in range(_place.size):
        ends.append(join(ps[rank].view(p.shape), cs[rank].view(c.shape), ends[-1]))
    # Chosen from all of them, so that autograd goes back through the gather on every process.
    return torch.stack(ends[:-1])[_place.rank], ends[-1]


def in_order(last: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """What the segment before ended with, `first` before the first one, and what the last did.

    `last` is what this one ends with.
    """
    if _place is None:  # decoding comes by here
        return first, last
    return joined(last.new_empty(0), last, first.to(last.dtype), latest)


def latest(p: Tensor, c: Tensor, state: Tensor) -> Tensor:
    """`join` where nothing of the state before is left."""
    return c


def matrix_maps(inputs: Any, walk: Walk) -> tuple[Tensor, Tensor]:
    """P and C of an op whose state [batch, heads, key, value] is written to by its input v.

    Columns of a state do not meet, so one walk makes both: C with the values, from zeros, and P
    with as many further columns as there are keys, without values, from the identity.
    """
    k, v = inputs.k, inputs.v
    key, value = k.shape[-1], v.shape[-1]
    one = torch.eye(key, device=v.device)
    start = pad(one, (value, 0)).expand(len(v), v.shape[-2], -1, -1)
    found = walk(inputs._replace(v=pad(v, (0, key)), initial_state=start))[1]
    return found[..., value:], found[..., :value]


def product(p: Tensor, c: Tensor, state: Tensor) -> Tensor:
    """`join` for transitions that are matrices."""
    return p @ state + c


MATRIX = Cut(matrix_maps, product)
"""For ops with keys k and values v."""


def times(p: Tensor, c: Tensor, state: Tensor) -> Tensor:
    """`join` for transitions that are diagonal."""
    return p * state + c
