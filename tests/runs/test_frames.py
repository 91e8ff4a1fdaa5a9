"""Runs and records as data frames."""

import sys
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Record, frames, records_frame, runs_frame
from statetrack.sweep.many import Sweep
from statetrack.training import run
from tests.helpers import unhooked
from tests.training import tiny


def test_records(tmp_path: Path) -> None:
    finished = run(tiny.config(), tmp_path)
    pandas, polars = finished.to_frame(), finished.to_frame("polars")
    assert len(pandas) == len(polars) == len(finished.records)
    chosen = pandas[(pandas.split == "validation") & (pandas.metric == "accuracy")]
    overall = chosen[chosen.length.isna()]
    assert overall.value.iloc[-1] == finished.last("accuracy")
    rows = polars.filter(polars["split"] == "test", polars["metric"] == "accuracy")
    curve = {row["length"]: row["value"] for row in rows.iter_rows(named=True) if row["length"]}
    assert curve == finished.curve()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_runs(library: Any, tmp_path: Path) -> None:
    configs = [tiny.config(), tiny.config(seed=1, lengths=(3, 6))]
    sweep = Sweep([run(config, tmp_path) for config in configs])
    frame = sweep.to_frame(library)
    assert list(frame["fingerprint"]) == [config.fingerprint for config in configs]
    assert list(frame["config.seed"]) == [0, 1]
    assert list(frame["config.lengths"]) == ["[3, 8]", "[3, 6]"]
    assert list(frame["config.optimizer.lr"]) == [1e-3, 1e-3]
    assert list(frame["validation.accuracy"]) == [one.last("accuracy") for one in sweep.runs]
    assert list(frame["finished"]) == [True, True]


def test_nothing_is_a_frame_too() -> None:
    assert list(records_frame([]).columns) == list(Record.__slots__)
    assert len(runs_frame([])) == 0


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"polars: pip install 'statetrack\[polars\]'"):
        records_frame([], "polars")
    with pytest.raises(ValueError, match="library='arrow' must be pandas or polars"):
        unhooked(frames._frame)({}, "arrow")
