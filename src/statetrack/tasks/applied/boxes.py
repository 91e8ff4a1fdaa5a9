"""Boxes: what is where, after swaps, replacements and emptyings told in English.

    Box 0 contains the o17 , Box 1 contains the o4 , Box 2 contains the o88 , ... .
    Swap the contents of Box 0 and Box 2 .  Empty Box 1 .  Box 2 contains the ?

Seven boxes with one object each, whose names are drawn anew for every sequence. After an operation
a box is asked for with probability 1/2, after the last one always; the answer is never shown.
Length counts operations.
"""

import functools
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from statetrack.tasks._sampling import DeviceTable, lengths_of, uniform
from statetrack.tasks._task import Batch, LengthRange, Source, Task
from statetrack.tasks.applied._text import (
    Templates,
    after_header,
    asked_at,
    composed,
    depths_by,
    dice,
    lay_out,
    swapping,
)

__all__ = ["Mix", "boxes"]

Mix = Literal["swap", "mixed", "no_swap"]
BOXES, OBJECTS = 7, 100
NUMBERS = tuple(str(box) for box in range(BOXES))
NAMES = tuple(f"o{i}" for i in range(OBJECTS))
WORDS = ("contains", "the", ",", ".", "Swap", "Replace", "Empty", "contents", "of", "and", "with")
TOKENS = ("[PAD]", "?", "Box", *NUMBERS, *WORDS, *NAMES)
ID = {name: i for i, name in enumerate(TOKENS)}
NOTHING = OBJECTS
"""The class of an empty box; the others are the objects."""
SWAP, REPLACE, EMPTY = range(3)
ASK = " Box q contains the ?"
FORMS = (
    "Swap the contents of Box i and Box j .",
    "Replace the contents of Box i with the o .",
    "Empty Box i .",
)
TEMPLATES = Templates([*FORMS, *(form + ASK for form in FORMS)], TOKENS, "ijqo")
MIXES: dict[Mix, tuple[tuple[float, float, float], float]] = {
    "swap": ((1.0, 0.0, 0.0), 1 / BOXES),
    "mixed": ((0.6, 0.2, 0.2), 0.5),
    "no_swap": ((0.0, 0.5, 0.5), 0.5),
}
"""How often each operation comes, and what a guess gets.

A guess is one of the seven objects, or "nothing", which half of the boxes come to hold where as
many are emptied as filled.
"""
QUERIES = 0.5
TRAIN, EVALUATE = LengthRange(2, 12), LengthRange(192, 192)
ENTRY = DeviceTable([ID[word] for word in ("Box", "0", "contains", "the", "o0", ",")])
HEADER = 6 * BOXES
WIDEST = 15


def boxes(mix: Mix) -> Task:
    """Boxes with swaps alone, with all operations, or without swaps.

    >>> boxes("swap").vocab_size, boxes("mixed").num_classes
    (121, 101)
    """
    shares, chance = MIXES[mix]
    what = {
        "swap": "contents are swapped",
        "mixed": "contents are swapped, replaced and removed",
        "no_swap": "contents are replaced and removed, never swapped",
    }[mix]
    return Task(
        name={"swap": "boxes", "mixed": "boxes_mixed", "no_swap": "boxes_no_swap"}[mix],
        summary=f"what a box contains when {what}",
        token_names=TOKENS,
        class_names=(*NAMES, "nothing"),
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=chance,
        length_means="operations",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=1,
        num_tokens=_num_tokens,
        sampler=functools.partial(
            _sample, until=DeviceTable(torch.tensor(shares).cumsum(0)[:-1].contiguous())
        ),
        depths=depths_by(_track, TOKENS),
        most_answers=int,
    )


def _num_tokens(length: int) -> int:
    return HEADER + WIDEST * length


def _sample(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    until: DeviceTable,
) -> Batch:
    steps = lengths.max
    size = lengths_of(batch, lengths, source, device)[:, None]
    first = dice((OBJECTS,), batch, source, device).topk(BOXES, dim=1).indices
    which, asks = dice((2, steps), batch, source, device).unbind(1)
    i, others, query, new = (
        uniform(0, top, (steps, batch), source, device).T
        for top in (BOXES - 1, BOXES - 2, BOXES - 1, OBJECTS - 1)
    )
    j = (i + 1 + others) % BOXES
    kind = torch.bucketize(which.contiguous(), until.on(device), right=True)

    step = torch.arange(steps, device=device)
    box = torch.arange(BOXES, device=device)
    put = torch.where(kind == EMPTY, NOTHING, new)[..., None] + BOXES
    putting = torch.where(box == i[..., None], put, box)
    maps = torch.where((kind == SWAP)[..., None], swapping(i, j, BOXES), putting)
    found = composed(maps).gather(2, query[..., None]).squeeze(2)
    named = first.gather(1, found.clamp(max=BOXES - 1))
    contents = torch.where(found < BOXES, named, found - BOXES)

    asked = (asks < QUERIES) | (step == size - 1)
    slots = [i + ID["0"], j + ID["0"], query + ID["0"], new + ID["o0"]]
    words, sizes = TEMPLATES.fill(kind + len(FORMS) * asked, torch.stack(slots, dim=2))
    answers = asked_at(contents, torch.where(asked, sizes - 1, -1), TEMPLATES.width)
    sizes = sizes.masked_fill(step >= size, 0)
    body = lay_out(words, sizes, answers, pad_id=0, possible=WIDEST * steps)
    return after_header(_header(first), body)


def _header(first: Tensor) -> Tensor:
    """`Box 0 contains the o17 , ... Box 6 contains the o2 .`"""
    words = ENTRY.on(first.device).repeat(len(first), BOXES, 1)
    words[..., 1] += torch.arange(BOXES, device=first.device)
    words[..., 4] += first
    words[:, -1, -1] = ID["."]
    return words.flatten(1)


def _track(words: list[str]) -> Iterator[tuple[int, int]]:
    """Swaps of the answer since it was named, and operations since."""
    held = {box: (0, 0) for box in NUMBERS}  # swaps, and the operation that named the content
    read, at = 0, HEADER
    while at < len(words):
        if words[at] == "Box":
            swaps, named = held[words[at + 1]]
            yield swaps, read - named
            at += 5
            continue
        read += 1
        if words[at] == "Swap":
            a, b = words[at + 5], words[at + 8]
            held[a], held[b] = ((held[x][0] + 1, held[x][1]) for x in (b, a))
            at += 10
        elif words[at] == "Replace":
            held[words[at + 5]] = (0, read)
            at += 10
        else:
            held[words[at + 2]] = (0, read)
            at += 4
