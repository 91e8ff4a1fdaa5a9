"""Runs and their numbers as data frames of pandas or polars."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from statetrack._extras import needs
from statetrack.runs.records import Record

if TYPE_CHECKING:
    from statetrack.runs.stored import StoredRun

__all__ = ["Library", "records_frame", "runs_frame"]

Library = Literal["pandas", "polars"]
FIELDS = tuple(field.name for field in dataclasses.fields(Record))


def records_frame(records: Iterable[Record], library: Library = "pandas") -> Any:
    """A row for each record; the columns are the fields of `Record`.

    >>> frame = records_frame([Record(10, "train", "loss", 0.7), Record(10, "test", "loss", 0.6)])
    >>> frame[frame.split == "test"].value.item()
    0.6
    """
    rows = list(records)
    return _frame({name: [getattr(row, name) for row in rows] for name in FIELDS}, library)


def runs_frame(runs: "Iterable[StoredRun]", library: Library = "pandas") -> Any:
    """A row for each run: who it is, how it ended, its last numbers over all lengths, its config.

    Numbers are columns like `validation.accuracy`, settings like `config.optimizer.lr`. What a run
    does not have is missing in its row. A setting that is a list is its JSON.
    """
    rows = [_row(run) for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    return _frame({name: [row.get(name) for row in rows] for name in names}, library)


def _row(run: "StoredRun") -> dict[str, Any]:
    info = run.info
    row = {
        "fingerprint": run.config.fingerprint,
        "place": str(run.place),
        "finished": run.finished,
        "device": info.get("device"),
        "wall_s": info.get("wall_s"),
    }
    for record in run.records:  # the last one counts
        if record.overall:
            row[f"{record.split}.{record.metric}"] = record.value
    return row | _flat(run.config.to_dict(), "config")


def _flat(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """
    >>> _flat({"steps": 3, "optimizer": {"lr": 0.1}, "lengths": [3, 40]}, "config")
    {'config.steps': 3, 'config.optimizer.lr': 0.1, 'config.lengths': '[3, 40]'}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}.{name}"
        if isinstance(value, Mapping):
            found |= _flat(value, path)
        else:
            found[path] = json.dumps(value) if isinstance(value, list | tuple) else value
    return found


def _frame(columns: dict[str, list[Any]], library: Library) -> Any:
    if library not in get_args(Library):
        raise ValueError(f"library={library!r} must be pandas or polars")
    with needs("a data frame", library, library):
        module = import_module(library)
    return module.DataFrame(columns)
