"""Pretraining on the page: lines and curves are what the records say."""

import json
from pathlib import Path

import pytest

from statetrack.report import read_runs, write_report
from statetrack.report.page import build, data, pictures, render
from statetrack.report.pretraining import Pretrained, pretrained
from statetrack.runs import Run
from tests.report.folders import parity, pretraining, reports, scores, write_run


def told(runs: list[Run]) -> dict[str, Pretrained]:
    return {f"{one.subject} {one.label}": one for one in pretrained(runs)}


def test_seeds_are_a_curve_and_every_run_is_a_line(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, pretraining(seed), reports(2.0 + seed)) for seed in (0, 1, 2)]
    (one,) = pretrained(runs)
    assert (one.subject, one.label) == ("shards", "DeltaNet [-1, 1]")
    assert (one.model, one.between, one.variant) == ("DeltaNet", "[-1, 1]", "")
    curves = {measure.name: curve for measure, curve in one.curves.items()}
    assert set(curves) == {
        *("nats", "nats:code", "held", "held:code", "held:prose", "speed", "mfu", "memory", "norm")
    }
    losses = curves["nats"].points
    assert [point.x for point in losses] == pytest.approx([s * 128 / 1e6 for s in (2, 4, 6, 8)])
    assert [point.where for point in losses] == [f"step {s}" for s in (2, 4, 6, 8)]
    assert [(p.low, p.middle, p.high) for p in losses][-1] == (2.0, 3.0, 4.0)
    assert [p.middle for p in curves["held:prose"].points] == [5.5, 4.5]
    for line, seed in zip(one.runs, (0, 1, 2), strict=True):
        assert line.run.config.seed == seed and line.step == 8 and line.spikes == 1
        assert (line.loss, line.held_out) == (2.0 + seed, 3.0 + seed)
        assert line.domains == {"code": 2.5 + seed, "prose": 3.5 + seed}
        assert (line.speed, line.mfu, line.memory) == (5000.0, 0.1, 10.0)


def test_models_rates_and_names_of_a_text(tmp_path: Path) -> None:
    """One text whose folder had two names, one model at two rates, and a range."""
    runs = [
        write_run(tmp_path / "0", pretraining(), reports(2.0)),
        write_run(tmp_path / "1", pretraining(lr=1e-3), reports(2.0)),
        write_run(tmp_path / "2", pretraining(low=0.0, data="moved"), reports(2.0)),
    ]
    assert list(told(runs)) == [
        "shards DeltaNet [-1, 1], lr 0.001",
        "shards DeltaNet [-1, 1], lr 0.01",
        "shards DeltaNet [0, 1]",
    ]
    assert told(runs)["shards DeltaNet [-1, 1], lr 0.01"].variant == "lr 0.01"


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    run = write_run(tmp_path, pretraining(), reports(2.0, steps=2), finished=False)
    (one,) = pretrained([run])
    assert one.curves == {}, "one point is no curve"
    (line,) = one.runs
    assert (line.step, line.loss, line.held_out, line.domains) == (2, 3.5, None, {})
    page = render(build([run]))
    assert "2 of 8" in page and "1 run, 0 finished." in page
    (nothing,) = pretrained([write_run(tmp_path / "none", pretraining(), [], finished=False)])
    assert (nothing.runs[0].step, nothing.runs[0].loss, nothing.runs[0].memory) == (0, None, None)


def test_the_page_has_them_beside_the_cells(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "lm", pretraining(seed), reports(2.0 + seed))
    write_run(tmp_path / "tasks", parity(), scores(0.5))
    report = build(read_runs([tmp_path]))
    assert (report.runs, report.finished, report.domains) == (3, 3, ["code", "prose"])
    found = json.loads(json.dumps(data(report)))
    assert found["labels"] == ["DeltaNet [-1, 1]"] * 2
    assert [block["cells"] for block in found["blocks"]] == [[0], [1]]
    assert list(found["measures"])[:3] == ["nats", "nats:code", "held"]
    assert set(found["measures"]) <= set(found)
    assert found["measures"]["held:code"] == {"title": "validation loss, code", "close": True}
    curve = found["held:code"]["1"]
    assert curve["y"] == [4.0, 3.0] and curve["seeds"] == 2 and curve["low"] == [3.5, 2.5]
    drawn = [picture.name for picture in pictures(report)]
    assert {"pretraining-shards-validation-loss-code", "loss-1-parity"} <= set(drawn)
    text = write_report(read_runs([tmp_path]), tmp_path / "page.html").read_text()
    assert text.count("/records.jsonl") == 2 + 1 + 2  # best, median; the list of runs; two lines
    assert 'id="tab-pretraining"' in text and 'id="tab-overview"' in text
    alone = render(build(read_runs([tmp_path / "lm"])))
    assert 'id="tab-overview"' not in alone and "2 runs, 2 finished.</p>" in alone
    others = render(build(read_runs([tmp_path / "tasks"])))
    assert "pretraining" not in others.partition("<script")[0]
