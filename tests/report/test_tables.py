"""The numbers of the report against records whose statistics are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from statetrack.models import paper_config
from statetrack.report.paper import best_in_paper
from statetrack.report.tables import (
    absent,
    by_length,
    by_operations,
    by_step,
    group_runs,
    in_training,
    places,
    row,
)
from statetrack.runs import Record
from statetrack.training import EvaluationConfig, RunConfig
from tests.report.folders import parity, puzzle_config, scores, write_run
from tests.training import tiny


def test_best_median_and_spread_are_of_the_rate_with_the_greatest_median(tmp_path: Path) -> None:
    final = {1e-3: (0.1, 0.5, 0.8), 1e-2: (0.0, 0.2, 0.9), 1e-4: (0.3, 0.3, 0.3)}
    runs = [
        write_run(tmp_path, parity(seed, lr), scores(0.0, value))
        for lr, values in final.items()
        for seed, value in enumerate(values)
    ]
    (group,) = group_runs(runs)
    found = row(group)
    assert (found.rate, found.best, found.median) == (1e-3, 0.8, 0.5)
    assert found.spread == pytest.approx(0.7)
    by_seed = {run.config.seed: run for run in group.chosen}
    assert found.behind == (by_seed[2], by_seed[1], by_seed[0])
    assert (found.seeds, found.missing) == (3, 0)
    assert found.lengths == (8, 12)
    assert [run.config.seed for run in group.chosen] == [0, 1, 2]


def test_one_seed_has_no_spread_and_unfinished_runs_are_missing(tmp_path: Path) -> None:
    done = write_run(tmp_path, parity(0), scores(0.25))
    trace = "Traceback\n  File x\nValueError: the loss became nan\n"
    failed = write_run(tmp_path, parity(1), scores(0.9), finished=False, error=trace)
    killed = write_run(tmp_path, parity(2), scores(0.9, 0.95), finished=False)
    silent = write_run(tmp_path, parity(3), [Record(12, "train", "loss", 0.5)])
    (group,) = group_runs([done, failed, killed, silent])
    found = row(group)
    assert (found.best, found.median, found.spread) == (0.25, 0.25, None)
    assert (found.seeds, found.missing) == (1, 3)
    reasons = {one.run: one.reason for one in absent([group])}
    assert reasons == {
        failed.folder.name: "ValueError: the loss became nan",
        killed.folder.name: "not finished: step 4 of 12",
        silent.folder.name: "finished, but its records have no scaled accuracy",
    }


def test_no_number_is_none(tmp_path: Path) -> None:
    (group,) = group_runs([write_run(tmp_path, parity(), [], finished=False)])
    found = row(group)
    assert (found.best, found.median, found.spread, found.rate, found.learnt) == (None,) * 5
    assert found.behind == ()
    assert by_length(group).points == () and by_step(group, "loss", "train").points == ()


def test_in_training_is_the_mean_of_its_last_tenth(tmp_path: Path) -> None:
    rows = [Record(step, "train", "accuracy", 1.0 if step > 18 else 0.5) for step in range(1, 21)]
    late, short = (
        write_run(tmp_path / str(len(part)), parity(), part) for part in (rows, rows[:3])
    )
    none = write_run(tmp_path / "none", parity(), scores(0.5))
    assert [in_training(run) for run in (late, short, none)] == [1.0, 0.0, None]
    (group,) = group_runs([late, write_run(tmp_path / "1", parity(seed=1), rows[:3])])
    assert row(group).learnt is None  # neither has a number in the table
    rated = [*scores(0.5), *rows]
    (group,) = group_runs([write_run(tmp_path / "rated", parity(), rated)])
    assert row(group).learnt == 1.0


def test_curves_by_length_have_a_band_over_seeds(tmp_path: Path) -> None:
    def tested(*values: float) -> list[Record]:
        rows = [Record(2, "validation", "scaled_accuracy", 0.5)]
        return rows + [
            Record(2, "test", "accuracy", v, t, count=4) for t, v in enumerate(values, 1)
        ]

    runs = [
        write_run(tmp_path, parity(seed), tested(1.0, value))
        for seed, value in enumerate((0.5, 0.75, 1.0))
    ]
    (group,) = group_runs(runs)
    curve = by_length(group)
    assert [(p.x, p.low, p.middle, p.high) for p in curve.points] == [
        (1.0, 1.0, 1.0, 1.0),
        (2.0, 0.0, 0.5, 1.0),
    ]
    assert curve.seeds == 3


def test_many_lengths_become_few_points_weighted_by_their_answers(tmp_path: Path) -> None:
    rows = [Record(2, "validation", "scaled_accuracy", 0.5)]
    rows += [
        Record(2, "test", "accuracy", 1.0 if t % 2 else 0.0, t, count=3 if t % 2 else 1)
        for t in range(1, 65)
    ]
    (group,) = group_runs([write_run(tmp_path, parity(), rows)])
    points = by_length(group).points
    assert len(points) == 32
    assert points[0].x == 1.5 and points[0].where == "lengths 1 to 2"
    assert all(p.middle == pytest.approx(2 * 0.75 - 1) for p in points)


def test_only_the_last_test_counts(tmp_path: Path) -> None:
    early = [Record(2, "test", "accuracy", 0.0, t, count=1) for t in range(2, 12)]
    (group,) = group_runs([write_run(tmp_path, parity(), [*early, *scores(0.1, 0.2, 0.3)])])
    assert by_length(group).points[0].middle == 1.0


def test_learning_curves_keep_the_last_step(tmp_path: Path) -> None:
    rows = [Record(step, "train", "loss", 1 / step) for step in range(1, 1001)]
    rows.append(Record(1000, "validation", "scaled_accuracy", 0.5))
    (group,) = group_runs([write_run(tmp_path, parity(), rows)])
    points = by_step(group, "loss", "train").points
    assert 30 <= len(points) <= 60
    assert (points[-1].x, points[-1].middle) == (1000, 1 / 1000)


def test_dense_tasks_are_judged_by_faultless_sequences(tmp_path: Path) -> None:
    config = tiny.config(task="parity_dense")
    rows = [Record(2, "validation", "sequence_accuracy", 0.4)]
    rows += [Record(2, "test", "sequence_accuracy", 1 - t / 20, t, count=16) for t in range(1, 12)]
    (group,) = group_runs([write_run(tmp_path, config, rows)])
    found = row(group)
    assert (found.metric, found.best) == ("sequence_accuracy", 0.4)
    assert [(p.x, p.middle) for p in by_length(group).points[:1]] == [(1.0, 0.95)]


def test_operations_are_counted_where_the_task_counts_them(tmp_path: Path) -> None:
    def tested(*values: float) -> list[Record]:
        rows = [Record(4, "validation", "scaled_accuracy", 0.5)]
        counts = (0, 1, 2, 8)
        return rows + [
            Record(4, "test", "accuracy", v, operations=n, count=4)
            for n, v in zip(counts, values, strict=False)
        ]

    runs = [
        write_run(tmp_path, puzzle_config(seed), tested(1.0, value, 0.5, 0.25))
        for seed, value in enumerate((0.6, 0.8))
    ]
    (group,) = group_runs(runs)
    curve = by_operations(group)
    assert [point.x for point in curve.points] == [0.5, 1.0, 2.0, 8.0]
    assert [point.where for point in curve.points][::3] == ["0 operations", "5 to 8 operations"]
    assert (curve.points[1].low, curve.points[1].high) == (0.6, 0.8)
    assert places(group)[None, 1] == [0.6, 0.8]
    (still,) = group_runs([write_run(tmp_path, puzzle_config(2), tested(1.0))])
    assert by_operations(still).points == ()  # nothing ever changes
    (plain,) = group_runs([write_run(tmp_path, parity(), scores(0.5))])
    assert by_operations(plain).points == () and places(plain) == {}


def test_curves_know_their_model_range_and_variant(tmp_path: Path) -> None:
    deep = tiny.model(num_layers=2)
    lstm = tiny.model("LSTM")
    runs = [write_run(tmp_path, parity(model=m), scores(0.5)) for m in (tiny.model(), deep, lstm)]
    looks = {(c.model, c.between, c.variant) for c in map(by_length, group_runs(runs))}
    assert looks == {
        ("DeltaNet", "[-1, 1]", "1 layer"),
        ("DeltaNet", "[-1, 1]", "2 layers"),
        ("LSTM", None, ""),
    }


def test_groups_are_in_order_and_labels_differ(tmp_path: Path) -> None:
    wide = tiny.model(sizes={"d_model": 16})
    configs = [
        parity(model=tiny.model("Mamba", eigen_range=(-1.0, 1.0))),
        parity(),
        parity(model=wide),
        parity(model=tiny.model(eigen_range=(0.0, 1.0))),
        parity(steps=24, model=tiny.model("Mamba", eigen_range=(0.0, 1.0))),
    ]
    groups = group_runs(write_run(tmp_path, config, scores(0.5)) for config in configs)
    assert [group.label for group in groups] == [
        "DeltaNet [0, 1]",
        "DeltaNet [-1, 1] (d_model=8)",
        "DeltaNet [-1, 1] (d_model=16)",
        "Mamba [0, 1]",
        "Mamba [-1, 1]",
    ]


def test_models_of_two_depths_are_told_apart_by_it_alone(tmp_path: Path) -> None:
    deep = tiny.model(num_layers=2, sizes={"mlp_out_std": 0.5})
    runs = [write_run(tmp_path, parity(model=m), scores(0.5)) for m in (tiny.model(), deep)]
    labels = [group.label for group in group_runs(runs)]
    assert labels == ["DeltaNet [-1, 1] (1 layer)", "DeltaNet [-1, 1] (2 layers)"]


def test_no_more_settings_are_named_than_tell_runs_apart(tmp_path: Path) -> None:
    """Three runs that differ in three settings each: two of them are enough."""
    wide = tiny.model(sizes={"d_model": 16})
    configs = [
        parity(steps=12, batch=4),
        parity(steps=24, batch=4, log_every=1),
        parity(steps=24, batch=8, model=wide, log_every=1),
    ]
    groups = group_runs(write_run(tmp_path, config, scores(0.5)) for config in configs)
    named = [group.label.removeprefix("DeltaNet [-1, 1] (") for group in groups]
    assert len(set(named)) == 3 and all(label.count("=") == 2 for label in named), named


def test_a_run_found_twice_counts_once_and_finished_wins(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "a", parity(), scores(0.1), finished=False)
    whole = write_run(tmp_path / "b", parity(), scores(0.5))
    (group,) = group_runs([cut, whole, cut])
    assert group.runs == (whole,) and row(group).missing == 0


def paper_run(**changes: object) -> RunConfig:
    fields: dict[str, object] = {
        "task": "parity",
        "model": paper_config("DeltaNet", vocab_size=3, eigen_range=(0.0, 1.0)),
        "steps": 10,
        "batch": 4,
        "evaluation": EvaluationConfig(lengths=(40, 256)),
    }
    return RunConfig(**(fields | changes))  # type: ignore[arg-type]


def test_the_papers_number_only_where_it_has_one() -> None:
    assert best_in_paper(paper_run()) == 0.017
    arithmetic = paper_config("DeltaNet", vocab_size=10, num_classes=10)
    assert best_in_paper(paper_run(task="mod_arithmetic", model=arithmetic)) == 0.612
    assert best_in_paper(paper_run(task="mod_arithmetic_brackets", model=_brackets())) == 0.339
    # another length law, another training task, another range, another layer: nothing
    assert best_in_paper(paper_run(evaluation=EvaluationConfig(lengths=(41, 256)))) is None
    dense = EvaluationConfig(task="parity", lengths=(40, 256))
    assert best_in_paper(paper_run(task="parity_dense", evaluation=dense)) is None
    half = paper_config("DeltaNet", vocab_size=3, eigen_range=(-0.5, 1.0))
    assert best_in_paper(paper_run(model=half)) is None
    assert best_in_paper(paper_run(model=paper_config("GLA", vocab_size=3))) is None


def test_numbers_the_paper_gives_in_words() -> None:
    simple = paper_config("Diagonal", vocab_size=3, d_model=10, eigen_range=(-1.0, 1.0))
    assert best_in_paper(paper_run(model=simple)) == 1.0

    def swaps(layers: int, low: float, length: int = 500) -> float | None:
        sizes = {"vocab_size": 127, "num_layers": layers}
        model = paper_config("DeltaNet", **sizes, eigen_range=(low, 1.0))
        evaluation = EvaluationConfig(lengths=(length, length))
        return best_in_paper(paper_run(task="s5_swaps", model=model, evaluation=evaluation))

    assert (swaps(1, -1.0), swaps(1, 0.0), swaps(5, 0.0)) == (1.0, 0.0, 0.0)
    assert (swaps(5, -1.0), swaps(1, -1.0, 499)) == (None, None)


def _brackets() -> object:
    from statetrack import tasks

    task = tasks.get("mod_arithmetic_brackets")
    return paper_config("DeltaNet", vocab_size=task.vocab_size, num_classes=task.num_classes)


def test_what_goes_on_is_a_row_of_its_own_with_the_columns_of_its_first_part(
    tmp_path: Path,
) -> None:
    rows = [Record(2, "validation", "scaled_accuracy", 0.5)]
    rows += [Record(2, "test", "accuracy", 1.0, length, count=4) for length in range(1, 65)]
    firsts = [puzzle_config(seed) for seed in (0, 1)]
    longer = {"lengths": (1, 32), "window": 8}
    seconds = [replace(first, start=first.fingerprint, **longer) for first in firsts]
    runs = [write_run(tmp_path, config, rows) for config in (*seconds, *firsts)]
    first, second = group_runs(runs)
    assert (first.label, second.label) == ("DeltaNet [-1, 1]", "DeltaNet [-1, 1], then windows")
    assert [len(group.chosen) for group in (first, second)] == [2, 2]
    assert places(first).keys() == places(second).keys() and len(places(first)) > 1
    assert by_length(first).model != by_length(second).model and second.variant == ""
    (alone,) = group_runs(runs[:2])
    assert alone.label == second.label
