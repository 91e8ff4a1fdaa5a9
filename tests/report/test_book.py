"""The results page and summary.json against run folders whose numbers are known."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statetrack.analysis.exact_file import store_exact, write_exact
from statetrack.automata import read
from statetrack.cli import main
from statetrack.experiments import EXPERIMENTS
from statetrack.experiments.plan import Plan
from statetrack.experiments.summary import PAGES, plans, plans_for
from statetrack.report import write_book
from statetrack.report.cells import KEYS, cells, summary_rows
from statetrack.report.questions import QUESTIONS
from statetrack.runs import Record, find_runs
from statetrack.runs.archive import store
from statetrack.runs.folder import run_folders
from statetrack.training import RunConfig
from tests.analysis.audits import fields
from tests.analysis.test_exact_file import record_of
from tests.report.folders import parity, puzzle_config, scores, write_run
from tests.training import tiny

POSITIVE = tiny.model(eigen_range=(0.0, 1.0))


def toy_plan(**changes: Any) -> Plan:
    """Two models, two learning rates, three seeds."""
    configs = [
        parity(seed, lr, model=model)
        for model in (POSITIVE, tiny.model())
        for lr in (1e-3, 1e-2)
        for seed in (0, 1, 2)
    ]
    fields: dict[str, Any] = {
        "experiment": "toy",
        "summary": "a toy",
        "scale": "paper",
        "version": "ran",
        "configs": tuple(configs),
    }
    return Plan(**(fields | changes))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of the toy plan one model with one rate and two seeds; and one run that is not in it."""
    results = tmp_path / "results"
    for seed, value in enumerate((0.5, 0.9)):
        write_run(results / "toy-paper-ran", parity(seed), scores(0.1, value))
    other = parity(model=tiny.model("Mamba"))
    write_run(results / "toy-paper-ran", other, scores(0.2))
    return results


def audit(*, lowest: float = -1.0) -> dict[str, Any]:
    found = fields()
    found["layers"][0]["lowest"] = lowest
    return found


def page_of(root: Path, plan: Plan | None = None) -> str:
    page, *_ = write_book(
        [plan or toy_plan()], find_runs(root), root, root.parent / "docs" / "results.md"
    )
    return page.read_text()


