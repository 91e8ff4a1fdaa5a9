"""The processes that train one run together, if there are several: torch's ranks.

`torchrun` starts them and `join` brings them together. All of them take every decision alike. Rank
0 alone holds the run's folder and writes to it, apart from checkpoints, of which each has its part.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

__all__ = [
    "Elsewhere",
    "LostRank",
    "any_rank",
    "is_first",
    "join",
    "once",
    "rank",
    "saving",
    "world",
]

Found = TypeVar("Found")

PATIENCE_S = 600.0
"""How long a rank waits for the others, unless STATETRACK_RANK_TIMEOUT says otherwise."""
SIGNS = ("Connection", "timed out", "Timed out", "Broken pipe", "NCCL", "peer", "Socket")
"""Words in the errors of collectives whose other side is gone."""

_saving: Any = None


class Elsewhere(Exception):
    """Another rank has told what went wrong."""


class LostRank(RuntimeError):
    """A process of the run is gone, so that the others cannot go on."""


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train the run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def saving() -> Any:
    """The group that checkpoints are saved in, beside the training; None for one process."""
    return _saving


@contextlib.contextmanager
def join(device: str) -> Iterator[str]:
    """Joins the ranks that torchrun has started; the device of this one. Nothing to do without it.

    A collective whose other side is gone raises `LostRank` when it leaves this context.
    """
    global _saving
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    kind = torch.device(device).type
    if kind == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"there are more processes than GPUs here ({torch.cuda.device_count()}): give "
                "torchrun --nproc-per-node at most that many"
            )
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    patience = float(os.environ.get("STATETRACK_RANK_TIMEOUT", PATIENCE_S))
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=patience))
    _saving = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
    try:
        yield device
    except RuntimeError as error:
        if not isinstance(error, LostRank) and _is_lost(error):
            raise LostRank(
                f"rank {rank()} of {world()} has lost another one, whose own message says why; the "
                "same command goes on from the last checkpoint"
            ) from error
        raise
    finally:
        _saving = None
        dist.destroy_process_group()


def _is_lost(error: RuntimeError) -> bool:
    is_dist = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
    return is_dist or any(sign in str(error) for sign in SIGNS)


def once(work: Callable[[], Found]) -> Found:
    """What `work` gives on rank 0, on all of them. An error there ends the others quietly."""
    if world() == 1:
        return work()
    told: list[Any] = [None, False]
    try:
        if is_first():
            told[0] = work()
    except BaseException:
        dist.broadcast_object_list([None, True])
        raise
    dist.broadcast_object_list(told)
    found, failed = told
    if failed:
        raise Elsewhere
    return found


def any_rank(flag: bool) -> bool:
    """Whether `flag` is set on any of them."""
    if world() == 1:
        return flag
    found = torch.tensor([flag], dtype=torch.int32)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())
