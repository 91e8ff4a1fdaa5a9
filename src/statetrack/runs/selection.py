"""Which runs belong together, and the paper's rule for choosing among them.

Runs that differ in seed and learning rate alone are one cell of a table. The rate is the one with
the greatest median over seeds.
"""

import statistics
from collections.abc import Iterable
from typing import TypeVar

from statetrack.runs.identity import RunDescription, same_but_for
from statetrack.runs.stored import StoredRun

__all__ = ["best_rate", "best_run", "cell", "values_of"]

AnyRun = TypeVar("AnyRun", bound=StoredRun)

CELL = ("seed", "data_seed", "optimizer.lr", "evaluation.every")
"""What the runs of one cell of a table may differ in."""


def cell(config: RunDescription) -> str:
    """The same for all runs of a cell: those that differ in seed, rate and how often one looked.

    Of a run that starts from another it tells that it does, not from which: that is one for each
    seed.
    """
    if config.parent is None:
        return same_but_for(config, CELL)
    return f"then {same_but_for(config, (*CELL, 'start'))}"


def best_rate(runs: Iterable[AnyRun], metric: str) -> tuple[float | None, list[AnyRun]]:
    """The rate whose finished runs have the best median of `metric`, and those runs.

    The best is the greatest, of a loss the least.

    Of equal medians the smallest rate is taken; `(None, [])` where no run has a value.
    """
    by_rate: dict[float, list[AnyRun]] = {}
    for run in runs:
        if run.finished and run.last(metric) is not None:
            by_rate.setdefault(run.config.optimizer.lr, []).append(run)
    if not by_rate:
        return None, []
    medians = {rate: statistics.median(values_of(by_rate[rate], metric)) for rate in by_rate}
    rate = max(sorted(by_rate), key=lambda rate: _worth(medians[rate], metric))
    return rate, by_rate[rate]


def best_run(runs: Iterable[AnyRun], metric: str) -> AnyRun | None:
    """The run whose number stands in the table: the best seed of the chosen rate.

    Of equal ones the smallest seed; `None` where no run has a value.
    """
    _, chosen = best_rate(runs, metric)
    ordered = sorted(chosen, key=lambda run: (run.config.seed, run.config.fingerprint))
    return max(ordered, key=lambda run: _worth(run.last(metric), metric), default=None)


def values_of(runs: Iterable[StoredRun], metric: str) -> list[float]:
    """The last value of every run that has one."""
    return [value for run in runs if (value := run.last(metric)) is not None]


def _worth(value: float | None, metric: str) -> float:
    """The greater, the better."""
    if value is None:
        return float("-inf")
    return -value if metric == "loss" else value
