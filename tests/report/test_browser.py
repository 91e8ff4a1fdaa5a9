"""The page in a real browser, by what a person does with it: no errors, nothing fetched."""

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from statetrack.experiments.plan import Plan
from statetrack.report import write_report
from statetrack.runs import Record, StoredRun
from statetrack.training import run
from tests.lm import corpus
from tests.report.browser import SECTIONS, SHOTS, screenshot
from tests.report.folders import (
    parity,
    pretraining,
    puzzle_config,
    reports,
    scores,
    write_run,
)
from tests.training import tiny

LOOKS = [
    (1400, "light"),
    (400, "dark"),
    pytest.param(1400, "dark", marks=pytest.mark.slow),
    pytest.param(400, "light", marks=pytest.mark.slow),
]

SIGNED, USUAL = tiny.model(), tiny.model(eigen_range=(0.0, 1.0))
TOY = Plan(
    experiment="toy",
    summary="a toy",
    scale="paper",
    version="ran",
    configs=tuple(
        replace(parity(seed, model=model, task=task), evaluation=parity().evaluation)
        for task in ("parity", "parity_dense")
        for model in (SIGNED, USUAL, tiny.model("Mamba"))
        for seed in (0, 1)
    ),
)
"""Two tasks, three models; of parity two models are run, of the other task none."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained model, which has eigenvalues, one whose numbers are known, and a puzzle."""
    root = tmp_path_factory.mktemp("runs")
    folder = root / "toy-paper-ran"
    runs: list[StoredRun] = [
        run(parity(seed, model=SIGNED, evaluation=parity().evaluation), folder) for seed in (0, 1)
    ]
    runs.append(write_run(folder, parity(0, model=USUAL), scores(0.1, 0.25)))
    rows = [Record(4, "validation", "scaled_accuracy", 0.5)]
    rows += [Record(4, "test", "accuracy", v, t, count=2) for t, v in ((20, 1.0), (50, 0.75))]
    rows += [Record(4, "test", "accuracy", 1 / n, count=5, operations=n) for n in (1, 2, 4)]
    runs.append(write_run(root / "mine", puzzle_config(), rows))
    return write_report(runs, root / "report.html", plans=[TOY]).as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, open at 1400 pixels; the test fails if it logs or asks for anything."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
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


def models(page: Any) -> list[str]:
    """The lines of the table that are shown, in their order."""
    found: list[str] = page.locator("#numbers tbody tr:visible th").all_inner_texts()
    return found


def choose(page: Any, facet: str, value: str) -> None:
    page.click(f'.facet[data-facet="{facet}"] summary')
    page.check(f'.facet input[name="{facet}"][value="{value}"]')
    page.keyboard.press("Escape")


def in_sight(page: Any, selector: str) -> bool:
    """Whether it lies in the window, not above it."""
    box = page.locator(selector).bounding_box()
    return bool(box and box["y"] >= 0 and box["y"] < page.viewport_size["height"])


