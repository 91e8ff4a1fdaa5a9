"""What every kernel module needs from Triton: a version it can trust, dtypes, and a launch."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "by_token",
    "check_version",
    "contiguous",
    "is_trusted",
    "on_device_of",
    "power_of_two",
    "triton_dtype",
]

# Triton 3.4.0 to 3.7.0 compile dot(trans(accumulator), x) wrongly for Hopper. No kernel here has
# that pattern (transposes are loaded). 3.6.0 and 3.7.1 copy the next tile of a loop over one that
# a product still reads, if something else reads it too; tests refuse kernels in which they do. On
# 3.6.0 the GPU tests are run; older ones are refused.
OLDEST_TESTED = (3, 6)

_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def is_trusted() -> bool:
    """Whether this Triton has been seen to compile the kernels correctly."""
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= OLDEST_TESTED


def check_version() -> None:
    """Raises if this Triton has not been seen to compile the kernels correctly."""
    if not is_trusted():
        oldest = ".".join(map(str, OLDEST_TESTED))
        raise RuntimeError(
            f"Triton {triton.__version__} is installed, but the kernels are only known to compile"
            f" correctly from {oldest} on; pip install 'triton>={oldest}', or take backend='torch'"
        )


def triton_dtype(dtype: torch.dtype) -> tl.dtype:
    """The Triton name of a precision to compute in."""
    return _DTYPES[dtype]


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


@contextmanager
def on_device_of(tensor: Tensor) -> Iterator[None]:
    """Launches inside go to the GPU that holds `tensor`."""
    if tensor.device.type == "cuda":
        with torch.cuda.device(tensor.device):
            yield
    else:
        yield


def contiguous(x: Tensor | None) -> Tensor | None:
    """x in one piece of memory; None stays None."""
    return None if x is None else x.contiguous()


def by_token(x: Tensor) -> tuple[Tensor, int]:
    """x [B,T,...] with every token in one piece, and the numbers from one token to the next.

    A part of a wider row, as a projection to q, k and v at once leaves it, is taken as it lies.
    """
    batch, time, *inner = x.shape
    size = math.prod(inner)
    token = x.stride(1) if time > 1 else size
    one_piece = all(
        stride == math.prod(inner[axis + 1 :]) for axis, stride in enumerate(x.stride()[2:])
    )
    if one_piece and (batch == 1 or x.stride(0) == time * token):
        return x, token
    return x.contiguous(), size
