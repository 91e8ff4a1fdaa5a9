"""The report's input and output: runs, the page, and its plots as files of their own."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from statetrack.analysis import read_audit
from statetrack.analysis.exact_file import exact_files
from statetrack.experiments.plan import Plan
from statetrack.report import figures
from statetrack.report.book import make_book, remarks_in
from statetrack.report.exact import ExactRow, exact_rows
from statetrack.report.page import build, pictures, render
from statetrack.runs import Run, StoredRun
from statetrack.runs.archive import archived_runs
from statetrack.runs.files import write_atomically
from statetrack.runs.folder import run_folders
from statetrack.runs.stored import Place
from statetrack.runs.verify import damaged_numbers, damaged_weights
from statetrack.runs.warn import warn

__all__ = ["read_exact", "read_remarks", "read_runs", "write_book", "write_report"]

SUMMARY = "summary.json"


def read_runs(paths: Iterable[Path | str]) -> list[StoredRun]:
    """The runs in `paths` and below, each once and known to be readable.

    A `ValueError` names the first path that is not there, has no runs, or has one that is broken.
    """
    archived: dict[Place, StoredRun] = {}
    folders: dict[Place, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"{path} is no folder; give run folders, or folders that hold some")
        lines, here = archived_runs(path), run_folders(path)
        if not lines and not here:
            raise ValueError(
                f"there are no runs in {path}: nothing in it has a config.json or a runs.jsonl"
            )
        archived = {_resolved(run): run for run in lines} | archived
        folders = {_resolved(run): run for run in here} | folders
    found = [*archived.values(), *folders.values()]
    for run in found:
        _check_content(run)
    for folder in folders.values():
        _check_files(folder)
    return found


def read_remarks(paths: Iterable[Path | str]) -> dict[str, str]:
    """What is written by hand about cells, in the remarks.json of each of `paths` that has one."""
    found: dict[str, str] = {}
    for path in paths:
        found |= remarks_in(Path(path))
    return found


def read_exact(paths: Iterable[Path | str]) -> list[ExactRow]:
    """What `statetrack exact` found in `paths` and below, each run once."""
    return exact_rows(file for path in paths for file in exact_files(path))


def _resolved(run: StoredRun) -> Place:
    return replace(run.place, path=run.place.path.resolve())


def _check_content(run: StoredRun) -> None:
    """Reads what the report will read, so that a broken run is named before any work."""
    readers = {
        "config.json": lambda: run.config,
        "records.jsonl": lambda: sum(record.value for record in run.records),
        "run.json": lambda: run.info.get("wall_s"),
        "error.txt": lambda: run.error,
    }
    for name, read in readers.items():
        try:
            read()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{run.place} is broken: {name} cannot be read ({reason})") from error
    read_audit(run)


def _check_files(run: Run) -> None:
    """Refuses numbers that have changed since the run finished.

    Of weights that have, or are gone, a line is printed: the numbers are whole without them.
    """
    damaged = damaged_numbers(run)
    if damaged:
        raise ValueError(f"{run.folder} is broken: {'; '.join(damaged)}")
    for line in damaged_weights(run):
        warn(line)


def write_report(
    runs: Sequence[StoredRun],
    out: Path | str,
    *,
    plans: Sequence[Plan] = (),
    remarks: Mapping[str, str] | None = None,
    exact: Sequence[ExactRow] = (),
    plots: bool = False,
) -> Path:
    """Writes the page to `out`; with `plots`, PNG and SVG files to the folder `<out>_plots` too.

    What `plans` list and was not run is on the page as empty cells; `remarks` and `exact` as in
    `build`.
    """
    out = Path(out)
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give the name of a file, as in {out / 'report.html'}")
    report = build(runs, plans, remarks=remarks, exact=exact)
    page = render(report, base=out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode())
    if plots:
        folder = out.with_name(f"{out.stem}_plots")
        folder.mkdir(exist_ok=True)
        for picture in pictures(report):
            svg = figures.to_svg(picture)
            write_atomically(folder / f"{picture.name}.svg", svg.encode())
            write_atomically(folder / f"{picture.name}.png", figures.to_png(picture))
    return out


def write_book(
    plans: Sequence[Plan], runs: Sequence[StoredRun], root: Path | str, page: Path | str
) -> list[Path]:
    """Writes the results page about `runs` in `root`, its pictures beside it, and a summary.json.

    Pictures go to images/<name of the page>/, where they replace those of the page before. A page
    for each question goes to the folder <name of the page>/. What was written is returned, the page
    first.
    """
    root, page = Path(root), Path(page)
    book = make_book(plans, runs, root, page)
    folder = page.parent / "images" / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    kept = {folder / f"{name}.png": picture for name, picture in book.pictures.items()}
    for path, picture in kept.items():
        write_atomically(path, figures.to_png(picture))
    for path in set(folder.glob("*.png")) - kept.keys():
        path.unlink()
    write_atomically(page, book.text.encode())
    questions = {page.with_suffix("") / f"{name}.md": text for name, text in book.pages.items()}
    page.with_suffix("").mkdir(exist_ok=True)
    for path, text in questions.items():
        write_atomically(path, text.encode())
    rows = ",\n ".join(json.dumps(row, allow_nan=False) for row in book.summary)
    write_atomically(root / SUMMARY, f"[\n {rows}\n]\n".encode())
    return [page, root / SUMMARY, *questions, *kept]
