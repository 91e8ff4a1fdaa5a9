"""Several processes that talk to each other, for what is shared among them."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def on_processes(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(*args)` returns on each of so many gloo processes, which it is called on at once.

    `work` is a function of a module, and its results can be sent.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = [(rank, count, str(Path(folder) / "store"), work, args) for rank in range(count)]
        with multiprocessing.get_context("spawn").Pool(count) as pool:
            return pool.starmap(_one, given, chunksize=1)


def _one(rank: int, count: int, store: str, work: Callable[..., Any], args: Any) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        return work(*args)
    finally:
        dist.destroy_process_group()


def segment(time: int) -> slice:
    """The tokens of this process: not as many on each, where there are enough."""
    rank, count = dist.get_rank(), dist.get_world_size()
    ends = [round(time * (i / count) ** 1.5) for i in range(count + 1)]
    return slice(ends[rank], ends[rank + 1])


def summed(x: torch.Tensor) -> torch.Tensor:
    """Over all processes."""
    found = x.clone()
    dist.all_reduce(found)
    return found
