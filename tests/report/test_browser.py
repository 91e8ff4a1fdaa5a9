"""The page in a real browser: no errors, tabs, hover, narrow screens, print, not blank."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from statetrack.report import read_runs, write_report
from statetrack.training import run
from tests.training import tiny

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECTIONS = ["table", "lengths", "learning", "spectra", "configs", "missing"]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("runs")
    for config in (
        tiny.config(),
        tiny.config(seed=1, data_seed=1),
        tiny.config(model=tiny.model(eigen_range=(0.0, 1.0))),
    ):
        run(config, root)
    return write_report(read_runs([root]), root / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, open at 1200 pixels; the test fails if it logs or asks for anything."""
    opened = browser.new_page(viewport={"width": 1200, "height": 800})
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    yield opened
    opened.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def visible(page: Any) -> list[str]:
    return [name for name in SECTIONS if page.locator(f"#{name}").is_visible()]


def test_tabs_show_one_section_at_a_time(page: Any) -> None:
    assert visible(page) == ["table"]
    for name in SECTIONS:
        page.click(f"#tab-{name}")
        assert visible(page) == [name]
        assert page.get_attribute(f"#tab-{name}", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    assert visible(page) == ["configs"]
    page.reload()  # the address remembers the last click
    assert visible(page) == ["missing"]


def test_pointing_at_a_curve_says_its_value(page: Any) -> None:
    page.click("#tab-lengths")
    assert page.locator("#tip").is_hidden()
    spot = page.locator("#lengths .hit").last
    box = spot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2 + 1)
    assert page.locator("#tip").is_visible()
    assert spot.get_attribute("aria-label") in page.locator("#tip").inner_text().splitlines()
    assert page.locator(".hit.on").count() == 1
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden() and page.locator(".hit.on").count() == 0


def test_spots_lie_on_their_curves(page: Any) -> None:
    """The last spot of a curve is where matplotlib ended the line."""
    page.click("#tab-learning")
    away = page.evaluate(
        """() => {
            const svg = document.querySelector('#learning figure svg');
            const spots = [...svg.querySelectorAll('.hit')];
            const colour = spots[0].getAttribute('fill').toLowerCase();
            const mine = spots.filter((s) => s.getAttribute('fill').toLowerCase() === colour);
            const line = [...svg.querySelectorAll('path')].find((p) =>
                (p.getAttribute('style') || '').toLowerCase().includes('stroke: ' + colour));
            const length = line.getTotalLength();
            return [[mine[0], 0], [mine[mine.length - 1], length]].map(([spot, at]) => {
                const end = line.getPointAtLength(at);
                const dx = spot.getAttribute('cx') - end.x;
                return Math.hypot(dx, spot.getAttribute('cy') - end.y);
            });
        }"""
    )
    assert max(away) < 0.5


@pytest.mark.parametrize("width", [1200, 390])
def test_every_section_fits_and_is_not_blank(page: Any, width: int) -> None:
    from io import BytesIO

    import numpy as np
    from PIL import Image

    page.set_viewport_size({"width": width, "height": 800})
    for name in ("table", "lengths", "learning", "spectra", "configs"):
        page.click(f"#tab-{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        picture = np.asarray(Image.open(BytesIO(page.screenshot())).convert("L"))
        assert picture.shape == (800, width)
        below = picture[150:]  # under the heading
        assert below.std() > 3 and len(np.unique(below)) > 20
    for box in page.locator("#spectra figure svg text").all()[:5]:
        assert box.evaluate("node => node.ownerSVGElement.viewBox.baseVal.width") < 400


def test_print_shows_every_section_and_config(page: Any) -> None:
    assert page.locator("#configs pre").first.is_hidden()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visible(page) == SECTIONS
    assert page.locator("#configs pre").first.is_visible()
    assert page.locator("nav").is_hidden()
    assert page.pdf().startswith(b"%PDF")
