"""Verdicts of pairs are what the seeds say."""

from dataclasses import replace
from pathlib import Path

import pytest

from statetrack.report.cells import cells
from statetrack.report.questions import (
    QUESTIONS,
    Pair,
    answer,
    missing_table,
    pairs,
    pairs_picture,
    pairs_table,
)
from statetrack.runs.stored import Place
from tests.report.folders import parity, scores, write_run
from tests.report.test_book import POSITIVE, toy_plan
from tests.training import tiny

QUESTION = replace(QUESTIONS[0], experiments=("toy",))


def pair_of(root: Path, usual: list[float], extended: list[float]) -> list[Pair]:
    plan = toy_plan()
    runs = []
    for model, values in ((POSITIVE, usual), (tiny.model(), extended)):
        for seed, value in enumerate(values):
            folder = root / str(model is POSITIVE)
            runs.append(write_run(folder, parity(seed, model=model), scores(value)))
    return pairs({plan.folder: cells(plan, runs)}, QUESTION)


@pytest.mark.parametrize(
    ("usual", "extended", "verdict"),
    [
        ([0.0, 0.1], [0.9, 1.0], "better"),
        ([0.0, 0.95], [0.9, 1.0], "open"),
        ([0.9, 1.0], [0.0, 0.1], "worse"),
        ([0.500, 0.501], [0.510, 0.511], "alike"),
        ([0.0], [1.0, 1.0], "one seed"),
        ([0.0, 0.05], [0.01, 0.09], "near a guess"),
    ],
)
def test_verdicts(tmp_path: Path, usual: list[float], extended: list[float], verdict: str) -> None:
    (pair,) = pair_of(tmp_path, usual, extended)
    assert pair.verdict == verdict and pair.complete
    assert pair.model == "DeltaNet" and pair.task == "parity"
    said, costs = answer(QUESTION, [pair]), answer(replace(QUESTION, costs=True), [pair])
    yes, no, unknown = "Yes, in the one pair", "No: in the one pair", "Not settled: in the one"
    helps = {"better": yes, "worse": no, "alike": no}.get(verdict, unknown)
    harms = {"better": no, "worse": yes, "alike": no}.get(verdict, unknown)
    assert said.startswith(helps) and costs.startswith(harms)
    picture = pairs_picture("toy", "toy", [pair])
    assert picture is not None


def test_what_was_not_run_has_its_command(tmp_path: Path) -> None:
    (pair,) = pair_of(tmp_path / "none", [], [])
    assert answer(QUESTION, [pair]).startswith("Not known")
    assert pairs_picture("toy", "toy", [pair]) is None
    (known,) = pair_of(tmp_path / "both", [0.0, 0.1], [0.9, 1.0])
    assert "Open" not in answer(QUESTION, [known])
    said = answer(QUESTION, [known, pair])
    assert said.startswith("Yes, in the one pair")
    assert said.endswith("Open, because not run in both ranges: 1 of 2.")

    def link(text: str, place: Place) -> str:
        return text

    assert pairs_table([pair], link) == []
    lines = missing_table([pair])
    assert "--only 'parity DeltaNet ['" in lines[-1] and "## Not run" in lines[0]
    (half,) = pair_of(tmp_path / "half", [], [0.9, 0.8])
    assert not half.complete
    assert missing_table([half]) == []
    line = pairs_table([half], link)[-1]
    assert "not run: `" in line and "parity DeltaNet [0, 1]" in line and "0.850" in line


def test_a_pair_is_found_by_its_settings_where_labels_tell_more_of_one_range(
    tmp_path: Path,
) -> None:
    """Two widths with [-1, 1] and one with [0, 1]: only the labels of the former name a width."""
    wide, narrow = tiny.model(conv_size=4), tiny.model(conv_size=0)
    usual = tiny.model(conv_size=4, eigen_range=(0.0, 1.0))
    plan = toy_plan(configs=tuple(parity(model=model) for model in (wide, narrow, usual)))
    (pair,) = pairs({plan.folder: cells(plan, [])}, QUESTION)
    assert pair.usual.label == "DeltaNet [0, 1]"
    assert pair.extended.label == "DeltaNet [-1, 1] (conv_size=4)"
