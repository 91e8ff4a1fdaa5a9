"""A run's folder as it is read."""

from pathlib import Path

import pytest
import torch

from statetrack.runs import Record, Run
from statetrack.runs.folder import run_folders
from statetrack.runs.records import JsonLines
from tests.runs.folders import Config, finished, rows, tensors


def test_a_missing_number_is_missing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.last("accuracy") is None and run.curve() == {}
    assert run.info == {} and run.error is None and not run.finished


def test_the_last_value_and_the_curve_of_the_last_step(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "records.jsonl")
    for step in (2, 4):
        lines.write([Record(step, "validation", "accuracy", step / 10)])
        lines.write([Record(step, "test", "accuracy", step / 10 + n, length=n) for n in (1, 2)])
    lines.close()
    assert Run(tmp_path).last("accuracy") == 0.4
    assert Run(tmp_path).curve() == {1: 1.4, 2: 2.4}
    assert Run(tmp_path).curve("loss") == {}


def test_what_a_finished_run_says(tmp_path: Path) -> None:
    run = finished(tmp_path)
    assert run.finished and run.records == rows(10) and run.info["device"] == "cpu"
    assert torch.equal(run.weights()["weight"], tensors(10)["weight"])


@pytest.mark.parametrize(
    "name, read",
    [
        ("config.json", lambda run: run.config),
        ("run.json", lambda run: run.info),
        ("records.jsonl", lambda run: run.records),
        ("model.safetensors", lambda run: run.weights()),
    ],
)
def test_errors_name_the_file(name: str, read: object, tmp_path: Path) -> None:
    run = finished(tmp_path)
    (run.folder / name).write_bytes(b"[1]\n")
    with pytest.raises(ValueError) as caught:
        read(Run(run.folder))  # type: ignore[operator]
    assert str(caught.value).startswith(str(run.folder / name))


def test_run_folders(tmp_path: Path) -> None:
    below = [finished(tmp_path / "below", Config(seed=seed)) for seed in (2, 0)]
    top = finished(tmp_path, Config(seed=1))
    (tmp_path / "else").mkdir()
    found = run_folders(tmp_path)
    assert sorted(found, key=lambda run: run.folder) == found
    assert set(found) == {*below, top}
    assert {run.config.seed for run in found} == {0, 1, 2}
