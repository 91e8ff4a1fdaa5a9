"""Pages in a real Chromium, for tests and for the screenshots of the docs.

The screenshots of docs/guide/report.md, from the committed results:

    python -m tests.report.browser docs/images
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.chromium import chromium

SECTIONS = ["overview", "table", "lengths", "learning", "spectra", "runs", "missing"]

SHOTS = {
    "report-overview": (1400, "light", "#overview?experiment=chomsky"),
    "report-lengths": (1400, "dark", "#lengths?experiment=chomsky&task=parity"),
    "report-pretraining": (1400, "light", "#pretraining?q=0.02&model=DeltaNet"),
    "report-phone": (400, "light", "#spectra?experiment=chomsky&task=parity&range=[-1, 1]"),
}
"""Name -> width, colour scheme and address."""


def screenshot(browser: Any, address: str, width: int, scheme: str, path: Path) -> None:
    page = browser.new_page(viewport={"width": width, "height": 860}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_function("document.documentElement.classList.contains('js')")
    if page.locator("section.shown .plots").count():
        page.wait_for_selector("section.shown .plots .curve, section.shown .plots .dot")
    page.screenshot(path=path)
    page.close()


def main(folder: Path) -> None:
    from statetrack.experiments.summary import plans_for
    from statetrack.report import read_remarks, read_runs, write_report

    results = [Path("results")]
    runs = read_runs(results)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        page = Path(scratch) / "report.html"
        write_report(runs, page, plans=plans_for(results, runs), remarks=read_remarks(results))
        for name, (width, scheme, place) in SHOTS.items():
            screenshot(browser, page.as_uri() + place, width, scheme, folder / f"{name}.png")
            print(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
