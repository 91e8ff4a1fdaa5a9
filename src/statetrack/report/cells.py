"""The cells of a plan's tables: what was planned, and what its run folders say."""

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from statetrack.experiments.plan import Plan
from statetrack.report.paper import best_in_paper
from statetrack.report.tables import (
    Group,
    Row,
    group_of,
    labels,
    order,
    places,
    row,
    unique,
)
from statetrack.runs import StoredRun
from statetrack.runs.errors import reason_of
from statetrack.runs.labels import eigen_range, label, model_label
from statetrack.runs.selection import cell as cell_of
from statetrack.training import RunConfig

__all__ = ["KEYS", "Cell", "all_cells", "cells", "described", "summary_rows"]

KEYS = (
    "experiment",
    "task",
    "model",
    "eigen_range",
    "layers",
    "scale",
    "steps",
    "batch",
    "metric",
    "length",
    "operations",
    "best",
    "median",
    "spread",
    "seeds",
    "paper",
    "record",
)
"""Of a row of summary.json."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One model on one task.

    Attributes:
        plan: what it belongs to.
        config: one of its runs, made or planned.
        label: the model, with whatever tells it from the other models of that task.
        planned: the runs the plan has for it; empty for runs that are in no plan.
        group: the runs that were made, and their line of the table; `None` if there are none.
        only: what `statetrack reproduce --only` finds its runs by.
    """

    plan: Plan
    config: RunConfig
    label: str
    planned: tuple[RunConfig, ...]
    group: Group | None
    only: str

    @property
    def key(self) -> str:
        """What remarks call it."""
        return f"{self.plan.folder}/{self.config.learns.name}/{self.label}"

    @cached_property
    def row(self) -> Row | None:
        """Its numbers; `None` if no run of it has one."""
        return row(self.group) if self.group is not None and self.group.chosen else None

    @cached_property
    def best(self) -> StoredRun | None:
        """The run whose number stands in the table."""
        return self.group.ranked[0] if self.group is not None and self.group.chosen else None

    def command(self, out: str) -> str:
        """What to type to fill it."""
        return self.plan.command(out, self.only)

    def why_empty(self) -> str:
        """Why there is no number, in a few words."""
        errors = [run.error for run in self.group.runs if run.error] if self.group else []
        if errors:
            return reason_of(errors[0])
        return "not run" if self.group is None else "not finished"

    def unlike_the_plan(self) -> list[str]:
        """Where the runs that have a number are fewer or other than planned."""
        if self.group is None or not self.group.chosen:
            return []
        if not self.planned:
            return ["not in the experiment's list of runs"]
        said = []
        rates = sorted({config.optimizer.lr for config in self.planned})
        tried = sorted({run.config.optimizer.lr for run in self.group.runs if run.finished})
        if tried != rates:
            said.append(f"learning rate {_list(tried)} of {_list(rates)}")
        seeds = len({config.seed for config in self.planned})
        if len(self.group.chosen) < seeds:
            said.append(f"{len(self.group.chosen)} of {seeds} seeds")
        return said


def planned_names(plan: Plan) -> dict[str, str]:
    """Task and model of each of its cells, with whatever tells it from the others."""
    firsts = {cell_of(config): config for config in reversed(plan.configs)}
    named = zip(firsts.items(), labels(list(firsts.values())), strict=True)
    return {key: f"{config.subject} {name}" for (key, config), name in named}


def described(plan: Plan) -> list[str]:
    """Each of its runs in one line, by which `statetrack reproduce --only` chooses."""
    names = planned_names(plan)
    return [
        f"{names[cell_of(config)]}, lr {config.optimizer.lr:g}, {config.steps} steps, "
        f"seed {config.seed}"
        for config in plan.configs
    ]


def _only(names: Mapping[str, str]) -> dict[str, str]:
    """What each cell's runs are found by, and no other's: one name may be how another begins.

    >>> _only({"first": "boxes DeltaNet", "second": "boxes DeltaNet, then windows"})
    {'first': 'boxes DeltaNet, lr', 'second': 'boxes DeltaNet, then windows'}
    """
    return {
        key: f"{name}, lr" if any(n.startswith(f"{name}, ") for n in names.values()) else name
        for key, name in names.items()
    }


