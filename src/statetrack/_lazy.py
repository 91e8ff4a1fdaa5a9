"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `names` by their modules, and its submodules.

    A name that needs torch where torch is not installed is refused in one line. A name must not be
    that of a submodule as well: importing the submodule would put it in the name's place.
    """

    def get(name: str) -> Any:
        submodule = f"{package}.{name}"
        if name not in names and (name.startswith("_") or not importlib.util.find_spec(submodule)):
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}",
                name=name,
                obj=sys.modules[package],
            )
        try:
            if name not in names:
                return importlib.import_module(submodule)
            found = getattr(importlib.import_module(names[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "torch":
                raise
            raise ImportError(
                f"{submodule} needs PyTorch, which is not installed: pip install torch",
                name="torch",
            ) from error
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        import pkgutil

        module = sys.modules[package]
        submodules = {info.name for info in pkgutil.iter_modules(module.__path__)}
        public = {name for name in submodules if not name.startswith("_")}
        return sorted({*vars(module), *names, *public})

    return get, listed
