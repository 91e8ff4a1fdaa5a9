"""Positions by plies, from records whose numbers are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from statetrack.experiments import EXPERIMENTS
from statetrack.experiments.applied import cell
from statetrack.report.cells import cells
from statetrack.report.chess import PUBLISHED, chess_picture, chess_tables, exact_by_plies
from statetrack.report.questions import QUESTIONS, Pair, pairs
from statetrack.runs import Record
from tests.report.folders import write_run

QUESTION = next(question for question in QUESTIONS if question.name == "chess")


def records(value: float) -> list[Record]:
    """Token 1 is the first position; of tokens 21 to 30 ten times as many games as before."""
    rows = [Record(4, "validation", "scaled_accuracy", value)]
    for length in range(1, 31):
        count = 10 if length > 20 else 1
        share = value if length > 20 else 1.0
        for metric in ("accuracy", "position_accuracy", "board_accuracy"):
            more = 0.0 if metric == "accuracy" else 0.1
            rows.append(Record(4, "test", metric, min(1.0, share + more), length, count=count))
    return rows


def pairs_of(root: Path) -> list[Pair]:
    plan = EXPERIMENTS["chess"].plan("smoke", "iclr")
    runs = []
    for between, values in (((0.0, 1.0), (0.2, 0.3)), ((-1.0, 1.0), (0.6, 0.8))):
        (config,) = cell("smoke", "chess", "DeltaNet", between)
        for seed, value in enumerate(values):
            runs.append(write_run(root, replace(config, seed=seed), records(value)))
    return pairs({plan.folder: cells(plan, runs)}, QUESTION)


def test_bins_of_twenty_plies(tmp_path: Path) -> None:
    (config,) = cell("smoke", "chess", "DeltaNet", (-1.0, 1.0))
    found = exact_by_plies(write_run(tmp_path, config, records(0.5)))
    assert list(found["accuracy"]) == [0, 20]
    assert found["accuracy"][0] == 1.0
    assert found["accuracy"][20] == pytest.approx(0.5)
    assert found["position_accuracy"][20] == pytest.approx(0.6)


def test_tables_and_picture(tmp_path: Path) -> None:
    found = pairs_of(tmp_path)
    (known,) = [pair for pair in found if pair.complete]
    lines = chess_tables(found)
    assert "| 20 to 39 | 0.250 | 0.700 | 0.350 | 0.800 | 0.350 | 0.800 |" in lines
    assert sum(line.startswith("| 0 to 19 ") for line in lines) == 1
    assert (
        lines[-len(PUBLISHED) :][1] == "| Gated DeltaNet [-1, 1] | 5.05 | 36.15 | 56.87 | 61.19 |"
    )
    assert chess_picture("plies", [known]) is not None


def test_nothing_was_run(tmp_path: Path) -> None:
    plan = EXPERIMENTS["chess"].plan("smoke", "iclr")
    found = pairs({plan.folder: cells(plan, [])}, QUESTION)
    assert chess_picture("plies", found) is None
    assert not any(line.startswith("| 0 to 19 ") for line in chess_tables(found))
