"""One self-contained page: everything in it is text made here, nothing is fetched."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from statetrack.report import figures
from statetrack.report.figures import Picture, Style, curves_picture, spectrum_picture
from statetrack.report.spectra import Spectrum, spectrum
from statetrack.report.tables import (
    Absent,
    Curve,
    Group,
    Row,
    absent,
    by_length,
    by_step,
    group_runs,
    row,
    trained_tokens,
)
from statetrack.runs import StoredRun
from statetrack.runs.stored import Place

__all__ = ["Report", "TaskReport", "address", "build", "pictures", "render"]

METRICS = {"scaled_accuracy": "scaled accuracy", "sequence_accuracy": "faultless sequences"}


@dataclass(frozen=True)
class TaskReport:
    """What there is to show of one task.

    Attributes:
        name, metric: the task, and what its runs are judged by.
        trained_to: the longest word trained on, in tokens, for each such length among the runs.
        rows: the table.
        by_length, losses, scores: curves; a group without numbers has none.
        spectra: one for each group that has a finished run.
    """

    name: str
    metric: str
    trained_to: tuple[int, ...]
    rows: tuple[Row, ...]
    by_length: tuple[Curve, ...]
    losses: tuple[Curve, ...]
    scores: tuple[Curve, ...]
    spectra: tuple[Spectrum, ...]


@dataclass(frozen=True)
class ConfigEntry:
    """A run's config and circumstances, as text."""

    run: str
    label: str
    finished: bool
    facts: tuple[tuple[str, str], ...]
    config: str


@dataclass(frozen=True)
class Report:
    """The page's content."""

    tasks: tuple[TaskReport, ...]
    configs: tuple[ConfigEntry, ...]
    absent: tuple[Absent, ...]
    runs: int
    finished: int

    @property
    def not_kept(self) -> dict[str, list[str]]:
        """Task -> models whose best run has neither an audit nor weights to look at."""
        found: dict[str, list[str]] = {}
        for task in self.tasks:
            for one in task.spectra:
                if not one.kept:
                    found.setdefault(task.name, []).append(one.label)
        return found


def build(runs: Sequence[StoredRun]) -> Report:
    """All tables of the page from the records of `runs`."""
    if not runs:
        raise ValueError(
            "there are no runs to report on; make some with `statetrack train`, `statetrack demo` "
            "or `statetrack reproduce` and give their folder"
        )
    groups = group_runs(runs)
    by_task: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        by_task.setdefault((group.task, group.metric), []).append(group)
    members = [(group, run) for group in groups for run in group.runs]
    return Report(
        tasks=tuple(_task_report(*key, members) for key, members in by_task.items()),
        configs=tuple(_config_entry(group, run) for group, run in members),
        absent=tuple(absent(groups)),
        runs=len(members),
        finished=sum(run.finished for _, run in members),
    )


def _task_report(name: str, metric: str, groups: list[Group]) -> TaskReport:
    spectra = [spectrum(group) for group in groups]
    return TaskReport(
        name=name,
        metric=metric,
        trained_to=tuple(sorted({trained_tokens(group.config) for group in groups})),
        rows=tuple(row(group) for group in groups),
        by_length=_drawn(by_length(group) for group in groups),
        losses=_drawn(by_step(group, "loss", "train") for group in groups),
        scores=_drawn(by_step(group, metric, "validation") for group in groups),
        spectra=tuple(one for one in spectra if one is not None),
    )


def _drawn(curves: Any) -> tuple[Curve, ...]:
    return tuple(curve for curve in curves if curve.points)


def _config_entry(group: Group, run: StoredRun) -> ConfigEntry:
    info = run.info
    hardware, versions = info.get("hardware", {}), info.get("versions", {})
    facts = {
        "wall time": f"{info['wall_s']:.1f} s" if "wall_s" in info else None,
        "device": info.get("device"),
        "processor": hardware.get("gpu") or hardware.get("processor"),
        "parameters": info.get("parameters"),
        "numbers in the state": info.get("state_size"),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    }
    config = run.config
    label = f"{config.learns.name}, {group.label}, lr {config.optimizer.lr:g}, seed {config.seed}"
    return ConfigEntry(
        run=run.name,
        label=label,
        finished=run.finished,
        facts=tuple((name, str(fact)) for name, fact in facts.items() if fact),
        config=json.dumps(config.to_dict(), indent=1, sort_keys=True),
    )


