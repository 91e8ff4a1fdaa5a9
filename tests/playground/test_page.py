"""The page as text: whole, closed, and safe whatever a machine is called."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from statetrack.automata import read
from statetrack.compiler import compile_program, program_of_json
from statetrack.playground import GALLERY, entry, write_page
from statetrack.playground.page import policy, render

HOSTILE = "</script><script>alert(1)</script><!--&amp;\"'\u2028"


class Parsed(HTMLParser):
    """Elements in order, with attributes; the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def data_of(page: Parsed) -> Any:
    return json.loads(page.scripts[0])


def test_the_static_page_holds_the_gallery_and_is_small(static_page: Path) -> None:
    text = static_page.read_text(encoding="utf-8")
    assert static_page.name == "index.html"
    assert len(text.encode()) < 1_000_000
    data = data_of(Parsed(text))
    assert [one["text"] for one in data["entries"]] == [one.text for one in GALLERY]
    assert data["secret"] is None
    for one in data["entries"]:
        for built in one["programs"]:
            program_of_json(built["program"])


def test_nothing_is_fetched_and_only_its_own_script_may_run(static_page: Path) -> None:
    page = Parsed(static_page.read_text(encoding="utf-8"))
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith(("#", "data:image/svg+xml,"))
    meta = [a for tag, a in page.elements if tag == "meta" and a.get("http-equiv")]
    assert [one["content"] for one in meta] == [policy(False)]
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy(False)
    assert "connect-src 'none'" in policy(False) and "connect-src 'self'" in policy(True)


def test_scripts_make_no_markup_and_run_no_text(static_page: Path) -> None:
    script = Parsed(static_page.read_text(encoding="utf-8")).scripts[1]
    risky = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|javascript:"
    )
    assert not re.findall(risky, script)
    assert len(re.findall(r"\bfetch\(", script)) == 1


def test_a_name_cannot_leave_its_block() -> None:
    hostile = entry("(aa)*") | {"text": HOSTILE, "title": HOSTILE, "about": HOSTILE}
    page = Parsed(render([hostile]))
    assert len(page.scripts) == 2
    assert data_of(page)["entries"][0]["title"] == HOSTILE


def test_the_first_machine_comes_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tuple(one for one in GALLERY if one.text in ("parity", "s3", "(ab)*"))
    monkeypatch.setattr("statetrack.playground.page.GALLERY", few)
    page = write_page(tmp_path / "folder" / "page.html", entry("s3"))
    assert page == tmp_path / "folder" / "page.html"
    texts = [one["text"] for one in data_of(Parsed(page.read_text(encoding="utf-8")))["entries"]]
    assert texts == ["s3", "parity", "(ab)*"]


def test_trained_eigenvalues_lie_in_their_range() -> None:
    trained = data_of(Parsed(render([entry("parity")])))["trained"]
    layer = compile_program(read("parity")).stages[0].layer
    assert trained["exact"] == {str(bit): layer.transition(bit)[0][0, 0] for bit in (0, 1)}
    assert {(run["model"], *run["eigen_range"]) for run in trained["runs"]} >= {
        ("DeltaNet", 0.0, 1.0),
        ("DeltaNet", -1.0, 1.0),
    }
    for run in trained["runs"]:
        low, high = run["eigen_range"]
        for values in run["eigenvalues"].values():
            assert sum(one["share"] for one in values) == pytest.approx(1, abs=0.01)
            assert all(low - 0.01 <= one["value"] <= high + 0.01 for one in values)
        assert run["lowest"] == pytest.approx(
            min(one["value"] for one in run["eigenvalues"]["1"]), abs=0.021
        )
        longer = run["accuracy"][1]["value"]
        assert longer > 0.99 if low < 0 else longer < 0.6
