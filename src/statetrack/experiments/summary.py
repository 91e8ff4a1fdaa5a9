"""From runs to a table, by the paper's rule: pick the rate by its median, report the best seed."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from statetrack.training import Run
from statetrack.training.progress import model_label
from statetrack.training.selection import best_rate, values_of

__all__ = ["Cell", "cells"]


@dataclass(frozen=True)
class Cell:
    """One model on one task.

    Attributes:
        task, model, layers: which.
        rate: the learning rate whose median over seeds is the greatest.
        best: the greatest value over its seeds.
        median, deviation: the median over its seeds, and the median distance from it.
        seeds: how many runs of that rate there are.
        missing: runs of this cell, of any rate, that have no value.
    """

    task: str
    model: str
    layers: int
    rate: float | None
    best: float | None
    median: float | None
    deviation: float | None
    seeds: int
    missing: int


def cells(runs: Iterable[Run], metric: str = "scaled_accuracy") -> list[Cell]:
    """A cell for every task, model and depth among `runs`, in the order they come."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        config = run.config
        key = (config.task, model_label(config), config.model.num_layers)
        groups.setdefault(key, []).append(run)
    return [_cell(key, members, metric) for key, members in groups.items()]


def _cell(key: tuple[str, str, int], runs: list[Run], metric: str) -> Cell:
    missing = sum(1 for run in runs if not run.finished or run.last(metric) is None)
    rate, chosen = best_rate(runs, metric)
    if rate is None:
        return Cell(*key, None, None, None, None, 0, missing)
    values = values_of(chosen, metric)
    median = statistics.median(values)
    deviation = statistics.median(abs(value - median) for value in values)
    return Cell(*key, rate, max(values), median, deviation, len(values), missing)
