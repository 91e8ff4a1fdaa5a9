"""Recall: pairs of keys and values, then keys whose values are asked for.

    k2 v8 k4 v7 _ _ k4 v7 _ _ k2         ->  v7 at the second k4, v8 at the second k2

`mqar` is the task of Arora et al. 2023: every key comes once, and is asked for once in the three
quarters of the sequence behind the pairs, sooner rather than later: k slots behind with a
probability that falls as k^-0.99. Length counts pairs, and there are eight tokens for each.

`mqar_forgetting` writes to the same eight keys again and again, and then asks for each of them:
the last value counts. Length counts pairs that are written.

Both have 4095 keys and as many values. With 256 (`mqar_256`, `mqar_forgetting_256`) a small model
learns them in minutes of a CPU.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from statetrack.tasks._sampling import lengths_of, longest, uniform
from statetrack.tasks._task import IGNORE, Batch, LengthRange, Source, Task
from statetrack.tasks.applied._text import depths_by, dice

__all__ = ["mqar", "mqar_forgetting"]

NAMES = 4095
"""Keys of the published task, and values."""
FILLER, FIRST_KEY = 1, 2
TOKENS_EACH, SLOTS_EACH = 8, 3
POWER = 0.01
POOL = 8
TRAIN, EVALUATE = LengthRange(4, 32), LengthRange(256, 256)
TRAIN_FORGETTING, EVALUATE_FORGETTING = LengthRange(8, 64), LengthRange(1024, 1024)


def mqar(names: int = NAMES) -> Task:
    """Every key once, of so many keys and values.

    >>> mqar().vocab_size, mqar().num_classes
    (8192, 4095)
    >>> mqar(256).name
    'mqar_256'
    """
    tokens = _tokens(names)
    return Task(
        name=f"mqar{_said(names)}",
        summary=f"recall which of {names} values stood behind a key",
        token_names=tokens,
        class_names=tokens[FIRST_KEY + names :],
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=1 / TRAIN.max,
        length_means="pairs of a key and a value",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=1,
        num_tokens=_num_tokens,
        sampler=functools.partial(_sample, names=names),
        depths=depths_by(_track, tokens),
        most_answers=int,
    )


def mqar_forgetting(names: int = NAMES) -> Task:
    """Eight keys, overwritten.

    >>> mqar_forgetting().num_tokens(8)
    31
    """
    tokens = _tokens(names)
    return Task(
        name=f"mqar_forgetting{_said(names)}",
        summary=f"recall which of {names} values stood behind a key the last time",
        token_names=tokens,
        class_names=tokens[FIRST_KEY + names :],
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=1 / POOL,
        length_means="pairs of a key and a value",
        train_lengths=TRAIN_FORGETTING,
        eval_lengths=EVALUATE_FORGETTING,
        shortest=POOL,
        num_tokens=_num_tokens_forgetting,
        sampler=functools.partial(_sample_forgetting, names=names),
        depths=depths_by(_track_forgetting, tokens),
        most_answers=_most_forgetting,
    )


def _said(names: int) -> str:
    return "" if names == NAMES else f"_{names}"


def _tokens(names: int) -> tuple[str, ...]:
    keys, values = ([f"{kind}{i}" for i in range(names)] for kind in "kv")
    return ("[PAD]", "_", *keys, *values)


def _num_tokens(length: int) -> int:
    return TOKENS_EACH * length - 1


def _num_tokens_forgetting(length: int) -> int:
    return 2 * length + 2 * POOL - 1


def _most_forgetting(length: int) -> int:
    return POOL


def _sample(
    batch: int, lengths: LengthRange, source: Source, device: torch.device, *, names: int
) -> Batch:
    if lengths.max > names:
        raise ValueError(f"{lengths.max} pairs need as many keys, and there are {names}")
    size = lengths_of(batch, lengths, source, device)[:, None]
    pairs = longest(size[:, 0], lengths.max)
    keys = FIRST_KEY + dice((names,), batch, source, device).topk(pairs, dim=1).indices
    values = uniform(0, names - 1, (pairs, batch), source, device).T
    # The Gumbel-top-k trick: draws without replacement, with probabilities that fall as a power.
    slot = torch.arange(1, SLOTS_EACH * pairs + 1, device=device)
    noise = -torch.log(-torch.log(dice((len(slot),), batch, source, device).clamp(min=1e-30)))
    keen = (noise + (POWER - 1) * slot.log()).masked_fill(slot > SLOTS_EACH * size, -torch.inf)
    chosen = keen.topk(pairs, dim=1).indices

    width = TOKENS_EACH * pairs
    number = torch.arange(pairs, device=device)
    begin = torch.where(number < size, 2 * number, width)
    asked = torch.where(number < size, 2 * size + 2 * chosen, width)
    tokens = torch.full((batch, width + 2), FILLER, device=device)
    targets = torch.full_like(tokens, IGNORE)
    for place in (begin, asked):
        tokens = tokens.scatter(1, place, keys).scatter(1, place + 1, FIRST_KEY + names + values)
    targets = targets.scatter(1, asked, values)[:, : width - 1]
    return _ended(tokens[:, : width - 1], targets)


def _sample_forgetting(
    batch: int, lengths: LengthRange, source: Source, device: torch.device, *, names: int
) -> Batch:
    size = lengths_of(batch, lengths, source, device)[:, None]
    pairs = longest(size[:, 0], lengths.max)
    pool = FIRST_KEY + dice((names,), batch, source, device).topk(POOL, dim=1).indices
    first, asked = dice((2, POOL), batch, source, device).argsort(dim=2).unbind(1)
    later = uniform(0, POOL - 1, (pairs - POOL, batch), source, device).T
    written = torch.cat([first, later], dim=1)
    values = uniform(0, names - 1, (pairs, batch), source, device).T

    number = torch.arange(pairs, device=device)
    hit = (written[:, None] == asked[..., None]) & (number < size[..., None])
    last = torch.where(hit, number, 0).amax(dim=2)
    recalled = values.gather(1, last)

    width = 2 * (pairs + POOL)
    tokens = torch.zeros(batch, width + 2, dtype=torch.long, device=device)
    targets = torch.full_like(tokens, IGNORE)
    begin = torch.where(number < size, 2 * number, width)
    ask = 2 * size + 2 * torch.arange(POOL, device=device)
    for place, which, value in ((begin, written, values), (ask, asked, recalled)):
        tokens = tokens.scatter(1, place, pool.gather(1, which))
        tokens = tokens.scatter(1, place + 1, FIRST_KEY + names + value)
    targets = targets.scatter(1, ask, recalled)[:, : width - 1]
    return _ended(tokens[:, : width - 1], targets)


def _ended(tokens: Tensor, targets: Tensor) -> Batch:
    """Every sequence cut after the last thing it asks."""
    mask = targets != IGNORE
    place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    end = (mask * place).amax(dim=1, keepdim=True)
    width = longest(end[:, 0], mask.shape[1])
    tokens = tokens.masked_fill(place > end, 0)
    return Batch(tokens[:, :width], targets[:, :width], mask[:, :width])


def _track(words: list[str]) -> Iterator[tuple[int, int]]:
    """Pairs between a key and its question, as tokens count."""
    seen: dict[str, int] = {}
    for at, word in enumerate(words):
        if word.startswith("k"):
            if word in seen:
                yield 0, (at - seen[word]) // 2
            seen.setdefault(word, at)


def _track_forgetting(words: list[str]) -> Iterator[tuple[int, int]]:
    """How often the value of the key was overwritten, and pairs since the last time."""
    ends = len(words) + 1 - 2 * POOL
    times: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, key in enumerate(words[:ends:2]):
        times[key], last[key] = times.get(key, -1) + 1, at
    for key in words[ends::2]:
        yield times[key], ends // 2 - last[key]
