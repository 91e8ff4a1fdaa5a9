"""Archives: the finished runs of an experiment as lines of one file, and best runs in full.

ROOT/chomsky-quick/
    runs.jsonl                      one line a run: all that a table, a page and its curves need
    records/3f2a....jsonl           all records of a run that was the best of its cell
    runs-2026-11-20.jsonl           retests, by their day; of several lines the newest counts
    records-2026-11-20/3f2a....jsonl

A line is a JSON object:

    {"fingerprint": "3f2a...",      of the config
     "former": [...],               fingerprints the run had under earlier schemas
     "config": {...},               config.json
     "info": {...},                 run.json
     "done": {...},                 DONE
     "audit": {...},                audit.json, or null
     "series": [columns, ...],      numbers over all lengths, step by step; neither lr nor grad_norm
     "lengths": [columns, ...]}     numbers by length or operations, of the last step that has any

Columns are the records of one split and metric: {"split": "train", "metric": "loss", "step":
[...], "value": [...]}, and `length`, `length_min`, `count` and `operations` where the records have
them. What is the same in all of them stands once instead of in a list; `value` is always a list.

Lines are only ever added. A run that is there already is refused, unless its line would be the
same; a retest goes to the file of its own day.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, final

from torch import Tensor

from statetrack.runs.files import exclusive, read_json, write_atomically
from statetrack.runs.folder import CONFIG, DONE, RECORDS, Run, config_of
from statetrack.runs.records import Record, checked
from statetrack.runs.selection import best_run, cell
from statetrack.runs.stored import Place, StoredRun
from statetrack.runs.verify import damaged_numbers

__all__ = ["ArchivedRun", "archived_runs", "line_of", "numbers_of", "store"]

RUNS, FULL = "runs", "records"
KEYS = ("fingerprint", "former", "config", "info", "done", "audit", "series", "lengths")
COLUMNS = ("step", "length", "length_min", "count", "operations", "domain")
LEFT_OUT = ("lr", "grad_norm")


@final
@dataclass(frozen=True, eq=False)
class ArchivedRun(StoredRun):
    """Line `line` of `file`, the first being 1; what it says is looked at on demand."""

    file: Path
    line: int
    content: Mapping[str, Any] = field(repr=False)

    @property
    def place(self) -> Place:
        return Place(self.file, self.line)

    @property
    def name(self) -> str:
        return str(self.place)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return (self.content["fingerprint"], *self.content["former"])

    @cached_property
    def config(self) -> Any:
        config = config_of(self.content["config"], self.place)
        if config.fingerprint != self.content["fingerprint"]:
            raise ValueError(
                f"{self.place} is damaged: it says fingerprint {self.content['fingerprint']}, but "
                f"its config has {config.fingerprint}"
            )
        return config

    @cached_property
    def records(self) -> list[Record]:
        try:
            tables = [*self.content["series"], *self.content["lengths"]]
            return [record for columns in tables for record in records_in(columns)]
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{self.place} is damaged: its records are none: {error}") from None

    @property
    def records_at(self) -> Place:
        full = _full(self.file, self.content["fingerprint"])
        return Place(full) if full.exists() else self.place

    @property
    def info(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.content["info"]
        return found

    @property
    def finished(self) -> bool:
        return True

    @property
    def error(self) -> None:
        return None

    @property
    def audit(self) -> Any:
        return self.content["audit"]

    @property
    def audit_at(self) -> Place:
        return self.place

    @property
    def has_weights(self) -> bool:
        return False

    def weights(self) -> dict[str, Tensor]:
        raise ValueError(f"{self.place} has no weights: an archive keeps numbers alone")


# -- reading ------------------------------------------------------------------------------------


def archived_runs(root: Path | str) -> list[ArchivedRun]:
    """The runs of all archives in `root` and below, folder by folder, in the order of their lines.

    Of a run that was tested again there is the newest line alone.
    """
    patterns = (f"{RUNS}.jsonl", f"{RUNS}-*.jsonl")
    folders = {path.parent for pattern in patterns for path in Path(root).rglob(pattern)}
    return [run for folder in sorted(folders) for run in _newest(folder).values()]


def _newest(folder: Path) -> dict[str, ArchivedRun]:
    """Fingerprint -> run, from all files of one archive."""
    found: dict[str, ArchivedRun] = {}
    for path in (folder / f"{RUNS}.jsonl", *sorted(folder.glob(f"{RUNS}-*.jsonl"))):
        found |= _read(path)
    return found


def _read(path: Path) -> dict[str, ArchivedRun]:
    """Fingerprint -> run, from one file or none."""
    found: dict[str, ArchivedRun] = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        run = ArchivedRun(path, number, _parse(line, Place(path, number)))
        if found.setdefault(run.content["fingerprint"], run) is not run:
            raise ValueError(f"{run.place} is damaged: its run is in a line before, too")
    return found


def _parse(line: bytes, place: Place) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is damaged: {error}") from None
    if not isinstance(content, dict) or tuple(content) != KEYS:
        raise ValueError(f"{place} is damaged: a run has the keys {', '.join(KEYS)}")
    return content


def records_in(columns: Mapping[str, Any]) -> list[Record]:
    """The records that `columns` hold; the inverse of `columns_of`."""
    count = len(columns["value"])
    lists = [
        column if isinstance(column, list) else [column] * count for column in columns.values()
    ]
    rows = zip(*lists, strict=True)
    return [checked(Record(**dict(zip(columns, row, strict=True)))) for row in rows]


# -- writing ------------------------------------------------------------------------------------


def store(runs: Sequence[Run], folder: Path, *, retest: date | None = None) -> list[str]:
    """Adds finished runs to the archive in `folder`; the fingerprints of those that are new to it.

    Of runs that are the best of their cell, among those given and those in the archive, all records
    are kept. Nothing is written if one has not finished, is damaged, or is in the archive with
    other content. With the day of a `retest` the runs go to its own file.
    """
    for run in runs:
        if not run.finished:
            raise ValueError(f"{run.folder} has not finished, and an archive takes finished runs")
        if found := damaged_numbers(run):  # weights are not kept, and may be gone
            raise ValueError(f"{run.folder} is damaged: {'; '.join(found)}")
    path = folder / (f"{RUNS}.jsonl" if retest is None else f"{RUNS}-{retest.isoformat()}.jsonl")
    given = {run.config.fingerprint: run for run in runs}
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(path):
        newest = _newest(folder)
        there = newest if retest is None else _read(path)
        lines = {name: line_of(run) for name, run in given.items()}
        new = {name: line for name, line in lines.items() if name not in there}
        for name in given.keys() & there.keys():
            if _text(lines[name]) != _text(there[name].content):
                raise ValueError(
                    f"{there[name].place} has the run of {given[name].folder} with other content, "
                    "and a line is never replaced; add it as a retest (--retest)"
                )
        full = {}
        for name in _best({**newest, **given}) & given.keys():
            full[_full(path if name in new else there[name].file, name)] = given[name]
        contents = {to: (run.folder / RECORDS).read_bytes() for to, run in full.items()}
        for to, content in contents.items():
            if to.exists() and to.read_bytes() != content:
                raise ValueError(f"{to} has other records than {full[to].folder}")
        for to, content in contents.items():
            to.parent.mkdir(exist_ok=True)
            write_atomically(to, content)
        if new:
            added = "".join(f"{_text(line)}\n" for line in new.values())
            write_atomically(path, path.read_bytes() + added.encode())
    return list(new)


def line_of(run: Run) -> dict[str, Any]:
    """What an archive says of a finished run; one of this schema has no former fingerprint."""
    values: tuple[Any, ...] = (
        run.config.fingerprint,
        [],
        read_json(run.folder / CONFIG),
        run.info,
        read_json(run.folder / DONE),
        run.audit,
        *numbers_of(run.records),
    )
    return dict(zip(KEYS, values, strict=True))


def numbers_of(records: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Those over all lengths, and the last of those by length or operations."""
    series: dict[tuple[Any, ...], list[Record]] = {}
    lengths: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        kind = series if record.overall else lengths
        if record.metric not in LEFT_OUT:
            key = (record.split, record.metric, record.operations is None, record.domain)
            kind.setdefault(key, []).append(record)
    last = [_last(rows) for rows in lengths.values()]
    return [columns_of(rows) for rows in series.values()], [columns_of(rows) for rows in last]


