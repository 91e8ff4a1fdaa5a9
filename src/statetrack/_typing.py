"""Shape annotations: jaxtyping's where it is installed, plain stand-ins where it is not.

The library runs with torch and numpy alone; the test run installs jaxtyping and turns every
annotation below into a check.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Inexact, Int
else:
    try:
        from jaxtyping import Bool, Float, Inexact, Int
    except ImportError:

        class _Shaped:
            """`Float[Tensor, "batch time"]` is `Tensor`."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Inexact = Int = _Shaped

__all__ = ["Bool", "Float", "Inexact", "Int"]
