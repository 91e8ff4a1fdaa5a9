"""Flip-flop: w writes a bit, i is to be ignored, r asks for the bit that was written last.

    w 1 i 0 i 1 r        ->  1

The first instruction writes and the last one reads; of the others a share is i, the rest half w and
half r. Bits behind w and i are fair, behind r stands the answer. Length counts instructions.
"""

import functools
from collections.abc import Iterator

import torch

from statetrack.tasks._sampling import lengths_of, longest, uniform
from statetrack.tasks._task import IGNORE, Batch, LengthRange, Source, Task
from statetrack.tasks.applied._text import depths_by, dice

__all__ = ["flip_flop"]

TOKENS = ("[PAD]", "w", "r", "i", "0", "1")
WRITE, READ, SKIP, ZERO = 1, 2, 3, 4
SHARES = (0.8, 0.98, 0.1)
TRAIN, EVALUATE = LengthRange(256, 256), LengthRange(4096, 4096)


def flip_flop(ignored: float = 0.8) -> Task:
    """The language in which a share of the instructions is to be ignored.

    >>> flip_flop().name, flip_flop(0.98).name
    ('flip_flop', 'flip_flop_i98')
    """
    return Task(
        name="flip_flop" if ignored == SHARES[0] else f"flip_flop_i{round(100 * ignored)}",
        summary=f"the bit that was written last, where {ignored:.0%} of instructions do nothing",
        token_names=TOKENS,
        class_names=("0", "1"),
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=0.5,
        length_means="instructions",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=2,
        fixed_length=True,
        num_tokens=_num_tokens,
        sampler=functools.partial(_sample, ignored=ignored),
        depths=depths_by(_track, TOKENS),
        most_answers=int,
    )


def _num_tokens(length: int) -> int:
    return 2 * length - 1


def _sample(
    batch: int, lengths: LengthRange, source: Source, device: torch.device, *, ignored: float
) -> Batch:
    size = lengths_of(batch, lengths, source, device)[:, None]
    steps = longest(size[:, 0], lengths.max)
    kind = dice((steps,), batch, source, device)
    bits = uniform(0, 1, (steps, batch), source, device).T
    step = torch.arange(steps, device=device)
    writes = (kind < (1 - ignored) / 2) | (step == 0)
    reads = (kind >= (1 + ignored) / 2) & (step > 0) & (step < size) | (step == size - 1)
    writes = writes & ~reads
    written = torch.where(writes, step, 0).cummax(dim=1).values
    bits = torch.where(reads, bits.gather(1, written), bits)
    name = torch.where(writes, WRITE, torch.where(reads, READ, SKIP))
    tokens = torch.stack([name, ZERO + bits], dim=2)
    targets = torch.stack([torch.where(reads, bits, IGNORE), torch.full_like(bits, IGNORE)], dim=2)
    past = (step >= size)[..., None] | ((step == size - 1)[..., None] & _second(device))
    tokens = tokens.masked_fill(past, 0).flatten(1)[:, :-1]
    targets = targets.flatten(1)[:, :-1]
    return Batch(tokens, targets, targets != IGNORE)


def _second(device: torch.device) -> torch.Tensor:
    """True for the bit of an instruction."""
    return torch.arange(2, device=device) == 1


def _track(words: list[str]) -> Iterator[tuple[int, int]]:
    """Instructions since the bit was written or shown; nothing ever changes it in between."""
    age = 0
    for word in words[::2]:
        age += 1
        if word == "r":
            yield 0, age
        if word != "i":
            age = 0
