"""How kernels are compiled, and how they share the cores.

Kernels are ordinary serial loops without the interpreter lock. `share_out` cuts their outermost
range into one piece per torch thread and runs the pieces in Python threads. That compiles in a
fraction of the time of numba's own parallel loops, has no threading layer to configure, and may be
called from any number of threads at once.
"""

import hashlib
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numba
import torch
from torch import Tensor

__all__ = ["arrays", "compiled", "share_out"]

# Sums may be reordered and products fused, so that loops become vector code. NaN and infinity keep
# their meaning, and zeros their sign.
_FLAGS = {"contract", "reassoc"}
_FUNCTIONS = hashlib.sha256(Path(__file__).with_name("functions.py").read_bytes()).hexdigest()


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """`function` compiled at its first call for each set of dtypes, and kept on disk if possible.

    Numba looks for a folder beside the source file, then in the user's cache folder. Where neither
    can be written, each process compiles for itself.
    """
    function = inspect.unwrap(function)  # an import hook that checks types may have wrapped it
    options: dict[str, Any] = {"nogil": True, "fastmath": _FLAGS, "error_model": "numpy"}
    try:
        kernel: Callable[..., None] = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return cast(Callable[..., None], numba.njit(**options)(function))
    # Numba asks whether the kernel's own file has changed, not what is inlined from functions.py.
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = (index._source_stamp, _FUNCTIONS)
    return kernel


def share_out(kernel: Callable[..., None], count: int, *args: Any) -> None:
    """Runs kernel(start, stop, *args) over ranges that cover 0..count, one for each torch thread.

    The ranges decide only who does the work: every unit of it writes to places of its own, so
    results do not depend on the number of threads.
    """
    pieces = min(torch.get_num_threads(), count)
    bounds = [count * piece // pieces for piece in range(pieces + 1)] if pieces else [0]
    others = [
        _pool().submit(kernel, start, stop, *args)
        for start, stop in zip(bounds[1:-1], bounds[2:], strict=True)
    ]
    if pieces:
        kernel(0, bounds[1], *args)
    for other in others:
        other.result()


def arrays(dtype: torch.dtype, *tensors: Tensor | None) -> list[Any]:
    """The tensors as contiguous arrays of one dtype, as kernels take them; None stays None."""
    return [None if x is None else x.detach().to(dtype).contiguous().numpy() for x in tensors]


_workers: ThreadPoolExecutor | None = None


def _pool() -> ThreadPoolExecutor:
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="statetrack")
    return _workers


def _forget_pool() -> None:
    """A forked process has none of its parent's threads."""
    global _workers
    _workers = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
