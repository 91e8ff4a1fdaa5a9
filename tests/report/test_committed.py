"""The results that are kept with the code: pages that say what the records say."""

import json
import re
from pathlib import Path

import pytest

from statetrack.experiments.summary import plans
from statetrack.report.book import make_book
from statetrack.report.cells import KEYS
from statetrack.runs import find_runs

ROOT = Path(__file__).parents[2]
REBUILD = (
    "`statetrack report results --out docs/results.html --markdown docs/results.md` rebuilds it"
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "results" / "summary.json").exists(), reason="there are no results here"
)


def test_the_pages_are_what_the_records_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    results, page = Path("results"), Path("docs/results.md")
    every = plans(results)
    runs = {plan.folder: find_runs(results / plan.folder) for plan in every}
    book = make_book(every, runs, results, page)
    assert json.loads((results / "summary.json").read_text()) == book.summary, REBUILD
    assert page.read_text() == book.text, REBUILD
    there = {path.stem for path in (page.parent / "images" / page.stem).glob("*.png")}
    assert there == set(book.pictures), REBUILD


def test_every_row_of_the_summary_has_its_record() -> None:
    for row in json.loads((ROOT / "results" / "summary.json").read_text()):
        assert tuple(row) == KEYS
        assert (row["seeds"] == 0) == (row["best"] is None) == (row["record"] is None)
        if row["record"] is not None:
            assert (ROOT / row["record"]).is_file()


def test_run_folders_are_named_by_their_config() -> None:
    for run in find_runs(ROOT / "results"):
        assert run.folder.name == run.config.fingerprint
        assert re.fullmatch(r"[0-9a-f]{16}", run.folder.name)
