"""Cells are told apart, and each is found by its own command."""

import shlex
from pathlib import Path

import pytest

from statetrack import experiments
from statetrack.report.cells import cells, described, summary_rows
from statetrack.report.questions import QUESTIONS, missing_table, pairs


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.parametrize("name", ["boxes", "puzzles", "repl"])
def test_the_command_of_a_cell_finds_its_runs_alone(
    name: str, scale: experiments.Scale, tmp_path: Path
) -> None:
    plan = experiments.get(name).plan(scale, "iclr")
    known = list(zip(plan.configs, described(plan), strict=True))
    table = cells(plan, [])
    assert len({cell.key for cell in table}) == len(table)
    for cell in table:
        found = [config for config, said in known if cell.only in said]
        assert found == list(cell.planned)
    rows = [summary_rows(cell, tmp_path)[0] for cell in table]
    assert len({str((r["task"], r["model"], r["eigen_range"])) for r in rows}) == len(table)
    assert sum(", then windows" in row["model"] for row in rows) == 2


def test_a_pair_that_goes_on_has_a_command_for_both_ranges() -> None:
    plan = experiments.get("boxes").plan("quick", "iclr")
    (code,) = (question for question in QUESTIONS if question.name == "code")
    found = pairs({plan.folder: cells(plan, [])}, code)
    assert all(pair.usual.label.replace("[0", "[-1") == pair.extended.label for pair in found)
    (line,) = (line for line in missing_table(found) if "DeltaNet, then windows" in line)
    words = shlex.split(line.split("`")[1])
    chosen = [said for said in described(plan) if words[words.index("--only") + 1] in said]
    assert len(chosen) == 20 and sum("then windows" in said for said in chosen) == 10
