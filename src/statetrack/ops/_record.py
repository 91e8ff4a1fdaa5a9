"""Which backends really ran."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["note", "record_backends"]

_active: ContextVar[tuple[dict[str, list[str]], ...]] = ContextVar("statetrack_record", default=())


@contextmanager
def record_backends() -> Iterator[dict[str, list[str]]]:
    """Inside this block every op that runs is entered with its backends, sorted, in the dict.

    `delta_rule` is entered as `delta_product`, which runs it. An op counts when it is called, when
    a compiler traces it and when compiled code runs it. Two things go unseen, unless they are
    traced inside the block: `"reference"` in compiled code, and the replay of a CUDA graph.

    >>> import torch
    >>> from statetrack import ops
    >>> with ops.record_backends() as used:
    ...     ops.diagonal_scan(torch.ones(1, 2), torch.ones(1, 2), backend="torch")[1]
    tensor([2.])
    >>> used
    {'diagonal_scan': ['torch']}
    """
    found: dict[str, list[str]] = {}
    token = _active.set((*_active.get(), found))
    try:
        yield found
    finally:
        _active.reset(token)


def note(op: str, backend: str) -> None:
    """Enters that `backend` runs `op`."""
    for found in _active.get():
        backends = found.setdefault(op, [])
        if backend not in backends:
            backends.append(backend)
            backends.sort()
