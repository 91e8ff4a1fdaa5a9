"""Seeds that cannot meet, and fixed evaluation sets."""

import hashlib
from typing import Literal, get_args

import torch

from statetrack.tasks._registry import get
from statetrack.tasks._task import Batch, LengthRange, Task

Split = Literal["train", "validation", "test"]


def seed_of(task: Task | str, split: Split, seed: int) -> int:
    """The seed of a stream of batches, from a hash of the task's name, the split and the seed.

    Its last two bits name the split, so that streams of different splits never have the same seed,
    not even in the 32 bits that torch's CPU generator keeps.

    >>> seed_of("parity", "train", 0) == seed_of("parity", "validation", 0)
    False
    """
    splits = get_args(Split)
    if split not in splits:
        raise ValueError(f"unknown split {split!r}; one of {', '.join(splits)}")
    name = get(task).name if isinstance(task, str) else task.name
    digest = hashlib.sha256(f"{name}\0{split}\0{seed}".encode()).digest()
    return int.from_bytes(digest[:7], "big") * 4 + splits.index(split)


def generator(
    task: Task | str, split: Split, seed: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator for the stream `(task, split, seed)`, to be handed to `Task.sample`."""
    return torch.Generator(device).manual_seed(seed_of(task, split, seed))


def evaluation_set(
    task: Task | str,
    size: int = 8192,
    seed: int = 0,
    *,
    lengths: LengthRange | None = None,
    split: Split = "validation",
    device: torch.device | str = "cpu",
) -> Batch:
    """A fixed set: the same sequences for every model, on every device.

    Lengths are by default the task's `eval_lengths`. The set is always drawn on the CPU, from a
    seed that no training stream can have, and then moved.

    >>> evaluation_set("parity", 16).tokens.shape[0]
    16
    """
    task = get(task) if isinstance(task, str) else task
    low, high = lengths or task.eval_lengths
    stream = generator(task, split, seed)
    return task.sample(size, high, min_length=low, generator=stream).to(device)
