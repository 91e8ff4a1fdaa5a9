"""Every recipe runs, and every run is another."""

from pathlib import Path
from typing import get_args

import pytest

from statetrack import experiments
from statetrack.experiments import EXPERIMENTS, Scale, Version
from statetrack.report.tables import group_runs, row
from statetrack.sweep import run_many
from tests.helpers import mostly_slow


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_scale_runs(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    sweep = run_many(experiment.runs("smoke", "iclr"), tmp_path, workers=0)
    assert [run.error for run in sweep.failed] == []
    for run in sweep.runs:
        assert run.last(experiment.metric) is not None
        assert run.curve()
    table = [row(group) for group in group_runs(sweep.runs)]
    assert len(table) == len(sweep.runs)  # no two runs fall into one cell
    assert all(line.missing == 0 and line.best is not None for line in table)
    assert {line.metric for line in table} == {experiment.metric}


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", mostly_slow(get_args(Scale), fast=["smoke", "quick"]))
def test_all_scales_and_versions_are_distinct_runs(name: str, scale: Scale) -> None:
    for version in get_args(Version):
        runs = EXPERIMENTS[name].runs(scale, version)
        assert len({config.fingerprint for config in runs}) == len(runs)
        if scale == "paper":
            assert all(config.stop_at is None for config in runs)


def test_names_aliases_and_misses() -> None:
    assert experiments.get("figure-1").name == "parity-diagonal"
    assert experiments.get("Table_3").name == "chomsky"
    with pytest.raises(ValueError, match="did you mean 'householders'"):
        experiments.get("housholders")
