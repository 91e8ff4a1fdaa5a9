"""What tasks made of statements share: templates, their layout in a row, states by a scan.

A statement is a form, a template of token names in which some words are slots, and what fills the
slots. All statements of a batch are filled at once, and laid end to end by one scatter. States are
composed in log2(steps) rounds, so that nothing here loops over time.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from statetrack._typing import Float, Int
from statetrack.tasks._sampling import DeviceTable, longest, unit_uniform
from statetrack.tasks._task import IGNORE, Batch, Depths, Source

Tracker = Callable[[list[str]], Iterable[tuple[int, int]]]
"""The words of one sequence -> (operations, age) of every answer, in order; see `Depths`."""


def dice(
    shape: tuple[int, ...], batch: int, source: Source, device: torch.device
) -> Float[Tensor, "batch *shape"]:
    """Independent numbers, uniform on [0, 1)."""
    return unit_uniform((*shape, batch), source, device).movedim(-1, 0)


class Templates:
    """Forms by number: words that are token names, or names of slots.

    >>> forms = Templates(["Empty i .", "Swap i and j ."], ["Empty", "Swap", "and", "."], "ij")
    >>> forms.sizes.on(torch.device("cpu")).tolist()
    [3, 5]
    """

    def __init__(
        self, forms: Sequence[str], token_names: Sequence[str], slots: Sequence[str]
    ) -> None:
        ids = {name: i for i, name in enumerate(token_names)}
        ids |= {slot: -1 - i for i, slot in enumerate(slots)}
        rows = [[ids[word] for word in form.split()] for form in forms]
        self.width = max(map(len, rows))
        self.sizes = DeviceTable([len(row) for row in rows])
        self._words = DeviceTable([row + [0] * (self.width - len(row)) for row in rows])

    def fill(
        self, form: Int[Tensor, "batch steps"], slots: Int[Tensor, "batch steps slots"]
    ) -> tuple[Int[Tensor, "batch steps words"], Int[Tensor, "batch steps"]]:
        """The words of every statement, and how many of them count."""
        words = self._words.on(form.device)[form]
        filled = slots.gather(2, (-1 - words).clamp(min=0))
        return torch.where(words < 0, filled, words), self.sizes.on(form.device)[form]


def lay_out(
    words: Int[Tensor, "batch steps words"],
    sizes: Int[Tensor, "batch steps"],
    answers: Int[Tensor, "batch steps words"],
    *,
    pad_id: int,
    possible: int,
) -> Batch:
    """The first `sizes` words of every statement, end to end; `possible` is the widest there is.

    `answers` are the targets at those words, `IGNORE` where nothing is asked. The last word of
    every sequence is to be one that asks.
    """
    ends = sizes.cumsum(1)
    width = longest(ends[:, -1], possible)
    place = torch.arange(words.shape[2], device=words.device)
    at = (ends - sizes)[..., None] + place
    at = torch.where(place < sizes[..., None], at, width).flatten(1)  # the rest to a spare column
    tokens = torch.full((len(words), width + 1), pad_id, device=words.device)
    targets = torch.full_like(tokens, IGNORE)
    tokens = tokens.scatter(1, at, words.flatten(1))[:, :-1].contiguous()
    targets = targets.scatter(1, at, answers.flatten(1))[:, :-1].contiguous()
    return Batch(tokens, targets, targets != IGNORE)


def asked_at(
    answers: Int[Tensor, "batch steps"], place: Int[Tensor, "batch steps"], width: int
) -> Int[Tensor, "batch steps words"]:
    """Targets by word: the answer at `place`, nothing elsewhere; no place is negative."""
    words = torch.arange(width, device=answers.device)
    return torch.where(words == place[..., None], answers[..., None], IGNORE)


def after_header(header: Int[Tensor, "batch words"], body: Batch) -> Batch:
    """`body` behind words that ask nothing."""
    nothing = torch.full_like(header, IGNORE)
    return Batch(
        torch.cat([header, body.tokens], dim=1),
        torch.cat([nothing, body.targets], dim=1),
        torch.cat([torch.zeros_like(header, dtype=torch.bool), body.mask], dim=1),
    )


def composed(maps: Int[Tensor, "batch steps slots"]) -> Int[Tensor, "batch steps slots"]:
    """Where the content of every slot comes from, after the steps so far.

    `maps[b, t, s]` is the slot whose content is in slot s after step t, or, from the number of
    slots upwards, a constant that was put there.

    >>> composed(torch.tensor([[[1, 0, 2], [0, 2, 1], [7, 1, 2]]])).tolist()
    [[[1, 0, 2], [1, 2, 0], [7, 2, 0]]]
    """
    slots = maps.shape[2]
    span = 1
    while span < maps.shape[1]:
        before, after = maps[:, :-span], maps[:, span:]
        moved = before.gather(2, after.clamp(max=slots - 1))
        maps = torch.cat([maps[:, :span], torch.where(after < slots, moved, after)], dim=1)
        span *= 2
    return maps


def swapping(
    i: Int[Tensor, "batch steps"], j: Int[Tensor, "batch steps"], slots: int
) -> Int[Tensor, "batch steps slots"]:
    """The maps that exchange the contents of slots i and j."""
    slot = torch.arange(slots, device=i.device)
    i, j = i[..., None], j[..., None]
    return torch.where(slot == i, j, torch.where(slot == j, i, slot))


def depths_by(track: Tracker, token_names: Sequence[str]) -> Callable[[Batch], Depths]:
    """`Task.depths` from a function that reads the words of one sequence."""

    def depths(batch: Batch) -> Depths:
        sizes, rows = batch.num_tokens.tolist(), batch.tokens.tolist()
        found = [
            answer
            for size, row in zip(sizes, rows, strict=True)
            for answer in track([token_names[token] for token in row[:size]])
        ]
        each = torch.tensor(found).T.contiguous()
        nothing = torch.zeros_like(batch.tokens)
        return Depths(*(nothing.masked_scatter(batch.mask, values) for values in each))

    return depths