@dataclass(frozen=True, eq=False)
class TaskPictures:
    """The pictures of one task; `None` where there is nothing to draw."""

    by_length: Picture | None
    losses: Picture | None
    scores: Picture | None
    spectra: tuple[tuple[Spectrum, Picture | None], ...]

    def all(self) -> list[Picture]:
        found = [self.by_length, self.losses, self.scores, *(p for _, p in self.spectra)]
        return [picture for picture in found if picture is not None]


def pictures(
    task: TaskReport, index: int, style: dict[str, Style], *, legend: bool
) -> TaskPictures:
    """The task's pictures; `index` tells their names from those of other tasks."""
    metric = METRICS[task.metric]
    slug = re.sub(r"[^a-z0-9]+", "-", task.name.lower()).strip("-")
    name = f"{index}-{slug}" if slug else str(index)
    mark = float(task.trained_to[0]) if len(task.trained_to) == 1 else None
    shape: dict[str, Any] = {"style": style, "legend": legend}
    return TaskPictures(
        by_length=curves_picture(
            f"length-{name}",
            f"{task.name}: {metric} against length",
            task.by_length,
            x_label="tokens read",
            y_label=metric,
            y_range=(-0.1, 1.04),
            mark=mark,
            **shape,
        )
        if task.by_length
        else None,
        losses=curves_picture(
            f"loss-{name}",
            f"{task.name}: training loss",
            task.losses,
            x_label="step",
            y_label="training loss",
            **shape,
        )
        if task.losses
        else None,
        scores=curves_picture(
            f"score-{name}",
            f"{task.name}: {metric} on the validation set",
            task.scores,
            x_label="step",
            y_label=metric,
            y_range=(-0.1, 1.04),
            **shape,
        )
        if task.scores
        else None,
        spectra=tuple(
            (one, spectrum_picture(f"spectrum-{name}-{i}", one) if one.dots else None)
            for i, one in enumerate(task.spectra, 1)
        ),
    )


def report_styles(report: Report) -> dict[str, Style]:
    """One style for each model, the same for every task."""
    return figures.styles([row.model for task in report.tasks for row in task.rows])


def render(report: Report, *, base: Path | None = None) -> str:
    """The page. The same report gives the same text.

    `base` is the folder that the page will be in: numbers are then links to the records behind
    them. Without it there are none, and the page needs no neighbours at all.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("the report needs jinja2: pip install 'statetrack[report]'") from error
    from markupsafe import Markup

    def svg(picture: Picture) -> Markup:
        return Markup(figures.to_svg(picture))  # made here, with every name in it escaped

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    environment.filters["address"] = lambda place: address(place, base or Path())
    style = report_styles(report)
    shown = [
        (task, pictures(task, index, style, legend=False))
        for index, task in enumerate(report.tasks, 1)
    ]
    return environment.from_string(_resource("page.html.j2")).render(
        report=report,
        tasks=shown,
        style=style,
        metrics=METRICS,
        svg=svg,
        base=base,
        css=Markup(_resource("page.css")),
        js=Markup(_resource("page.js")),
    )


def address(place: Place, base: Path) -> str:
    """A relative link to `place` from a page in the folder `base`.

    >>> address(Place(Path("results/a b/runs.jsonl"), 3), Path("docs"))
    '../results/a%20b/runs.jsonl#L3'
    """
    relative = os.path.relpath(place.path.resolve(), base.resolve())
    line = "" if place.line is None else f"#L{place.line}"
    return quote(Path(relative).as_posix()) + line


def _resource(name: str) -> str:
    return resources.files("statetrack.report").joinpath(name).read_text(encoding="utf-8")


def _number(value: float | None, form: str = "{:z.3f}") -> str:
    """A number, or a dash for one that is not there."""
    return "–" if value is None else form.format(value)
