"""The documentation site: built strictly from nothing, and looked at in a browser."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.test_package import ROOT

pytest.importorskip("sphinx", reason="Sphinx is not installed")

LOOKED_AT = ("index", "guide/compiler", "tutorials/negative_eigenvalues", "reference/ops")


class Page(HTMLParser):
    """What a page points to, what it loads, and the places in it that can be pointed to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors.update(values[key] for key in ("id", "name") if key in values)
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag in ("img", "script", "iframe", "source") and "src" in values:
            self.loads.add(values["src"])
        if tag == "link" and "href" in values:
            self.loads.add(values["href"])


def build(folder: Path) -> Path:
    """As `make docs` does; a warning is an error."""
    words = ["--fail-on-warning", "--keep-going", "--quiet", "-c", "docs"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, "-d", folder / "doctrees", ".", folder / "site"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def broken_links(site: Path) -> list[str]:
    """Links from page to page that lead nowhere, and whatever comes from another place."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        for target in page.links | page.loads:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                if target in page.loads and address.scheme != "data":
                    wrong.append(f"{path.relative_to(site)} loads {target}")
                continue
            there = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not there.is_file():
                wrong.append(f"{path.relative_to(site)} -> {target}")
            elif address.fragment and there in pages:
                if unquote(address.fragment) not in pages[there].anchors:
                    wrong.append(f"{path.relative_to(site)} -> {target}: no such place")
    return sorted(wrong)


def try_the_picture(page: Any) -> None:
    """Parity is kept at λ = -1, lost at λ = 0.5, and the picture follows what is typed."""
    says, marks = page.locator("#parity-says"), page.locator("#parity svg .mark")
    page.fill("#parity-bits", "1101")
    assert says.inner_text().startswith("Right after 4 of 4 bits.")
    assert marks.all_text_contents() == ["✓"] * 4
    page.click("#parity button[data-lambda='0.5']")
    assert says.inner_text().startswith("Right after 2 of 4 bits.")
    assert marks.all_text_contents() == ["✗", "✓", "✓", "✗"]
    page.focus("#parity-lambda")
    page.keyboard.press("Home")
    assert page.locator("#parity-value").inner_text() == "−1.00"
    assert says.inner_text().startswith("Right after 4 of 4 bits.")
    page.fill("#parity-bits", "")
    assert says.inner_text() == "Type some bits, 0 and 1."


def look(site: Path) -> None:
    """In light and dark, wide and narrow: no error, nothing from outside, nothing serious."""
    from axe_playwright_python.sync_playwright import Axe

    from tests.chromium import chromium

    said: list[str] = []
    asked: list[str] = []
    with chromium() as browser:
        for width, scheme in ((1400, "light"), (400, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            for name in LOOKED_AT:
                page.goto((site / "docs" / f"{name}.html").as_uri())
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} is wider than the screen"
                found = Axe().run(page, options={"preload": False}).response["violations"]
                serious = [
                    f"{name}, {scheme}: {each['id']}: {node['html'][:120]}"
                    for each in found
                    if each["impact"] in ("serious", "critical")
                    for node in each["nodes"]
                ]
                assert serious == []
                if name == "index":
                    try_the_picture(page)
            page.goto((site / "index.html").as_uri())  # the entrance
            page.wait_for_url("**/docs/index.html")
            page.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
def test_the_site_is_whole(tmp_path: Path) -> None:
    """One test, so that the tutorials run once."""
    site = build(tmp_path)
    assert broken_links(site) == []
    for tutorial in (ROOT / "docs/tutorials").glob("*.md"):
        page = (site / "docs/tutorials" / f"{tutorial.stem}.html").read_text()
        if tutorial.stem != "index":
            assert "cell_output" in page and "_images/" in page, "it shows what it did"
            assert (site / "docs/tutorials" / f"{tutorial.stem}.ipynb").is_file()
    assert "<math" in (site / "docs/tutorials/negative_eigenvalues.html").read_text()
    assert "Which code computes it" in (site / "docs/reference/ops.html").read_text()
    pytest.importorskip("axe_playwright_python", reason="axe is not installed")
    look(site)


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html">b</a> <a href="#here">here</a> <a href="#there">there</a>'
        '<a href="https://example.org">out</a> <img src="https://example.org/x.png">'
        '<script src="a%20b.js"></script>'
    )
    (tmp_path / "a b.js").touch()
    assert broken_links(tmp_path) == [
        "a.html -> #there: no such place",
        "a.html -> b.html",
        "a.html loads https://example.org/x.png",
    ]


def test_every_tutorial_is_in_the_list() -> None:
    folder = ROOT / "docs/tutorials"
    listed = re.findall(r"\]\((\w+\.md)\)", (folder / "index.md").read_text())
    assert sorted(listed) == sorted(p.name for p in folder.glob("*.md") if p.stem != "index")
