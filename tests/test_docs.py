"""The scripts in docs/: the import graph is current, and the reference has every public name."""

import runpy
from pathlib import Path
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


def test_the_reference_has_a_page_for_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = script("reference")
    monkeypatch.setitem(reference["main"].__globals__, "REFERENCE", tmp_path)
    reference["main"]()
    pages = {path.stem: path.read_text() for path in tmp_path.glob("*.md")}
    assert set(pages) == {name for name in MAY_IMPORT if not name.startswith("_")} | {"README"}
    assert "## delta_rule" in pages["ops"] and "delta_rule(q: " in pages["ops"]
    assert "### Layer.forward" in pages["layers"] and "## compile" in pages["compiler"]
    assert "0x" not in "".join(pages.values()), "the address of an object"
