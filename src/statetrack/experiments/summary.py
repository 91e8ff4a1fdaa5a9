"""From runs to a table, by the paper's rule: pick the rate by its median, report the best seed.

And from experiments to the tables that the results page has, filled or not.
"""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from statetrack.experiments import EXPERIMENTS
from statetrack.experiments._base import Scale, Version
from statetrack.training import Run, find_runs
from statetrack.training.plans import Plan
from statetrack.training.progress import model_label
from statetrack.training.selection import best_rate, values_of

__all__ = ["Cell", "cells", "plans"]

PAGES: tuple[tuple[str, Scale, Version], ...] = (
    ("parity-diagonal", "paper", "iclr"),
    ("chomsky", "paper", "ran"),
    ("chomsky", "quick", "iclr"),
    ("chomsky", "paper", "iclr"),
    ("s5", "paper", "iclr"),
    ("z60", "paper", "iclr"),
    ("signed-gates", "quick", "iclr"),
    ("signed-gates", "paper", "ran"),
    ("householders", "paper", "iclr"),
)
"""The tables of the results page, whether they have been run or not."""

FOLDER = re.compile(
    rf"({'|'.join(EXPERIMENTS)})-({'|'.join(get_args(Scale))})(?:-({'|'.join(get_args(Version))}))?"
)


def plans(root: Path | str) -> list[Plan]:
    """`PAGES`, and whatever else has a folder of runs in `root`, in the order of `EXPERIMENTS`.

    A `ValueError` names a folder of runs whose name is no experiment, scale and version.
    """
    chosen = {plan.folder: plan for plan in (_plan(*page) for page in PAGES)}
    names = {run.folder.relative_to(root).parts[0] for run in find_runs(root)}
    for name in sorted(names - chosen.keys()):
        match = FOLDER.fullmatch(name)
        plan = match and _plan(match[1], cast(Scale, match[2]), cast(Version, match[3] or "iclr"))
        if not plan or plan.folder != name:
            raise ValueError(
                f"{Path(root) / name} holds runs, but is not named as `statetrack reproduce` names "
                "folders: EXPERIMENT-SCALE, or EXPERIMENT-paper-VERSION"
            )
        chosen[name] = plan
    order = list(EXPERIMENTS)
    return sorted(chosen.values(), key=lambda plan: order.index(plan.experiment))


def _plan(name: str, scale: Scale, version: Version) -> Plan:
    experiment = EXPERIMENTS[name]
    return Plan(
        experiment=name,
        summary=experiment.summary,
        paper_label=experiment.aliases[0].replace("-", " ") if experiment.aliases else None,
        scale=scale,
        version=version if scale == "paper" else None,
        configs=tuple(experiment.runs(scale, version)),
    )


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
