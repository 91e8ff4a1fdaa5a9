"""The scripts in docs/: the import graph is current, the reference explains every argument."""

import importlib
import runpy
from typing import Any

import pytest

from tests.test_package import MAY_IMPORT, ROOT


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / f"{name}.py"))


def test_the_import_graph_is_drawn_from_the_table() -> None:
    graph = script("import_graph")
    (shown,) = graph["BLOCK"].findall((ROOT / "docs/design/house.md").read_text())
    assert shown == graph["drawn"](MAY_IMPORT), "python docs/import_graph.py draws it again"


def test_arrows_that_follow_from_others_are_left_out() -> None:
    table: dict[str, set[str]] = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "_d": {"a"}}
    arrows = script("import_graph")["drawn"](table).splitlines()[2:-1]
    assert arrows == ["  a --> b", "  b --> c"]


REFERENCE = script("_ext/reference")
PARTS = sorted(name for name in MAY_IMPORT if not name.startswith("_"))


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_a_page_in_the_reference(part: str) -> None:
    page = (ROOT / "docs/reference" / f"{part}.md").read_text()
    assert f"```{{part}} statetrack.{part}" in page
    assert f"]({part}.md)" in (ROOT / "docs/reference/README.md").read_text()
    assert REFERENCE["public"](importlib.import_module(f"statetrack.{part}"))


@pytest.mark.parametrize("part", PARTS)
def test_every_argument_is_explained(part: str) -> None:
    """By the docstring of the function or class itself, or where all of that name mean the same."""
    common = REFERENCE["common_arguments"]()
    module = importlib.import_module(f"statetrack.{part}")
    missing = {
        name: [each for each in REFERENCE["unexplained"](value) if each not in common]
        for name, value in REFERENCE["described"](module)
    }
    assert {name: arguments for name, arguments in missing.items() if arguments} == {}


def test_flowcharts_are_drawn() -> None:
    drawn = script("_ext/flowchart")["drawn"]
    picture = drawn([("a", "b"), ("b", "c"), ("a", "c")])
    assert picture.count("<rect") == 3 and picture.count('class="arrow"') == 3
    assert "c may import a" in picture
