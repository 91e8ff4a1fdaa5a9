"""What the page shows of one model on one task: a cell of a plan, or runs that belong to none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from statetrack.experiments.plan import Plan
from statetrack.report.cells import all_cells
from statetrack.report.paper import best_in_paper
from statetrack.report.tables import Group, Row, group_runs, range_label, row
from statetrack.runs import StoredRun
from statetrack.runs.labels import model_label
from statetrack.training import RunConfig

__all__ = ["MADE_IN", "Entry", "entries"]

MADE_IN = "runs"
"""Where the commands of a page put new runs; `statetrack archive` carries them over."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One model on one task.

    Attributes:
        plan: what it belongs to, if anything.
        config: one of its runs, made or planned.
        label: the model, with whatever tells it from the other models of that task.
        group: the runs that were made; `None` if there are none.
        command: what to type to fill it; `None` for runs of no plan.
        why_empty: why it has no number; `None` where it has one.
        remark: what there is to say about it, or nothing.
    """

    plan: Plan | None
    config: RunConfig
    label: str
    group: Group | None
    command: str | None
    why_empty: str | None
    remark: str

    @property
    def task(self) -> str:
        return self.config.learns.name

    @cached_property
    def model(self) -> str:
        """Without its range."""
        return model_label(self.config, with_range=False)

    @cached_property
    def between(self) -> str | None:
        """Its range in words."""
        return range_label(self.config)

    @property
    def layers(self) -> int:
        return self.config.model.backbone.num_layers

    @cached_property
    def row(self) -> Row | None:
        """Its numbers; `None` if there is none."""
        return row(self.group) if self.group is not None and self.group.chosen else None

    @cached_property
    def paper(self) -> float | None:
        return best_in_paper(self.config)

    @property
    def difference(self) -> float | None:
        """Our best minus the paper's, where there are both."""
        if self.row is None or self.row.best is None or self.paper is None:
            return None
        return self.row.best - self.paper


def entries(
    plans: Sequence[Plan], runs: Sequence[StoredRun], remarks: Mapping[str, str]
) -> list[Entry]:
    """The cells of all plans in their order, then the runs that are in none of them."""
    found = []
    for table in all_cells(plans, runs).values():
        for cell in table:
            short = cell.unlike_the_plan()
            said = [remarks.get(cell.key, ""), f"({', '.join(short)})" if short else ""]
            found.append(
                Entry(
                    plan=cell.plan,
                    config=cell.config,
                    label=cell.label,
                    group=cell.group,
                    command=cell.command(MADE_IN) if cell.planned else None,
                    why_empty=cell.why_empty() if cell.row is None else None,
                    remark=" ".join(filter(None, said)),
                )
            )
    planned = {
        run.config.fingerprint for one in found if one.group is not None for run in one.group.runs
    }
    return [*found, *_of_no_plan(run for run in runs if run.config.fingerprint not in planned)]


def _of_no_plan(strangers: Iterable[StoredRun]) -> list[Entry]:
    return [
        Entry(
            plan=None,
            config=group.config,
            label=group.label,
            group=group,
            command=None,
            why_empty=None if group.chosen else "no finished run has a number",
            remark="",
        )
        for group in group_runs(strangers)
    ]