def _last(rows: Sequence[Record]) -> list[Record]:
    step = max(row.step for row in rows)
    return [row for row in rows if row.step == step]


def columns_of(rows: Sequence[Record]) -> dict[str, Any]:
    """Records of one split and metric, column by column.

    >>> columns_of([Record(step, "train", "loss", 1 / step) for step in (2, 4)])
    {'split': 'train', 'metric': 'loss', 'step': [2, 4], 'value': [0.5, 0.25]}
    """
    columns: dict[str, Any] = {"split": rows[0].split, "metric": rows[0].metric}
    for name in COLUMNS:
        column = [getattr(row, name) for row in rows]
        if any(value != column[0] for value in column):
            columns[name] = column
        elif column[0] is not None:
            columns[name] = column[0]
    return columns | {"value": [row.value for row in rows]}


def _best(runs: Mapping[str, StoredRun]) -> set[str]:
    """The fingerprints of the best runs of all cells."""
    cells: dict[str, list[StoredRun]] = {}
    for run in runs.values():
        cells.setdefault(cell(run.config), []).append(run)
    found = [best_run(members, members[0].config.metric) for members in cells.values()]
    return {run.config.fingerprint for run in found if run is not None}


def _full(file: Path, fingerprint: str) -> Path:
    """Where all records of a run go whose line is in `file`."""
    return file.with_name(FULL + file.stem.removeprefix(RUNS)) / f"{fingerprint}.jsonl"


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"), allow_nan=False)
