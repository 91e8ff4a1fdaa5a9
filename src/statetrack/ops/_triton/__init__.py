"""What GPU kernels in Triton share; imported when an op first runs on the GPU."""

from functools import cache
from importlib.util import find_spec

__all__ = ["available"]


@cache
def available() -> bool:
    """Whether there is a Triton, and one that is known to compile the kernels correctly."""
    if find_spec("triton") is None:
        return False
    from statetrack.ops._triton.runtime import is_trusted

    return is_trusted()