def lines_of(text: str) -> dict[str, list[str]]:
    """Model -> its line in the first table of runs."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        columns = [column.strip() for column in line.strip("|").split("|")]
        if columns[0] == "parity" and len(columns) == 11:
            found.setdefault(columns[1], columns)
    return found


def test_cells_are_those_of_the_plan_and_then_the_others(root: Path) -> None:
    found = cells(toy_plan(), find_runs(root / "toy-paper-ran"))
    assert [cell.label for cell in found] == [
        "DeltaNet [0, 1]",
        "DeltaNet [-1, 1]",
        "Mamba [-1, 1]",
    ]
    empty, signed, other = found
    assert empty.row is None and empty.best is None and len(empty.planned) == 6
    assert signed.row is not None and (signed.row.best, signed.row.median) == (0.9, 0.7)
    assert signed.best is not None and signed.best.config.seed == 1
    assert signed.unlike_the_plan() == ["learning rate 0.001 of 0.001, 0.01", "2 of 3 seeds"]
    assert other.unlike_the_plan() == ["not in the experiment's list of runs"]
    assert empty.unlike_the_plan() == []


def test_a_run_counts_in_every_table_that_lists_it(root: Path) -> None:
    other = toy_plan(experiment="other", configs=(parity(0), parity(0, model=POSITIVE)))
    write_run(root / "other-paper-ran", parity(0, model=POSITIVE), scores(0.3))
    late = parity(0, 1e-2, model=POSITIVE)
    write_run(root / "other-paper-ran", late, scores(0.9), finished=False)  # counts nowhere else
    write_run(root / "other-paper-ran", parity(0), scores(0.1), finished=False)  # nor here
    page = root.parent / "docs" / "results.md"
    text = write_book([toy_plan(), other], find_runs(root), root, page)[0].read_text()
    toy, others = text.split("\n## other")
    assert "toy-paper-ran" in lines_of(others)["DeltaNet [-1, 1]"][4]
    assert lines_of(others)["DeltaNet [-1, 1]"][4].startswith("[0.500]")
    assert lines_of(toy)["DeltaNet [0, 1]"][4].startswith("[0.300]")
    assert "Mamba [-1, 1]" not in lines_of(others)  # in nobody's list: it stays where it lies


def test_how_often_a_run_is_looked_at_makes_no_other_cell(root: Path) -> None:
    often = parity(2)
    often = replace(often, log_every=1, checkpoint_every=None)
    often = replace(often, evaluation=replace(often.evaluation, every=1))
    write_run(root / "toy-paper-ran", often, scores(0.7))
    found = cells(toy_plan(), find_runs(root / "toy-paper-ran"))
    assert len(found) == 3 and found[1].row is not None and found[1].row.seeds == 3
    longer = replace(parity(2), steps=24)
    write_run(root / "toy-paper-ran", longer, scores(0.7))
    labels = [cell.label for cell in cells(toy_plan(), find_runs(root / "toy-paper-ran"))]
    assert labels.count("DeltaNet [-1, 1] (steps=24)") == 1 and len(labels) == 4


def test_summary_has_one_row_for_each_cell(root: Path) -> None:
    page_of(root)
    rows = json.loads((root / "summary.json").read_text())
    empty, signed, other = [row for row in rows if row["experiment"] != "language"]
    for row in (empty, signed, other):
        assert tuple(row) == KEYS
        assert (row["experiment"], row["task"], row["scale"]) == ("toy", "parity", "paper")
        assert (row["steps"], row["batch"], row["layers"]) == (12, 4, 1)
        assert row["metric"] == "scaled_accuracy" and row["paper"] is None
    assert (signed["model"], signed["eigen_range"]) == ("DeltaNet", [-1.0, 1.0])
    assert (signed["best"], signed["median"], signed["seeds"]) == (0.9, 0.7, 2)
    assert signed["spread"] == pytest.approx(0.4)
    best = parity(1).fingerprint
    assert signed["record"] == f"results/toy-paper-ran/{best}/records.jsonl"
    assert (root.parent / signed["record"]).is_file()
    assert (empty["model"], empty["eigen_range"], empty["seeds"]) == ("DeltaNet", [0.0, 1.0], 0)
    assert [empty[key] for key in ("best", "median", "spread", "record")] == [None] * 4
    assert other["spread"] is None and other["seeds"] == 1


def test_summary_of_an_applied_task_has_rows_by_length_and_by_operations(tmp_path: Path) -> None:
    """Puzzles of up to 16 presses have 32 tokens; octaves 17..32 and 33..64."""
    runs = []
    for seed, share in ((0, 0.5), (1, 0.7)):
        config = puzzle_config(seed)
        rows = [Record(4, "validation", "scaled_accuracy", 2 * share - 1)]
        for length, value, count in ((10, 0.0, 9), (20, 1.0, 1), (30, share, 3), (50, share, 2)):
            rows.append(Record(4, "test", "accuracy", value, length, count=count))
        rows.append(Record(2, "test", "accuracy", 0.1, 20, count=5))  # an earlier test
        rows.append(Record(4, "test", "accuracy", share / 2, count=5, operations=4))
        runs.append(write_run(tmp_path / "toy-paper-ran", config, rows))
    (cell,) = cells(toy_plan(configs=tuple(run.config for run in runs)), runs)
    overall, *places = summary_rows(cell, tmp_path)
    assert (overall["metric"], overall["length"]) == ("scaled_accuracy", None)
    assert all(tuple(row) == KEYS and row["metric"] == "accuracy" for row in places)
    found = {(row["length"], row["operations"]): row["best"] for row in places}
    assert found == {(32, None): pytest.approx(0.775), (64, None): 0.7, (None, 4): 0.35}
    assert places[1]["median"] == pytest.approx(0.6) and places[1]["seeds"] == 2
    assert places[1]["spread"] == pytest.approx(0.2)
    assert {row["record"] for row in places} == {overall["record"]}


def test_householder_factors_are_part_of_the_models_name() -> None:
    model = tiny.model("DeltaProduct", num_heads=2, num_householders=3, conv_size=0)
    (cell,) = cells(toy_plan(configs=(parity(model=model),)), [])
    assert summary_rows(cell, Path("results"))[0]["model"] == "DeltaProduct n=3"


def test_numbers_are_links_and_empty_cells_have_their_command(root: Path) -> None:
    text = page_of(root)
    docs = root.parent / "docs"
    table = lines_of(text)
    signed = table["DeltaNet [-1, 1]"]
    targets = [re.fullmatch(r"\[([\d.]+)\]\((.*)\)", column) for column in signed[4:7]]
    assert [match and match[1] for match in targets] == ["0.900", "0.700", "0.400"]
    seeds = [1, 1, 0]  # best; of two in the middle the better; the worst
    for match, seed in zip(targets, seeds, strict=True):
        assert match is not None
        path = (docs / match[2]).resolve()
        assert path == (root / "toy-paper-ran" / parity(seed).fingerprint / "records.jsonl")
        assert path.is_file()
    assert signed[7:10] == ["2", "12 × 4", ""]
    assert signed[10] == "(learning rate 0.001 of 0.001, 0.01, 2 of 3 seeds)"
    empty = table["DeltaNet [0, 1]"]
    assert empty[3:8] == [""] * 5
    command = "statetrack reproduce toy --scale paper --version ran"
    assert empty[10] == f"not run: `{command} --only 'parity DeltaNet [0, 1]' --out runs`"
    assert "| [toy](#toy) | a toy | 2 of 3 |" in text
    for source in re.findall(r'src="([^"]+)"', text):
        assert (docs / source).read_bytes().startswith(b"\x89PNG")
    assert "toy-paper-ran-parity-length.png" in text
    assert "toy-paper-ran-parity-learning.png" in text


def test_what_failed_says_why(root: Path) -> None:
    failed = parity(model=POSITIVE)
    error = "Traceback\nNonFiniteLoss: at step 7"
    write_run(root / "toy-paper-ran", failed, scores(0.3), finished=False, error=error)
    why = lines_of(page_of(root))["DeltaNet [0, 1]"][10]
    assert why.startswith("NonFiniteLoss: at step 7: `statetrack reproduce toy ")


def test_stories_and_remarks_are_shown_and_none_is_lost(root: Path) -> None:
    (root / "stories.md").write_text("# toy\n\nOnce upon a time.\n\nThe end.\n\n# states\n\nAB.\n")
    key = "toy-paper-ran/parity/DeltaNet [-1, 1]"
    (root / "remarks.json").write_text(json.dumps({key: "It had fewer steps."}))
    text = page_of(root)
    assert "## toy\n\nOnce upon a time.\n\nThe end.\n" in text
    assert "## states (figure 2)\n\nAB.\n" in text
    assert lines_of(text)["DeltaNet [-1, 1]"][10].startswith("It had fewer steps. (learning rate")
    (root / "remarks.json").write_text(json.dumps({key.replace("-1", "-2"): "Lost."}))
    with pytest.raises(ValueError, match=f"did you mean {re.escape(repr(key))}"):
        page_of(root)
    (root / "remarks.json").write_text("[]")
    with pytest.raises(ValueError, match="must be an object of sentences"):
        page_of(root)
    (root / "remarks.json").write_text("{}")
    (root / "stories.md").write_text("# tyo\n\nLost.\n")
    with pytest.raises(ValueError, match="is about 'tyo'"):
        page_of(root)


def test_a_question_tells_the_stories_of_its_experiments(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = replace(QUESTIONS[0], experiments=("toy", "none"))
    monkeypatch.setattr("statetrack.report.book.QUESTIONS", (mine,))
    text = "See [the log](measurements/log.md), [this](#toy) and [that](https://example.org).\n"
    (root / "stories.md").write_text(f"# toy\n\n{text}")
    page_of(root)
    page = (root.parent / "docs" / "results" / f"{mine.name}.md").read_text()
    assert f"## In words\n\n### toy\n\n{text.replace('(meas', '(../meas')}" in page
    (root / "stories.md").unlink()
    page_of(root)
    page = (root.parent / "docs" / "results" / f"{mine.name}.md").read_text()
    assert "In words" not in page


def test_audits_show_how_far_and_which_heads(root: Path) -> None:
    folder = root / "toy-paper-ran" / parity(1).fingerprint
    (folder / "audit.json").write_text(json.dumps(audit()))
    worse = root / "toy-paper-ran" / parity(0).fingerprint
    (worse / "audit.json").write_text(json.dumps(audit(lowest=0.5)))  # not the best: not shown
    text = page_of(root)
    link = f"(../results/toy-paper-ran/{folder.name}/audit.json)"
    (line,) = [line for line in text.splitlines() if "layer 1: 1 of 2 (1)" in line]
    wanted = ["parity", "DeltaNet [-1, 1]", f"[-1.000]{link}", "layer 1: 1 of 2 (1)"]
    wanted += ["layer 1, head 1: `1` -1.00, `0` 0.98", f"[1.000]{link}", f"[0.750]{link}"]
    assert line == f"| {' | '.join(wanted)} |"
    assert lines_of(text)["DeltaNet [-1, 1]"][9] == f"[256]{link}"
    picture = "images/results/toy-paper-ran-parity-deltanet-m1-1-spectrum.png"
    assert picture in text and (root.parent / "docs" / picture).is_file()
    assert "spectrum.png" not in text.replace(picture, "")


def test_the_page_of_an_archive_differs_in_links_alone(root: Path) -> None:
    folder = root / "toy-paper-ran"
    best, worst = (folder / parity(seed).fingerprint for seed in (1, 0))
    (best / "audit.json").write_text(json.dumps(audit()))
    before, summary = page_of(root), json.loads((root / "summary.json").read_text())
    runs = run_folders(folder)
    store(runs, folder)
    both = page_of(root)  # a run that has a folder and a line counts once
    for run in runs:
        shutil.rmtree(run.folder)
    after = page_of(root)
    assert both == after != before
    assert re.sub(r"\]\([^)]*\)", "]", after) == re.sub(r"\]\([^)]*\)", "]", before)
    line = {run.fingerprints[0]: run.place.line for run in find_runs(root)}
    archive = "../results/toy-paper-ran"
    signed = lines_of(after)["DeltaNet [-1, 1]"]
    assert signed[4] == f"[0.900]({archive}/records/{best.name}.jsonl)"
    assert signed[6] == f"[0.400]({archive}/runs.jsonl#L{line[worst.name]})"
    assert signed[9] == f"[256]({archive}/runs.jsonl#L{line[best.name]})"
    for old, new in zip(summary, json.loads((root / "summary.json").read_text()), strict=True):
        assert old | {"record": None} == new | {"record": None}
        assert new["record"] is None or (root.parent / new["record"]).is_file()


def test_states_are_drawn_when_they_are_there(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Not run: `statetrack reproduce states --out results`" in page_of(root)
    monkeypatch.chdir(root.parent)
    assert main(["reproduce", "states", "--out", "results"]) == 0
    text = page_of(root)
    assert "Not run" not in text
    assert "| a = -1 | [-1](../results/states/states.json) | 1, 0, 1, 0 | 1, 0 |" in text
    assert (root.parent / "docs/images/results/states.png").is_file()


def test_exact_networks_have_a_section_when_there_are_some(root: Path) -> None:
    assert "exact networks" not in page_of(root)
    path = write_exact(record_of(root.parent / "run", read("parity")), root.parent)
    store_exact(path, root)
    (root / "stories.md").write_text("# exact\n\nOnce learnt, always right.\n")
    text = page_of(root)
    assert (
        "| [exact](#from-examples-to-exact-networks) | train on examples, get a network that is "
        "exact at every length | 1 of 1 |" in text
    )
    section = text.split("## From examples to exact networks\n")[1]
    assert section.startswith("\nOnce learnt, always right.\n")
    heads, _, row = (line.strip("| ").split(" | ") for line in section.splitlines()[3:6])
    assert dict(zip(heads, row, strict=True)) == {
        "task": "parity",
        "model": "DeltaNet [-1, 1]",
        "trained to": "8",
        "states": f"[2](../results/exact/{parity().fingerprint}.json)",
        "the task's machine": "yes",
        "trusted to": "8",
        "breaks after": "",
        "right at 64 / 256": "0.50 / -",
        "compiled": "diagonal: 1 layer, 40 weights",
        "exact at every length": "yes, proved with 4 single steps",
    }


def test_the_same_runs_give_the_same_files_and_old_pictures_go(root: Path) -> None:
    docs = root.parent / "docs"

    def files() -> dict[str, bytes]:
        found = [*docs.rglob("*.*"), root / "summary.json"]
        return {str(path): path.read_bytes() for path in found if path.is_file()}

    page_of(root)
    first = files()
    (docs / "images" / "results" / "gone.png").write_bytes(b"old")
    (docs / "images" / "other.png").write_bytes(b"not ours")
    page_of(root)
    second = files()
    assert second.pop(str(docs / "images" / "other.png")) == b"not ours"
    assert second == first and len(first) == 2 + 6 + 2  # with a page for each question


def test_plans_are_the_pages_and_what_was_run(tmp_path: Path) -> None:
    listed = {(plan.experiment, plan.scale, plan.version) for plan in plans(tmp_path)}
    assert listed == {(n, s, v if s == "paper" else None) for n, s, v in PAGES}
    assert [name for name in EXPERIMENTS if name in {n for n, _, _ in listed}] == list(EXPERIMENTS)
    write_run(tmp_path / "z60-smoke", parity(), scores(0.5))
    assert "z60-smoke" in {plan.folder for plan in plans(tmp_path)}
    for name in ("z60-smoke-iclr", "z61-smoke", "z60-paper"):
        odd = write_run(tmp_path / name, parity(), scores(0.5)).folder
        with pytest.raises(ValueError, match=f"{name} holds runs, but is not named"):
            plans(tmp_path)
        (odd / "config.json").unlink()


def test_a_page_has_the_plans_whose_folders_it_is_about(tmp_path: Path) -> None:
    def folders(*paths: Path) -> list[str]:
        return [plan.folder for plan in plans_for(paths, find_runs(tmp_path))]

    one = write_run(tmp_path / "runs" / "z60-smoke", parity(), scores(0.5))
    write_run(tmp_path / "runs" / "mine", parity(1), scores(0.5))
    assert folders(tmp_path / "runs") == folders(one.folder.parent) == ["z60-smoke"]
    assert folders(one.folder) == folders(tmp_path / "runs" / "mine") == []
    store(run_folders(tmp_path / "runs" / "z60-smoke"), tmp_path / "results" / "z60-smoke")
    assert set(folders(tmp_path / "results")) == {
        "z60-smoke",
        *(f"{n}-{s}-{v}" if s == "paper" else f"{n}-{s}" for n, s, v in PAGES),
    }


def test_applied_tasks_have_a_table_and_a_picture_by_operations(tmp_path: Path) -> None:
    root = tmp_path / "results"
    rows = [Record(4, "validation", "scaled_accuracy", 0.5)]
    rows += [Record(4, "test", "accuracy", v, t, count=2) for t, v in ((20, 1.0), (50, 0.75))]
    rows += [Record(4, "test", "accuracy", 0.9 - n / 10, operations=n) for n in (0, 1, 4)]
    write_run(root / "toy-paper-ran", puzzle_config(), rows)
    text = page_of(root, toy_plan(configs=(puzzle_config(),)))
    assert "| model | 32 tokens | 64 tokens | 0 op. | 1 op. | 4 op. |" in text
    assert "| DeltaNet [-1, 1] | 1.000 | 0.750 | 0.900 | 0.800 | 0.500 |" in text
    assert "lights_out, against length, operations and steps:" in text
    picture = "images/results/toy-paper-ran-lights-out-operations.png"
    assert picture in text and (tmp_path / "docs" / picture).is_file()


@pytest.mark.parametrize(
    ("experiment", "scale"), [("chomsky", "smoke"), ("s5", "paper"), ("parity-far", "quick")]
)
def test_commands_fill_their_cell_and_no_other(
    experiment: str, scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {plan.folder: plan for plan in plans(tmp_path)}
    made: RunConfig = EXPERIMENTS["chomsky"].runs("smoke", "iclr")[0]
    write_run(tmp_path / "chomsky-smoke", made, scores(0.5))
    every |= {plan.folder: plan for plan in plans(tmp_path)}
    plan = next(p for p in every.values() if (p.experiment, p.scale) == (experiment, scale))
    table = cells(plan, [])
    for cell in (table[1], table[-2]):
        words = shlex.split(cell.command("results"))
        assert words[0] == "statetrack"
        assert main([*words[1:], "--dry-run"]) == 0
        shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert shown == [config.fingerprint for config in cell.planned]


@pytest.mark.slow
def test_the_command_makes_page_summary_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = EXPERIMENTS["parity-diagonal"].runs("smoke", "iclr")[1]
    write_run(tmp_path / "results" / "parity-diagonal-smoke", config, scores(0.25, 1.0))
    words = ["report", "results", "--out", "docs/results.html", "--markdown", "docs/results.md"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "Report: docs/results.html",
        "Results: docs/results.md, results/summary.json and 8 pages and pictures beside them",
    ]
    text = (tmp_path / "docs" / "results.md").read_text()
    assert "`statetrack report results --markdown docs/results.md`" in text.splitlines()[0]
    line = next(
        line for line in text.splitlines() if "| parity | Diagonal [-1, 1] | 1 | 1.000 | [" in line
    )
    assert f"[1.000](../results/parity-diagonal-smoke/{config.fingerprint}/records.jsonl)" in line
    filled = [row for row in json.loads(Path("results/summary.json").read_text()) if row["seeds"]]
    assert [(row["experiment"], row["scale"], row["best"]) for row in filled] == [
        ("parity-diagonal", "smoke", 1.0)
    ]
    assert main(["report", "results", "docs", "--markdown", "docs/results.md"]) == 2
    assert "one folder of results, not 2" in capsys.readouterr().err
