"""From experiments to the tables of the results page, filled or not."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast, get_args

from statetrack.experiments import EXPERIMENTS
from statetrack.experiments._base import Scale, Version
from statetrack.experiments.plan import Plan
from statetrack.runs import StoredRun, find_runs

__all__ = ["LANGUAGE", "PAGES", "plans", "plans_for"]

PAGES: tuple[tuple[str, Scale, Version], ...] = (
    ("parity-diagonal", "paper", "iclr"),
    ("parity-far", "quick", "iclr"),
    ("chomsky", "paper", "ran"),
    ("chomsky", "quick", "iclr"),
    ("chomsky", "paper", "iclr"),
    ("arithmetic-far", "quick", "iclr"),
    ("s5", "paper", "iclr"),
    ("z60", "paper", "iclr"),
    ("signed-gates", "quick", "iclr"),
    ("signed-gates", "paper", "ran"),
    ("householders", "paper", "iclr"),
    ("repl", "quick", "iclr"),
    ("boxes", "quick", "iclr"),
    ("puzzles", "quick", "iclr"),
    ("recall", "quick", "iclr"),
    ("chess", "quick", "iclr"),
)
"""The tables of the results page, whether they have been run or not."""

LANGUAGE = "language"
"""The folder of language models, which no plan lists: see `experiments.language`."""

FOLDER = re.compile(
    rf"({'|'.join(EXPERIMENTS)})-({'|'.join(get_args(Scale))})(?:-({'|'.join(get_args(Version))}))?"
)


def plans(root: Path | str) -> list[Plan]:
    """`PAGES`, and whatever else has a folder of runs in `root`, in the order of `EXPERIMENTS`.

    A `ValueError` names a folder of runs whose name is no experiment, scale and version.
    """
    chosen = {plan.folder: plan for plan in (_plan(*page) for page in PAGES)}
    names = {run.place.path.relative_to(root).parts[0] for run in find_runs(root)}
    for name in sorted(names - chosen.keys() - {LANGUAGE}):
        plan = _plan_of(name)
        if plan is None:
            raise ValueError(
                f"{Path(root) / name} holds runs, but is not named as `statetrack reproduce` names "
                "folders: EXPERIMENT-SCALE, or EXPERIMENT-paper-VERSION"
            )
        chosen[name] = plan
    return _in_order(chosen)


def plans_for(paths: Iterable[Path | str], runs: Iterable[StoredRun]) -> list[Plan]:
    """What a page about the `runs` found in `paths` has tables of, filled or not.

    These are the plans whose folders are among `paths` or below them; of a folder of archives
    `PAGES` too.
    """
    roots = [Path(path).resolve() for path in paths]
    names: set[str] = set()
    for place in {run.place.path.resolve() for run in runs}:
        for root in roots:
            if place.is_relative_to(root):
                names |= {root.name, *place.relative_to(root).parts}
    found = {name: plan for name in sorted(names) if (plan := _plan_of(name)) is not None}
    if any(path.parent.name in found for root in roots for path in root.glob("*/runs.jsonl")):
        found = {plan.folder: plan for plan in (_plan(*page) for page in PAGES)} | found
    return _in_order(found)


def _plan_of(folder: str) -> Plan | None:
    """The plan whose runs go to a folder of that name."""
    match = FOLDER.fullmatch(folder)
    plan = match and _plan(match[1], cast(Scale, match[2]), cast(Version, match[3] or "iclr"))
    return plan if plan and plan.folder == folder else None


def _in_order(chosen: Mapping[str, Plan]) -> list[Plan]:
    order = list(EXPERIMENTS)
    return sorted(chosen.values(), key=lambda plan: order.index(plan.experiment))


def _plan(name: str, scale: Scale, version: Version) -> Plan:
    return EXPERIMENTS[name].plan(scale, version)
