"""Runs are found wherever they lie, by the fingerprints they have and had."""

import json
from pathlib import Path

import pytest

from statetrack.runs import find, find_runs
from statetrack.runs.archive import store
from tests.report.folders import parity, scores, write_run


def test_archives_and_folders_are_found(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "runs", parity(seed), scores(0.5)) for seed in (0, 1)]
    store(runs[:1], tmp_path / "kept" / "toy-quick")
    found = find_runs(tmp_path)
    assert [run.place.path.name for run in found] == [
        "runs.jsonl",
        *sorted(run.config.fingerprint for run in runs),
    ]
    assert find_runs(tmp_path / "nothing") == []


def test_old_fingerprints_are_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", parity(), scores(0.5))
    fingerprint = run.config.fingerprint
    assert find(tmp_path / "runs", fingerprint) == run
    store([run], tmp_path / "kept")
    path = tmp_path / "kept" / "runs.jsonl"
    line = json.loads(path.read_text()) | {"former": ["050f5e8638163b2b"]}
    path.write_text(json.dumps(line) + "\n")
    for name in (fingerprint, "050f5e8638163b2b"):
        assert find(tmp_path / "kept", name).config == run.config
    with pytest.raises(ValueError, match="has, or ever had, the fingerprint 050f5e86"):
        find(tmp_path / "runs", "050f5e8638163b2b")
