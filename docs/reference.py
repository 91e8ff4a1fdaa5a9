"""Writes docs/reference/, a page for each part of the library, from its docstrings.

make docs
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import statetrack

REFERENCE = Path(__file__).parent / "reference"


def parts() -> list[str]:
    """Every public part of the library but the command line, which explains itself."""
    names = [info.name for info in pkgutil.iter_modules(statetrack.__path__)]
    return [name for name in names if not name.startswith("_") and name != "cli"]


def public(module: ModuleType) -> dict[str, Any]:
    """The classes and functions that a part hands out, by name."""
    names = getattr(module, "__all__", None) or dir(module)
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in sorted(found.items()) if is_ours(value)}


def is_ours(value: Any) -> bool:
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    return is_code and value.__module__.split(".")[0] == "statetrack"


def page(name: str) -> str:
    """One part in Markdown."""
    module = importlib.import_module(f"statetrack.{name}")
    entries = [entry for item in public(module).items() for entry in described(*item)]
    return "\n\n".join([f"# statetrack.{name}", text(module), *entries]) + "\n"


def described(name: str, value: Any) -> Iterator[str]:
    """A function; or a class and what it defines itself."""
    yield f"## {name}\n\n{text(value, signature(name, value))}"
    for member, found in vars(value).items() if inspect.isclass(value) else ():
        if isinstance(found, property | cached_property):
            code, head = getattr(found, "fget", None) or found.func, member
        else:
            code = getattr(found, "__func__", found)
            head = signature(member, code) if inspect.isfunction(code) else ""
        if head and not member.startswith("_") and is_ours(code):
            yield f"### {name}.{member}\n\n{text(code, head)}"


def signature(name: str, value: Any) -> str:
    """As it is called, without the modules that types come from."""
    try:
        arguments = str(inspect.signature(value))
    except ValueError:  # a class that takes its constructor from C
        return name
    return name + re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", arguments)


def text(value: Any, head: str = "") -> str:
    lines = [head, "", inspect.getdoc(value) or ""]
    return "\n".join(["```text", "\n".join(lines).strip(), "```"])


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name in parts():
        (REFERENCE / f"{name}.md").write_text(page(name))
    lines = [f"- [statetrack.{name}]({name}.md)" for name in parts()]
    (REFERENCE / "README.md").write_text("# Reference\n\n" + "\n".join(lines) + "\n")
    print(f"written to {REFERENCE}/: {', '.join(parts())}")


if __name__ == "__main__":
    main()
