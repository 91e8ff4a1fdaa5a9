"""Checks on what users pass in: shapes, dtypes and devices always, values on request.

Looking at values makes a GPU wait, so it is off unless asked for:

    with statetrack.ops.check_values():
        ops.delta_rule(q, k, v, beta)        # raises if beta leaves [0, 2]
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_devices", "check_range", "check_shape", "check_values", "checking_values"]

_checking: ContextVar[bool] = ContextVar("statetrack_check_values", default=False)


@contextmanager
def check_values() -> Iterator[None]:
    """Inside this block every op looks at its values and refuses those out of range."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def checking_values() -> bool:
    """Inside such a block, and not in compiled code, which never looks at values."""
    return not torch.compiler.is_compiling() and _checking.get()


def check_shape(
    name: str, tensor: Any, axes: str, sizes: dict[str, int], *, complex_ok: bool = False
) -> None:
    """Checks `tensor` against named axes such as "batch time heads key".

    Sizes already in `sizes` must agree; new names are added to it. A digit is a fixed size.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not (tensor.is_floating_point() or (complex_ok and tensor.is_complex())):
        kinds = "floating-point or complex" if complex_ok else "floating-point"
        raise ValueError(f"{name} has dtype {tensor.dtype}, but must be {kinds}; cast it first")
    words = axes.split()
    shape = tuple(tensor.shape)
    layout = f"[{', '.join(words)}]"
    if len(shape) != len(words):
        raise ValueError(f"{name} has shape {shape}, but must be {layout}")
    if "time" in words and shape[words.index("time")] == 0:
        raise ValueError(f"{name} has shape {shape}: there is no token; time must be at least 1")
    for word, size in zip(words, shape, strict=True):
        expected = int(word) if word.isdigit() else sizes.setdefault(word, size)
        if size != expected:
            raise ValueError(
                f"{name} has shape {shape}, but must be {layout} with {word} = {expected}"
                f" (it has {word} = {size})"
            )


def check_devices(**tensors: Tensor | None) -> None:
    """All tensors on one device."""
    found = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    first, device = next(iter(found.items()))
    for name, other in found.items():
        if other != device:
            raise ValueError(
                f"{name} is on {other} but {first} is on {device}; move them to one device"
            )


def check_range(name: str, tensor: Tensor | None, low: float, high: float) -> None:
    """Values within [low, high]; NaN passes (NaN in, NaN out). Only inside `check_values()`."""
    if not checking_values() or tensor is None or tensor.numel() == 0:
        return
    size = tensor.detach().abs() if tensor.is_complex() else tensor.detach()
    smallest, largest = torch.aminmax(size)
    if bool(smallest < low) or bool(largest > high):
        raise ValueError(
            f"{name} must lie in [{low:g}, {high:g}], "
            f"but reaches from {smallest.item():g} to {largest.item():g}"
        )
