"""The results that are kept with the code: pages that say what the archive says."""

import json
import re
from pathlib import Path

import pytest

from statetrack.analysis import RunAudit
from statetrack.experiments.summary import plans, plans_for
from statetrack.report import build, read_remarks, read_runs, render
from statetrack.report.book import make_book
from statetrack.report.cells import KEYS
from statetrack.runs import find, find_runs, read_records
from statetrack.runs.archive import ArchivedRun, archived_runs, numbers_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
REBUILD = "`statetrack report results --markdown docs/results.md` rebuilds it"

pytestmark = pytest.mark.skipif(
    not (RESULTS / "summary.json").exists(), reason="there are no results here"
)


@pytest.fixture(scope="module")
def archived() -> list[ArchivedRun]:
    return archived_runs(RESULTS)


@pytest.mark.slow
def test_the_pages_are_what_the_archive_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    results, page = Path("results"), Path("docs/results.md")
    book = make_book(plans(results), find_runs(results), results, page)
    assert json.loads((results / "summary.json").read_text()) == book.summary, REBUILD
    assert page.read_text() == book.text, REBUILD
    questions = {path.stem: path.read_text() for path in page.with_suffix("").glob("*.md")}
    assert questions == book.pages, REBUILD
    there = {path.stem for path in (page.parent / "images" / page.stem).glob("*.png")}
    assert there == set(book.pictures), REBUILD


@pytest.mark.slow
def test_the_page_of_the_archive_is_small_and_tells_what_is_missing() -> None:
    runs = read_runs([RESULTS])
    report = build(runs, plans_for([RESULTS], runs), remarks=read_remarks([RESULTS]))
    rows = json.loads((RESULTS / "summary.json").read_text())
    cells = [row for row in rows if row["length"] is None and row["operations"] is None]
    assert len(report.entries) == len(cells)
    assert len(report.empty) == sum(row["seeds"] == 0 for row in cells)
    assert all(entry.command for _, entry in report.empty)
    text = render(report, base=ROOT / "docs")
    assert len(runs) >= 200 and len(text.encode()) < 2_000_000
    assert "cannot be read" not in text and "Errno" not in text
    assert f"{len(report.empty)} are empty" in text and "Nothing:" not in text
    assert text.count('<tr id="missing-') == len(report.empty)


def test_every_row_of_the_summary_has_its_record() -> None:
    for row in json.loads((RESULTS / "summary.json").read_text()):
        assert tuple(row) == KEYS
        assert (row["seeds"] == 0) == (row["best"] is None) == (row["record"] is None)
        if row["record"] is not None:
            assert re.fullmatch(
                r"results/([^/]+/records(-[^/]+)?/[0-9a-f]{16}\.jsonl"
                r"|language/(loss|probes)/[0-9a-f]{16}\.json)",
                row["record"],
            )
            assert (ROOT / row["record"]).is_file()


def test_runs_are_named_by_their_config(archived: list[ArchivedRun]) -> None:
    assert len(archived) >= 205 and len(find_runs(RESULTS)) == len(archived)
    for run in archived:
        assert run.fingerprints[0] == run.config.fingerprint


def test_every_former_fingerprint_is_found(archived: list[ArchivedRun]) -> None:
    former = [(name, run) for run in archived for name in run.fingerprints[1:]]
    assert len({name for name, _ in former}) == len(former) == 205
    for name, run in former:
        assert re.fullmatch(r"[0-9a-f]{16}", name)
        assert find(run.file.parent, name).place == run.place
    assert find(RESULTS, "050f5e8638163b2b").fingerprints == (
        "548b76ef77aa6c71",
        "050f5e8638163b2b",
    )


def test_full_records_are_those_of_their_line(archived: list[ArchivedRun]) -> None:
    full = [run for run in archived if run.records_at != run.place]
    kept = [path for path in RESULTS.glob("*/records*/*.jsonl")]
    assert sorted(run.records_at.path for run in full) == sorted(kept)
    for run in full:
        series, lengths = numbers_of(read_records(run.records_at.path))
        assert (series, lengths) == (run.content["series"], run.content["lengths"])


def test_the_records_end_where_the_run_did(archived: list[ArchivedRun]) -> None:
    for run in archived:
        assert max(record.step for record in run.records) == run.content["done"]["step"]


def test_audits_are_read_and_written_byte_for_byte(archived: list[ArchivedRun]) -> None:
    audits = [run.audit for run in archived if run.audit is not None]
    assert len(audits) >= 56
    for found in audits:
        assert json.dumps(RunAudit.from_dict(found).to_dict()) == json.dumps(found)


def test_rows_are_as_wide_as_their_tables() -> None:
    main = ROOT / "docs" / "results.md"
    for page in (main, *sorted(main.with_suffix("").glob("*.md"))):
        widths: set[int] = set()
        for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
            if line.startswith("|"):
                widths.add(len(re.findall(r"(?<!\\)\|", line)))
            else:
                assert len(widths) < 2, f"{page.name} has rows of {widths} bars"
                widths = set()
