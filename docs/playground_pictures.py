"""Takes the playground's pictures for the documentation, in Chromium.

.venv/bin/python docs/playground_pictures.py

Needs `pip install 'statetrack[cli,automata,browser]'` and a Chromium. The tests take the same
pictures.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from statetrack.playground import write_page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
NAMES = ("chromium", "chromium-browser", "google-chrome")

SCENES: dict[str, dict[str, Any]] = {
    "playground-desktop.png": {
        "hash": "#m=z7&k=rotation&w=1111111326&t=3",
        "width": 1400,
        "height": 1270,
        "scheme": "light",
    },
    "playground-parity.png": {
        "hash": "#m=parity&k=group&w=1101110110111011&t=9&low=-0.6",
        "width": 1400,
        "height": 860,
        "scheme": "light",
        "at": "#dock",
    },
    "playground-phone.png": {
        "hash": "#m=s3&w=12351422&t=3",
        "width": 400,
        "height": 900,
        "scheme": "dark",
        "at": "#dock",
    },
}
"""What each picture shows: the address, the window, light or dark, and what is scrolled to."""


def shoot(browser: Any, page: Path, folder: Path) -> list[Path]:
    """Every scene of the page, into a folder."""
    taken = []
    for name, scene in SCENES.items():
        context = browser.new_context(
            viewport={"width": scene["width"], "height": scene["height"]},
            color_scheme=scene["scheme"],
            reduced_motion="reduce",
        )
        shown = context.new_page()
        shown.goto(page.as_uri() + scene["hash"])
        if "at" in scene:
            shown.locator(scene["at"]).evaluate("node => node.scrollIntoView()")
        shown.screenshot(path=folder / name)
        taken.append(folder / name)
        context.close()
    return taken


def main() -> None:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        sys.exit("there is no Chromium on this machine")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = started.chromium.launch(executable_path=found, args=flags)
        for picture in shoot(browser, write_page(folder), IMAGES):
            print(f"written to {picture.relative_to(ROOT)}")
        browser.close()


if __name__ == "__main__":
    main()
