"""How batches lie in memory: a row for each sequence, one row for each run, or in groups.

The last two are for ragged batches. Lengths drawn uniformly up to 40 leave half of a padded batch
empty, and an empty token costs as much as any other. On a CPU sequences of similar length go
together, each group as wide as its longest. On a GPU all sequences of a run share a row. It has
room for what a batch needs on average and `SPARE` standard deviations more, the same for every
step, as CUDA graphs need it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.tasks import IGNORE, Batch, Task

__all__ = ["Layout", "by_length", "in_rows", "narrow", "packed", "room_for"]

SPARE = 5
"""In standard deviations of the number of tokens in a batch: used up once in 3 million steps."""
WORTH_IT = 0.85
"""More tokens than this share of the padded batch, and packing would save too little."""
GROUPS = 4
GROUP_WORK = 2**18
"""Tokens times width: in a smaller group what a call costs by itself is more than the padding."""
DRAWN = 2**14


class Layout(NamedTuple):
    """What a model reads and is asked, by run.

    Attributes:
        read_at: the times that are asked for; None for all.
        offsets: where the sequences of a row begin (`ops.Packing`); None for one sequence a row.
        longest: no sequence has more tokens.
    """

    tokens: Int[Tensor, "runs rows time"]
    targets: Int[Tensor, "runs rows asked *labels"]
    read_at: Int[Tensor, "runs rows asked"] | None
    offsets: Int[Tensor, "runs rows ends"] | None
    longest: int

    def clone(self) -> "Layout":
        """A copy at another place in memory."""
        return Layout(
            tokens=self.tokens.clone(),
            targets=self.targets.clone(),
            read_at=None if self.read_at is None else self.read_at.clone(),
            offsets=None if self.offsets is None else self.offsets.clone(),
            longest=self.longest,
        )

    def copy_(self, other: "Layout") -> None:
        """Takes over the numbers of a layout of the same shapes."""
        for mine, theirs in zip(self[:4], other[:4], strict=True):
            if mine is not None and theirs is not None:
                mine.copy_(theirs)


def by_length(batch: Batch, rows: int) -> list[Batch]:
    """The sequences, shortest first, `rows` at a time, each group as wide as its longest."""
    sizes = batch.num_tokens
    groups = []
    for chosen in sizes.argsort(stable=True).split(rows):
        width = int(sizes[chosen[-1]])
        tokens, targets, mask = (
            part[chosen, :width] for part in (batch.tokens, batch.targets, batch.mask)
        )
        groups.append(Batch(tokens, targets, mask, most=batch.most))
    return groups


def narrow(batch: Batch, d_model: int) -> list[Batch]:
    """The batch in groups of similar length; whole where that would save too little."""
    padded = batch.tokens.numel()
    groups = min(GROUPS, padded * d_model // GROUP_WORK)
    if groups < 2 or int(batch.num_tokens.sum()) > WORTH_IT * padded:
        return [batch]
    return by_length(batch, -(-len(batch.tokens) // groups))


def in_rows(batch: Batch, *, runs: int) -> Layout:
    """A row for each sequence; an equal share of them for each run."""
    read_at, targets = batch.answers
    return Layout(
        tokens=batch.tokens.unflatten(0, (runs, -1)),
        targets=targets.unflatten(0, (runs, -1)),
        read_at=None if read_at is None else read_at.unflatten(0, (runs, -1)),
        offsets=None,
        longest=batch.tokens.shape[1],
    )


def room_for(task: Task, batch: int, lengths: tuple[int, int]) -> int | None:
    """Tokens of a row that holds `batch` sequences; None where padding costs less."""
    low, high = lengths
    generator = torch.Generator().manual_seed(0)
    drawn = task.sample(DRAWN, high, min_length=low, generator=generator)
    sizes = drawn.num_tokens.double()
    wanted = batch * sizes.mean().item() + SPARE * math.sqrt(batch) * sizes.std().item()
    room = -(-int(wanted) // 64) * 64
    return room if room <= WORTH_IT * batch * drawn.tokens.shape[1] else None


def packed(batch: Batch, *, runs: int, room: int) -> Layout:
    """One row of `room` tokens for each run, with its share of the sequences end to end.

    What a row has left is padding behind its first sequences, each up to the width of the batch, so
    that no sequence is padding alone; `room` is at most that of the padded batch. A sequence that
    does not fit is not asked for: its target is `IGNORE`.
    """
    width = batch.tokens.shape[1]
    last, targets = (x.view(runs, -1) for x in batch.last_answer)
    sizes = last + 1
    ends = sizes.cumsum(1)
    left = (room - ends[:, -1:]).clamp(min=0)
    padding = (width - sizes).cumsum(1).minimum(left)  # behind a sequence and all before it
    begins = ends.new_zeros(runs, 1)
    offsets = torch.cat([begins, ends + padding], dim=1).clamp(max=room)

    place = torch.arange(room, device=ends.device).expand(runs, -1).contiguous()
    piece = torch.searchsorted(offsets[:, 1:].contiguous(), place, right=True)
    source = piece * width + place - offsets.gather(1, piece)
    return Layout(
        tokens=batch.tokens.view(runs, -1).gather(1, source)[:, None],
        targets=torch.where(ends <= room, targets, IGNORE)[:, None],
        read_at=(offsets[:, :-1] + last).clamp(max=room - 1)[:, None],
        offsets=offsets[:, None],
        longest=width,
    )
