"""The paper's rule for choosing a learning rate: the greatest median over seeds."""

import statistics
from collections.abc import Iterable

from statetrack.training.runs import Run

__all__ = ["best_rate", "values_of"]


def best_rate(runs: Iterable[Run], metric: str) -> tuple[float | None, list[Run]]:
    """The rate whose finished runs have the greatest median of `metric`, and those runs.

    Of equal medians the smallest rate is taken; `(None, [])` where no run has a value.
    """
    by_rate: dict[float, list[Run]] = {}
    for run in runs:
        if run.finished and run.last(metric) is not None:
            by_rate.setdefault(run.config.optimizer.lr, []).append(run)
    if not by_rate:
        return None, []
    medians = {rate: statistics.median(values_of(by_rate[rate], metric)) for rate in by_rate}
    rate = max(sorted(by_rate), key=medians.__getitem__)
    return rate, by_rate[rate]


def values_of(runs: Iterable[Run], metric: str) -> list[float]:
    """The last value of every run that has one."""
    return [value for run in runs if (value := run.last(metric)) is not None]