def _list(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def all_cells(plans: Sequence[Plan], runs: Iterable[StoredRun]) -> dict[str, list[Cell]]:
    """The cells of every plan, by its folder.

    A run counts in every table that has it in its list, whichever folder it lies in.
    """
    known = {plan.folder for plan in plans}
    by_folder: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_folder.setdefault(_folder_of(run, known) or "", []).append(run)
    return {plan.folder: cells(plan, _runs_for(plan, by_folder)) for plan in plans}


def _folder_of(run: StoredRun, known: set[str]) -> str | None:
    """Which of the `known` folders a run lies in, by their names; `None` if in none."""
    above = run.place.path.resolve().parents
    return next((folder.name for folder in above if folder.name in known), None)


def _runs_for(plan: Plan, runs: Mapping[str, Sequence[StoredRun]]) -> list[StoredRun]:
    """Those of the plan's folder; for what it lists and has not finished, those of others."""
    mine = unique(runs.get(plan.folder, ()))
    done = {run.config.fingerprint for run in mine if run.finished}
    wanted = {config.fingerprint for config in plan.configs} - done
    everywhere = (run for members in runs.values() for run in members if run.finished)
    found = {run.config.fingerprint: run for run in everywhere if run.config.fingerprint in wanted}
    return [*(run for run in mine if run.config.fingerprint not in found), *found.values()]


def cells(plan: Plan, runs: Iterable[StoredRun]) -> list[Cell]:
    """The plan's cells in its order, then those of runs that are not in it.

    A run belongs to a planned cell if it differs from the plan in seed, learning rate and how often
    it was looked at alone.
    """
    planned: dict[str, list[RunConfig]] = {}
    for config in plan.configs:
        planned.setdefault(cell_of(config), []).append(config)
    made: dict[str, list[StoredRun]] = {}
    for run in sorted(runs, key=lambda run: order(run.config)):
        made.setdefault(cell_of(run.config), []).append(run)
    keys = [*planned, *(key for key in made if key not in planned)]
    configs = [made[key][0].config if key in made else planned[key][0] for key in keys]
    chosen_by = _only(planned_names(plan))
    return [
        Cell(
            plan,
            config,
            name,
            tuple(planned.get(key, ())),
            group_of(name, made[key]) if key in made else None,
            chosen_by.get(key, label(config)),
        )
        for key, config, name in zip(keys, configs, labels(configs), strict=True)
    ]


def summary_rows(cell: Cell, root: Path) -> list[dict[str, Any]]:
    """The cell as rows of summary.json: `KEYS`, with `None` for what is not there.

    `spread` is highest minus lowest over the seeds; `record` is the path of the best run's
    records, from the folder that holds `root`. Where answers within a sequence count one by one
    (`Task.judged_by`), there follow rows for accuracy by `length`, in tokens, of answers between
    half of it and all of it, and by `operations` as the records have them.
    """
    first = _summary_row(cell, root)
    rows = [first]
    found = {} if cell.group is None else places(cell.group)
    for (length, operations), values in found.items():
        rows.append(
            first
            | {"metric": "accuracy", "length": length, "operations": operations}
            | {"best": max(values), "median": statistics.median(values), "seeds": len(values)}
            | {"spread": max(values) - min(values) if len(values) > 1 else None}
        )
    return rows


def _summary_row(cell: Cell, root: Path) -> dict[str, Any]:
    config, found, best = cell.config, cell.row, cell.best
    between = eigen_range(config)
    record = None
    if best is not None:
        record = Path(os.path.relpath(best.records_at.path, root.parent)).as_posix()
    values = (
        cell.plan.experiment,
        config.learns.name,
        model_label(config, with_range=False),
        None if between is None else list(between),
        config.model.backbone.num_layers,
        cell.plan.scale,
        config.steps,
        config.batch,
        config.metric,
        None,
        None,
        found and found.best,
        found and found.median,
        found and found.spread,
        0 if found is None else found.seeds,
        best_in_paper(config),
        record,
    )
    return dict(zip(KEYS, values, strict=True))
