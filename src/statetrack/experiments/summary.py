"""From experiments to the tables of the results page, filled or not."""

import re
from pathlib import Path
from typing import cast, get_args

from statetrack.experiments import EXPERIMENTS
from statetrack.experiments._base import Scale, Version
from statetrack.experiments.plan import Plan
from statetrack.runs import find_runs

__all__ = ["PAGES", "plans"]

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
    ("repl", "quick", "iclr"),
    ("boxes", "quick", "iclr"),
    ("puzzles", "quick", "iclr"),
    ("recall", "quick", "iclr"),
    ("chess", "quick", "iclr"),
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
    names = {run.place.path.relative_to(root).parts[0] for run in find_runs(root)}
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
    return EXPERIMENTS[name].plan(scale, version)
