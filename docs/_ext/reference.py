"""The reference: `{part}` lists what a part of the library hands out, `{commands}` the commands.

Arguments that mean the same everywhere are explained once, in reference/arguments.md, and from
there in every entry whose docstring does not name them.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ARGUMENTS = Path(__file__).parents[1] / "reference" / "arguments.md"


def public(module: ModuleType) -> dict[str, Any]:
    """The classes and functions that a part defines and hands out, by name."""
    names = getattr(module, "__all__", None) or dir(module)
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in sorted(found.items()) if defines(module, value)}


def defines(module: ModuleType, value: Any) -> bool:
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    return is_code and f"{value.__module__}.".startswith(f"{module.__name__}.")


@cache
def common_arguments() -> dict[str, str]:
    """The rows of the table in reference/arguments.md."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|$", ARGUMENTS.read_text(), re.MULTILINE)
    return {name: meaning for name, meaning in rows}


def arguments_of(value: Any) -> list[str]:
    """The names that a caller may give."""
    try:
        parameters = inspect.signature(value).parameters
    except ValueError:  # a class that takes its constructor from C
        return []
    return [name for name in parameters if name not in ("self", "cls")]


def unexplained(value: Any) -> list[str]:
    """The arguments that the docstring does not name."""
    text = inspect.getdoc(value) or ""
    return [name for name in arguments_of(value) if not re.search(rf"\b{name}\b", text)]


def described(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Every entry of the reference: functions, classes, and the methods a class defines itself."""
    for name, value in public(module).items():
        yield name, value
        for member, code in vars(value).items() if inspect.isclass(value) else ():
            method = getattr(code, "__func__", code)
            if inspect.isfunction(method) and not member.startswith("_"):
                yield f"{name}.{member}", getattr(value, member)


class Part(SphinxDirective):
    """The functions and classes of the modules that are named."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        lines = ["```{eval-rst}"]
        for path in self.arguments[0].split():
            module = importlib.import_module(path)
            for name, value in public(module).items():
                kind = "autoclass" if inspect.isclass(value) else "autofunction"
                lines += [f".. {kind}:: {path}.{name}", ""]
                lines[-1:] = ["   :members:", ""] if kind == "autoclass" else [""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


class Commands(SphinxDirective):
    """The command line, as it explains itself."""

    def run(self) -> list[nodes.Node]:
        from statetrack.cli.app import build

        text = build().generate_docs(output_format="markdown", heading_level=2, recursive=True)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def explain_arguments(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    if what in ("function", "method", "class"):
        common = common_arguments()
        missing = [each for each in unexplained(value) if each in common]
        if missing:
            lines += ["", *(f":param {each}: {common[each]}" for each in missing)]


def escape_bars(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """|a| is a modulus here, and not a substitution of reStructuredText."""
    for index, line in enumerate(lines):
        pieces = line.split("`")
        pieces[::2] = [piece.replace("|", r"\|") for piece in pieces[::2]]
        lines[index] = line if line.lstrip().startswith(">>>") else "`".join(pieces)


def skip_fields(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Fields of a NamedTuple say nothing of themselves."""
    return True if (getattr(value, "__doc__", None) or "").startswith("Alias for field") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("part", Part)
    app.add_directive("commands", Commands)
    app.connect("autodoc-process-docstring", explain_arguments)
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-skip-member", skip_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
