"""Selective copying: sixteen letters among blanks, then sixteen markers that ask for them in order.

    a _ _ c b _ | ? ? ?        ->  a c b

Length counts the tokens before the markers, letters and blanks.
"""

import torch

from statetrack.tasks._sampling import lengths_of, longest, uniform
from statetrack.tasks._task import IGNORE, Batch, LengthRange, Source, Task
from statetrack.tasks.applied._text import dice

__all__ = ["selective_copying"]

LETTERS = 16
"""As many kinds of them as there are in a sequence."""
TOKENS = ("[PAD]", "_", "?", *"abcdefghijklmnop")
PAD, BLANK, MARKER, FIRST = 0, 1, 2, 3
TRAIN, EVALUATE = LengthRange(64, 256), LengthRange(4096, 4096)


def selective_copying() -> Task:
    """Sixteen letters among blanks.

    >>> selective_copying().vocab_size, selective_copying().num_tokens(256)
    (19, 272)
    """
    return Task(
        name="selective_copying",
        summary="say the letters that stood among blanks, in order",
        token_names=TOKENS,
        class_names=TOKENS[FIRST:],
        pad_id=PAD,
        dense=True,
        judged_by="scaled_accuracy",
        chance=1 / LETTERS,
        length_means="letters and blanks",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=LETTERS,
        num_tokens=_num_tokens,
        sampler=_sample,
        most_answers=_most_answers,
    )


def _num_tokens(length: int) -> int:
    return length + LETTERS


def _most_answers(length: int) -> int:
    return LETTERS


def _sample(batch: int, lengths: LengthRange, source: Source, device: torch.device) -> Batch:
    size = lengths_of(batch, lengths, source, device)[:, None]
    width = longest(size[:, 0], lengths.max)
    letters = uniform(0, LETTERS - 1, (LETTERS, batch), source, device).T
    place = torch.arange(width + LETTERS, device=device)
    keen = dice((width,), batch, source, device).masked_fill(place[:width] >= size, -1.0)
    at = keen.topk(LETTERS, dim=1).indices.sort(dim=1).values
    tokens = torch.where(place < size, BLANK, torch.where(place < size + LETTERS, MARKER, PAD))
    tokens = tokens.scatter(1, at, FIRST + letters)
    ask = size + torch.arange(LETTERS, device=device)
    targets = torch.full_like(tokens, IGNORE).scatter(1, ask, letters)
    return Batch(tokens, targets, targets != IGNORE)
