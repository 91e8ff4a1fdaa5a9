"""The paper's rule: the rate with the greatest median over seeds, and of it the best seed."""

from dataclasses import replace
from pathlib import Path

from statetrack.runs import Run
from statetrack.runs.selection import best_rate, best_run, values_of
from statetrack.runs.selection import cell as cell_of
from tests.report.folders import parity, scores, write_run

METRIC = "scaled_accuracy"


def cell(root: Path, values: dict[float, list[float]]) -> list[Run]:
    """One run for every rate and seed, which ends with the given value."""
    return [
        write_run(root, parity(seed, lr), scores(value))
        for lr, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]


def test_the_rate_with_the_greatest_median_and_its_best_seed(tmp_path: Path) -> None:
    runs = cell(tmp_path, {1e-3: [0.5, 0.6, 0.7], 1e-2: [0.1, 0.2, 1.0]})
    rate, chosen = best_rate(runs, METRIC)
    assert rate == 1e-3 and sorted(values_of(chosen, METRIC)) == [0.5, 0.6, 0.7]
    best = best_run(runs, METRIC)
    assert best is not None and best.last(METRIC) == 0.7


def test_ties_go_to_the_smallest_rate_and_seed(tmp_path: Path) -> None:
    runs = cell(tmp_path, {1e-2: [0.5, 0.5], 1e-3: [0.5, 0.5]})
    assert best_rate(runs, METRIC)[0] == 1e-3
    best = best_run(reversed(runs), METRIC)
    assert best is not None and best.config.seed == 0 and best.config.optimizer.lr == 1e-3


def test_only_finished_runs_with_a_value_count(tmp_path: Path) -> None:
    going = write_run(tmp_path, parity(0, 1e-2), scores(1.0), finished=False)
    without = write_run(tmp_path, parity(1, 1e-2), [])
    assert best_rate([going, without], METRIC) == (None, [])
    assert best_run([going, without], METRIC) is None
    (done,) = cell(tmp_path, {1e-3: [0.2]})
    assert best_rate([going, without, done], METRIC) == (1e-3, [done])
    assert values_of([going, without, done], METRIC) == [1.0, 0.2]


def test_a_cell_knows_that_runs_go_on_and_not_from_which() -> None:
    firsts = [parity(seed, lr) for seed in (0, 1) for lr in (1e-3, 1e-2)]
    more = [replace(first, start=first.fingerprint) for first in firsts]
    assert len({cell_of(config) for config in firsts}) == 1
    assert len({cell_of(config) for config in more}) == 1
    assert cell_of(firsts[0]) != cell_of(more[0]) != cell_of(replace(more[0], window=8))
    given = [replace(firsts[0], start=digit * 64) for digit in "01"]
    assert len({cell_of(config) for config in given}) == 2
