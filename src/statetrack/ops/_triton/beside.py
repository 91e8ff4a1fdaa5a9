"""Kernels beside others: a second stream, for a walk that leaves most of every multiprocessor idle.

    with Beside(x, wanted) as beside:
        prepare()          # on the stream of the caller
        with beside():     # after all that was launched so far, beside all that is launched later
            walk()
        prepare_more()
        beside.wait()      # the caller's stream goes on after the first of the walks
        use()

At the end the caller's stream waits for all of them. So memory that is freed after it is free, and
a CUDA graph that is captured has both streams. Walks come one after the other, and first where
multiprocessors have to choose.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import final

import torch
from torch import Tensor

__all__ = ["Beside"]


@cache
def _second(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


@final
class Beside:
    """Does nothing where it is not wanted, or where tensors are not on a GPU."""

    def __init__(self, like: Tensor, wanted: bool) -> None:
        self._wanted = wanted and like.is_cuda
        self._ends: deque[torch.cuda.Event] = deque()
        if self._wanted:
            self._first = torch.cuda.current_stream(like.device)
            self._second = _second(like.get_device())

    def __enter__(self) -> "Beside":
        return self

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._wanted:
            yield
            return
        self._second.wait_stream(self._first)
        with torch.cuda.stream(self._second):
            yield
        self._ends.append(self._second.record_event())

    def wait(self) -> None:
        """The caller's stream waits for the first walk that it has not waited for."""
        if self._ends:
            self._first.wait_event(self._ends.popleft())

    def __exit__(self, *error: object) -> None:
        while self._ends:
            self.wait()
