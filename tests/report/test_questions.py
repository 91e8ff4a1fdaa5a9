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
from statetrack.runs import Record
from statetrack.runs.stored import Place
from tests.report.folders import parity, scores, write_run
from tests.report.test_book import POSITIVE, toy_plan
from tests.training import tiny

QUESTION = replace(QUESTIONS[0], experiments=("toy",))


def pair_of(
    root: Path, usual: list[float], extended: list[float], right: tuple[float, float] = (0.5, 1.0)
) -> list[Pair]:
    """`right` are the shares of right answers in training."""
    plan = toy_plan()
    runs = []
    for model, values, share in zip(
        (POSITIVE, tiny.model()), (usual, extended), right, strict=True
    ):
        for seed, value in enumerate(values):
            rows = [*scores(value), Record(2, "train", "accuracy", share)]
            folder = root / str(model is POSITIVE)
            runs.append(write_run(folder, parity(seed, model=model), rows))
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


@pytest.mark.parametrize(
    ("right", "verdict", "words"),
    [
        ((0.5, 1.0), "better", "better, DeltaNet on parity: 0.000 with [0, 1], 1.000 with [-1, 1]"),
        ((1.0, 0.5), "worse", "worse, DeltaNet on parity: 1.000 with [0, 1], 0.000 with [-1, 1]"),
        ((1.0, 1.0), "alike", "the medians are within 0.02."),
        ((0.5, 0.5), "near a guess", "both are near a guess."),
    ],
)
def test_near_a_guess_where_judged_training_is_told(
    tmp_path: Path, right: tuple[float, float], verdict: str, words: str
) -> None:
    (pair,) = pair_of(tmp_path, [0.0, 0.05], [0.01, 0.09], right)
    assert pair.verdict == "near a guess" and pair.verdict_in_training == verdict
    said = answer(QUESTION, [pair])
    assert "near a guess at the lengths judged in 1; in training" in said and words in said
    two = answer(QUESTION, [pair, pair])
    assert "judged in 2; in training" in two and " in 2" in two.partition("in training ")[2]
    *_, line, _, explained = pairs_table([pair], lambda text, place: text)
    assert f"near a guess; {verdict} in training |" in line
    columns = line.split(" | ")
    assert [float(column) for column in columns[4:6]] == [2 * share - 1 for share in right]
    assert explained.startswith("*In training*")


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
    *_, line, _, _ = pairs_table([half], link)
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