def test_tabs_show_one_section_at_a_time_and_the_address_remembers(page: Any) -> None:
    assert visible(page) == ["overview"]
    for name in SECTIONS:
        page.click(f"#tab-{name}")
        assert visible(page) == [name]
        assert page.get_attribute(f"#tab-{name}", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    assert visible(page) == ["runs"]
    page.keyboard.press("Home")
    assert visible(page) == ["overview"]
    page.go_back()
    page.wait_for_selector("#runs", state="visible")
    assert visible(page) == ["runs"]
    page.reload()
    assert visible(page) == ["runs"] and in_sight(page, "#tab-runs") and in_sight(page, "h1")


def test_filters_choose_and_their_address_is_a_permalink(
    page: Any, browser: Any, address: str
) -> None:
    page.click("#tab-table")
    assert models(page) == ["DeltaNet [-1, 1]", "DeltaNet [0, 1]", "DeltaNet [-1, 1]"]
    assert page.inner_text("#status") == "7 of 7 cells, 3 with runs"
    choose(page, "range", "[0, 1]")
    assert models(page) == ["DeltaNet [0, 1]"]
    assert page.inner_text("#status") == "2 of 7 cells, 1 with runs"
    page.fill("#q", "toy PARITY")
    link = page.evaluate("location.href")
    assert link == address + "#table?q=toy+PARITY&range=%5B0%2C+1%5D"
    other = browser.new_page(viewport={"width": 400, "height": 800})
    other.goto(link)
    assert models(other) == ["DeltaNet [0, 1]"] and other.input_value("#q") == "toy PARITY"
    assert in_sight(other, "#tab-table")
    other.click("#tab-missing")  # the filter holds everywhere
    assert other.locator("#missing tbody tr:visible").count() == 1
    other.close()
    page.fill("#q", "nothing is called so")
    assert models(page) == [] and page.inner_text("#status") == "0 of 7 cells, 0 with runs"
    page.click("#clear")
    assert len(models(page)) == 3 and page.evaluate("location.hash") == "#table"


def test_headings_sort_and_say_so(page: Any) -> None:
    page.click("#tab-table")
    head = page.locator('#numbers th[data-key="best"]')
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    best = [float(text) for text in page.locator("#numbers td.best").all_inner_texts()]
    assert best == sorted(best, reverse=True) and best[0] == 0.5
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    again = [float(text) for text in page.locator("#numbers td.best").all_inner_texts()]
    assert again == best[::-1]
    page.reload()
    assert head.get_attribute("aria-sort") == "ascending"
    page.click('#numbers th[data-key="spread"] button')  # what has none comes last
    assert page.locator("#numbers tbody tr").first.locator("th").inner_text() == "DeltaNet [-1, 1]"
    assert page.locator("#numbers tbody tr td:nth-child(7)").all_inner_texts()[1:] == ["–", "–"]


def test_cells_tell_and_lead_on(page: Any) -> None:
    empty = page.locator("#overview td.empty:visible").first
    empty.hover()
    command = "statetrack reproduce toy --scale paper --version ran --only"
    assert command in page.inner_text("#tip")
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()
    empty.locator("a").focus()  # the same for the keyboard, and said aloud
    assert command in page.inner_text("#tip") and command in page.inner_text("#said")
    page.keyboard.press("Enter")
    assert visible(page) == ["missing"]
    here = page.locator(".here")
    assert here.count() == 1 and command in here.inner_text()
    assert in_sight(page, ".here") and in_sight(page, "#tab-missing")
    assert page.locator("#missing tr[data-i]").count() == 4  # of six planned cells two are filled
    page.go_back()
    page.click("#overview td.unknown >> text=0.250")
    assert visible(page) == ["table"] and page.locator(".here th").inner_text() == "DeltaNet [0, 1]"
    page.reload()
    assert visible(page) == ["table"] and in_sight(page, ".here")


def test_links_lead_to_the_records(page: Any) -> None:
    page.click("#tab-table")
    page.click("#numbers tr:nth-child(2) td.best a")
    assert page.evaluate("location.pathname").endswith("/records.jsonl")
    assert '"scaled_accuracy", "value": 0.25' in page.inner_text("body")


PANEL = "#lengths .panel"


def middle(page: Any, selector: str) -> tuple[float, float]:
    box = page.locator(selector).first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_pointing_at_a_plot_reads_it(page: Any) -> None:
    page.click("#tab-lengths")
    page.wait_for_selector(f"{PANEL} .curve")
    assert page.locator("#tip").is_hidden()
    page.mouse.move(*middle(page, f"{PANEL} > svg"))
    said = page.inner_text("#tip")
    assert "length 5" in said or "length 6" in said or "length 7" in said
    assert "DeltaNet [0, 1]: 1.000" in said and "DeltaNet [-1, 1]:" in said and "2 seeds" in said
    assert page.locator(f"{PANEL} .spot").count() == 2
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden() and page.locator(f"{PANEL} .spot").count() == 0


def test_curves_lie_where_their_numbers_are(page: Any) -> None:
    """The known model is right up to 7 bits and then guesses: a line at 1, then one at 0."""
    page.click("#tab-lengths")
    page.wait_for_selector(f"{PANEL} .curve")
    heights = page.evaluate(
        """() => {
            const panel = document.querySelector('#lengths .panel');
            const curve = panel.querySelector('.curve[data-i="1"]');
            const points = [...curve.points].map((p) => [p.x, p.y]);
            const texts = [...panel.querySelectorAll('text')];
            const at = (t) => Number(texts.find((n) => n.textContent === t
                && n.getAttribute('text-anchor') === 'end').getAttribute('y')) - 3.5;
            return [points, at('0'), at('1')];
        }"""
    )
    points, zero, one = heights
    assert [y for _, y in points] == pytest.approx([one] * 6 + [zero] * 4, abs=0.1)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_the_keyboard_reads_and_zooms_a_plot(page: Any) -> None:
    page.click("#tab-lengths")
    panel = page.locator(PANEL).first
    page.wait_for_selector(f"{PANEL} .curve")
    panel.focus()
    page.keyboard.press("Home")
    assert page.inner_text("#said").startswith("length 2: ")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#said").startswith("length 3: ")
    assert "DeltaNet [0, 1]: 1.000" in page.inner_text("#said")
    ticks = panel.locator("svg text").all_text_contents()
    page.keyboard.press("+")
    assert panel.locator("svg text").all_text_contents() != ticks
    page.keyboard.press("0")
    assert panel.locator("svg text").all_text_contents() == ticks


def test_dragging_zooms_all_panels_of_a_task(page: Any) -> None:
    page.goto(page.evaluate("location.href").split("#")[0] + "#lengths?panels=range")
    page.wait_for_selector(f"{PANEL} .curve")
    block = page.locator("#lengths figure").first
    assert block.locator(".panel-title").all_inner_texts() == ["[-1, 1]", "[0, 1]"]
    x, y = middle(page, f"{PANEL} > svg")
    before = block.locator("svg text").all_text_contents()
    page.mouse.move(x - 40, y)
    page.mouse.down()
    page.mouse.move(x + 40, y, steps=4)
    assert page.locator(".chosen-part").count() == 1
    page.mouse.up()
    after = block.locator("svg text").all_text_contents()
    half = len(after) // 2
    assert after != before and after[:half] == after[half:]
    block.get_by_role("button", name="Whole range").click()
    assert block.locator("svg text").all_text_contents() == before


def test_the_legend_switches_curves(page: Any) -> None:
    page.click("#tab-lengths")
    page.wait_for_selector(f"{PANEL} .curve")
    block = page.locator("#lengths figure").first
    assert block.locator(".curve").count() == 2
    switch = page.locator("#lengths .legend button", has_text="[0, 1]")
    switch.click()
    assert switch.get_attribute("aria-pressed") == "false"
    page.wait_for_selector(f"{PANEL} .curve")
    assert block.locator(".curve").count() == 1
    assert "off=range%3A%5B0%2C+1%5D" in page.evaluate("location.hash")
    page.reload()
    page.wait_for_selector(f"{PANEL} .curve")
    assert block.locator(".curve").count() == 1
    switch.press("Enter")
    page.wait_for_selector(f"{PANEL} .curve >> nth=1")
    assert block.locator(".curve").count() == 2


def test_a_plot_is_a_table_too(page: Any) -> None:
    page.click("#tab-lengths")
    page.wait_for_selector(f"{PANEL} .curve")
    page.locator("#lengths summary", has_text="Numbers as a table").first.click()
    table = page.locator("#lengths .as-table table").first
    table.wait_for()  # made when the browser says that the element was opened, which is later
    heads = table.locator("thead th").all_inner_texts()
    assert heads == ["tokens read", "DeltaNet [-1, 1]", "DeltaNet [0, 1]"]
    last = table.locator("tbody tr").last.locator("th, td").all_inner_texts()
    assert last[0] == "length 11" and last[2] == "0.000"


def test_operations_and_eigenvalues_are_drawn(page: Any) -> None:
    page.goto(page.evaluate("location.href").split("#")[0] + "#lengths?task=lights_out")
    page.wait_for_selector(f"{PANEL} .curve")
    headings = page.locator("#lengths figure h3").all_inner_texts()
    assert headings[-1] == "lights_out: accuracy against operations"
    assert page.locator("#lengths table.places:visible").count() == 1
    page.goto(page.evaluate("location.href").split("#")[0] + "#spectra")
    page.wait_for_selector("#spectra .dot")
    page.locator("#spectra .panel").first.focus()
    page.keyboard.press("Home")
    assert page.inner_text("#said").startswith("layer 1: ")
    assert page.inner_text("#said").endswith("% of the eigenvalues")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_section_fits_and_is_not_blank(page: Any, width: int, scheme: str) -> None:
    import numpy as np
    from PIL import Image

    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for name in SECTIONS:
        page.click(f"#tab-{name}")
        if name in ("lengths", "learning", "spectra"):
            page.wait_for_selector(f"#{name} .curve, #{name} .dot")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        picture = np.asarray(Image.open(BytesIO(page.screenshot())).convert("L"))
        assert picture.shape == (900, width)
        assert (np.median(picture) > 128) == (scheme == "light")
        below = picture[int(page.locator(f"#{name}").bounding_box()["y"]) :]
        assert below.std() > 3 and len(np.unique(below)) > 20, name


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_axe_finds_nothing(page: Any, width: int, scheme: str) -> None:
    """Neither serious nor lesser: names, contrast, headings, tables, keyboard."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for name in SECTIONS:
        page.click(f"#tab-{name}")
        if name in ("lengths", "learning", "spectra"):
            page.wait_for_selector(f"#{name} .curve, #{name} .dot")
        if name == "runs":
            page.locator("#runs summary").first.click()
        found = axe.run(page).response["violations"]
        said = [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]
        assert said == [], name


def test_print_shows_every_section_as_it_is_filtered(page: Any) -> None:
    page.fill("#q", "lights_out")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visible(page) == SECTIONS
    assert page.locator("#bar").is_hidden() and page.locator(".legend:visible").count() == 0
    assert page.inner_text("#filtered") == "Shown: “lights_out”."
    titles = page.locator("figure.block:visible h3").all_inner_texts()
    assert titles and all(title.startswith("lights_out: ") for title in titles)
    assert page.locator("#learning .curve").count() == 1
    assert page.pdf().startswith(b"%PDF")


def test_without_script_the_tables_are_there(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert visible(page) == SECTIONS
    assert page.locator("#numbers tbody tr").count() == 3
    assert "The plots need JavaScript" in page.inner_text("#lengths noscript")
    context.close()


def test_a_long_name_stays_in_its_column_on_a_phone(browser: Any, tmp_path: Path) -> None:
    long = replace(pretraining(), model=corpus.model("CappedGatedDeltaNet", num_heads=2))
    runs = [write_run(tmp_path / "runs", long, reports(2.0))]
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(write_report(runs, tmp_path / "report.html").as_uri())
    wide, room = page.evaluate(
        "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])"
        "(document.querySelector('#pretrained tbody th'))"
    )
    assert wide <= room
    page.close()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_language_models_have_a_section(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    """It is read, searched and found without fault by axe; nothing is logged."""
    runs = [
        write_run(tmp_path / "runs", pretraining(seed, low=low), reports(2.0 + seed - low))
        for seed in (0, 1)
        for low in (-1.0, 0.0)
    ]
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(write_report(runs, tmp_path / "report.html").as_uri())
    assert visible(page) == [] and page.locator("#pretraining").is_visible()
    assert page.locator('[role="tab"]').all_inner_texts() == ["Pretraining", "Runs"]
    page.wait_for_selector("#pretraining .curve")
    titles = page.locator("figure.block h3").all_inner_texts()
    assert titles[:3] == ["shards: " + name for name in (
        "training loss", "training loss, code", "validation loss"
    )]  # fmt: skip
    page.locator("#pretraining .panel").first.focus()
    page.keyboard.press("End")
    assert "step 8" in page.inner_text("#said")
    assert "DeltaNet [0, 1]: 2.500 (2.000 to 3.000, 2 seeds)" in page.inner_text("#said")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    page.keyboard.press("Escape")  # the tip goes
    found = axe.run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    page.fill("#q", "[0,")
    assert page.locator("#pretrained tbody tr:visible").count() == 2
    assert page.inner_text("#status") == "1 of 2 cells, 1 with runs"
    page.click("#tab-runs")
    assert page.locator("#runs details:visible").count() == 1
    page.close()
    assert said == []


@pytest.mark.parametrize("name", SHOTS)
def test_screenshots_of_the_docs_can_be_made(
    browser: Any, address: str, name: str, tmp_path: Path
) -> None:
    from PIL import Image

    width, scheme, place = SHOTS[name]
    own = address + place.partition("?")[0]
    screenshot(browser, own, width, scheme, tmp_path / "shot.png")
    shown = Path(__file__).parents[2] / "docs" / "images" / f"{name}.png"
    for path in (tmp_path / "shot.png", shown):
        with Image.open(path) as picture:
            assert picture.size == (width, 860)
