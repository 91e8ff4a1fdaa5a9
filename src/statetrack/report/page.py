"""One self-contained page: everything in it is text made here, nothing is fetched.

Its tables are HTML. Its plots are drawn by its own script from numbers that stand in it as JSON
(`data`), so that a reader can filter, switch and zoom them.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from statetrack._extras import needs
from statetrack.experiments.plan import Plan
from statetrack.lm import PretrainConfig
from statetrack.report import looks
from statetrack.report.entries import MADE_IN, Entry, entries
from statetrack.report.exact import ExactRow
from statetrack.report.figures import Picture, curves_picture, slug, spectrum_picture
from statetrack.report.pretraining import Pretrained, measures_of, pretrained
from statetrack.report.spectra import Spectrum, spectrum
from statetrack.report.tables import (
    Absent,
    Curve,
    absent,
    by_length,
    by_operations,
    by_step,
    places,
    trained_tokens,
    variant_of,
)
from statetrack.runs import StoredRun
from statetrack.runs.stored import Place

__all__ = ["METRICS", "Block", "Report", "address", "build", "data", "pictures", "render"]

METRICS = {"scaled_accuracy": "scaled accuracy", "sequence_accuracy": "faultless sequences"}
KIND = "tagger"
"""The kind of run that has cells here. Runs of language models have a section of their own, and
runs of other kinds are listed with their last numbers."""

NEAR, FAR = 0.05, 0.25
"""How far from the paper's number a cell may be to count as equal to it, and as far off."""

FACETS = ("experiment", "scale", "version", "task", "model", "range")


@dataclass(frozen=True)
class Drawn:
    """An entry's curves; one without numbers has no points.

    Attributes:
        by_length: the metric against tokens read, on the test set.
        operations: accuracy against operations, for tasks that count them.
        losses, scores: training loss and validation score against steps.
        places: the best seed's accuracy by length (octaves) and by operations, for tasks whose
            answers count one by one; otherwise empty.
        spectrum: of the best run; `None` if no run has finished.
    """

    by_length: Curve
    operations: Curve
    losses: Curve
    scores: Curve
    places: dict[tuple[int | None, int | None], float]
    spectrum: Spectrum | None


@dataclass(frozen=True, eq=False)
class Block:
    """Models on one task, which are drawn side by side.

    Attributes:
        title: the experiment, its scale and the task.
        task, metric: what was learnt, and what it is judged by.
        trained_to: the longest sequence trained on, in tokens, if it is the same for all.
        members: places in `Report.entries`, with what is drawn of them.
    """

    title: str
    task: str
    metric: str
    trained_to: int | None
    members: dict[int, Drawn]


@dataclass(frozen=True, eq=False)
class HeatTable:
    """The models of an experiment against its tasks.

    Attributes:
        title, summary, command: of the plan; the last two are empty for runs of none.
        tasks: the columns.
        rows: label -> place in `Report.entries` by task.
        filled, cells: how many have a number, of how many.
    """

    title: str
    summary: str
    command: str
    tasks: tuple[str, ...]
    rows: dict[str, dict[str, int]]
    filled: int
    cells: int


@dataclass(frozen=True)
class OtherRun:
    """A run of a kind that has no table: its last numbers."""

    run: StoredRun
    kind: str
    numbers: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Report:
    """The page's content.

    Attributes:
        entries: every cell, filled or not.
        heat: the cells as tables, one for each experiment and scale.
        blocks: what is drawn.
        absent: runs that did not finish or have no number.
        pretrained: language models.
        others: runs of kinds that have no table.
        exact: runs whose machine was extracted, and compiled.
        runs, finished: how many there are.
    """

    entries: tuple[Entry, ...]
    heat: tuple[HeatTable, ...]
    blocks: tuple[Block, ...]
    absent: tuple[Absent, ...]
    pretrained: tuple[Pretrained, ...]
    others: tuple[OtherRun, ...]
    exact: tuple[ExactRow, ...]
    runs: int
    finished: int

    @property
    def models(self) -> list[tuple[int, Pretrained]]:
        """The language models, with their places behind all entries."""
        return list(enumerate(self.pretrained, len(self.entries)))

    @property
    def domains(self) -> list[str]:
        """Kinds of text that some language model was validated on."""
        lines = [line for one in self.pretrained for line in one.runs]
        return sorted({name for line in lines for name in line.domains})

    @property
    def filled(self) -> list[tuple[int, Entry]]:
        """The entries that some run was made for, with their places."""
        return [(i, one) for i, one in enumerate(self.entries) if one.group is not None]

    @property
    def empty(self) -> list[tuple[int, Entry]]:
        """The entries without a number, with their places."""
        return [(i, one) for i, one in enumerate(self.entries) if one.row is None]

    @property
    def against_paper(self) -> dict[str, int]:
        """How many cells are above, about equal to and below the paper's number, or empty."""
        known = [one for one in self.entries if one.paper is not None]
        gaps = [one.difference for one in known if one.difference is not None]
        return {
            "above": sum(gap > NEAR for gap in gaps),
            "equal": sum(abs(gap) <= NEAR for gap in gaps),
            "below": sum(gap < -NEAR for gap in gaps),
            "empty": len(known) - len(gaps),
        }

    @property
    def not_kept(self) -> dict[str, list[str]]:
        """Task -> models whose best run has neither an audit nor weights to look at."""
        found: dict[str, list[str]] = {}
        for block in self.blocks:
            for drawn in block.members.values():
                one = drawn.spectrum
                if one is not None and not one.kept:
                    labels = found.setdefault(block.task, [])
                    labels += [one.label] if one.label not in labels else []
        return found


# -- building -----------------------------------------------------------------------------------


def build(
    runs: Sequence[StoredRun],
    plans: Sequence[Plan] = (),
    *,
    remarks: Mapping[str, str] | None = None,
    exact: Sequence[ExactRow] = (),
) -> Report:
    """All tables of the page from the records of `runs`.

    Cells of `plans` that have no run are on it too, with the command that fills them. `remarks` are
    sentences about cells, by `Cell.key`; `exact` are the rows of the table of exact networks.
    """
    if not runs:
        raise ValueError(
            "there are no runs to report on; make some with `statetrack train`, `statetrack demo` "
            "or `statetrack reproduce` and give their folder"
        )
    shown = [run for run in runs if run.config.KIND == KIND]
    found = entries(plans, shown, remarks or {})
    groups = [one.group for one in found if one.group is not None]
    members = {run.config.fingerprint: run for group in groups for run in group.runs}
    models = pretrained([run for run in runs if isinstance(run.config, PretrainConfig)])
    others = tuple(
        _other(run)
        for run in runs
        if run.config.KIND != KIND and not isinstance(run.config, PretrainConfig)
    )
    apart = [*(line.run for one in models for line in one.runs), *(one.run for one in others)]
    lacking = {one.run: one for one in absent(groups)}
    return Report(
        entries=tuple(found),
        heat=tuple(_heat_tables(found)),
        blocks=tuple(_blocks(found)),
        absent=tuple(lacking.values()),
        pretrained=tuple(models),
        others=others,
        exact=tuple(exact),
        runs=len(members) + len(apart),
        finished=sum(run.finished for run in [*members.values(), *apart]),
    )


def _title(plan: Plan | None) -> str:
    if plan is None:
        return ""
    called = f"{plan.experiment} ({plan.paper_label})" if plan.paper_label else plan.experiment
    whose = f", version {plan.version}" if plan.version else ""
    return f"{called}, {plan.scale} scale{whose}"


def _folder(entry: Entry) -> str:
    return entry.plan.folder if entry.plan else ""


def _heat_tables(found: Sequence[Entry]) -> Iterable[HeatTable]:
    plans = {_folder(one): one.plan for one in found}
    for folder, plan in plans.items():
        mine = [(i, one) for i, one in enumerate(found) if _folder(one) == folder]
        rows: dict[str, dict[str, int]] = {}
        for i, one in mine:
            rows.setdefault(one.label, {})[one.task] = i
        yield HeatTable(
            title=_title(plan) or "Runs",
            summary=plan.summary if plan else "",
            command=plan.command(MADE_IN) if plan else "",
            tasks=tuple(dict.fromkeys(one.task for _, one in mine)),
            rows=rows,
            filled=sum(one.row is not None for _, one in mine),
            cells=len(mine),
        )


def _blocks(found: Sequence[Entry]) -> Iterable[Block]:
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for i, one in enumerate(found):
        if one.group is not None and one.group.chosen:
            grouped.setdefault((_folder(one), one.task, one.config.metric), []).append(i)
    for (_, task, metric), mine in grouped.items():
        ends = {trained_tokens(found[i].config) for i in mine}
        yield Block(
            title=": ".join(filter(None, (_title(found[mine[0]].plan), task))),
            task=task,
            metric=metric,
            trained_to=ends.pop() if len(ends) == 1 else None,
            members={i: _drawn(found[i]) for i in mine},
        )


def _drawn(entry: Entry) -> Drawn:
    group = entry.group
    assert group is not None
    return Drawn(
        by_length=by_length(group),
        operations=by_operations(group),
        losses=by_step(group, "loss", "train"),
        scores=by_step(group, group.metric, "validation"),
        places={place: max(values) for place, values in places(group).items()},
        spectrum=spectrum(group),
    )


def _other(run: StoredRun) -> OtherRun:
    last = {
        f"{record.split} {record.metric}": record.value for record in run.records if record.overall
    }
    return OtherRun(run, run.config.KIND, tuple(last.items()))


# -- what the script reads ----------------------------------------------------------------------


def data(report: Report) -> dict[str, Any]:
    """The numbers of the plots, and what every cell is, for filters."""
    facts = [*map(_facts, report.entries), *map(_model_facts, report.pretrained)]
    values = {name: list(dict.fromkeys(fact[name] for fact in facts)) for name in FACETS}
    values["range"].sort(key=_by_range)
    members = [(i, drawn) for block in report.blocks for i, drawn in block.members.items()]
    every: list[Entry | Pretrained] = [*report.entries, *report.pretrained]
    models = list(dict.fromkeys(one.model for one in every))
    measures = measures_of(report.pretrained)
    subjects = dict.fromkeys(one.subject for one in report.pretrained)
    return {
        "facets": {name: values[name] for name in FACETS},
        "facts": [[values[name].index(fact[name]) for name in FACETS] for fact in facts],
        "labels": [one.label for one in every],
        "variants": [
            *(variant_of(one.label, one.config) for one in report.entries),
            *(one.variant for one in report.pretrained),
        ],
        "words": [
            *map(_words, report.entries),
            *(f"{one.subject} {one.label}".lower() for one in report.pretrained),
        ],
        "models": models,
        "dashes": {name: looks.dashes_of(_range_of(name)) for name in values["range"]},
        "blocks": [
            {
                "title": block.title,
                "metric": METRICS[block.metric],
                "mark": block.trained_to,
                "cells": list(block.members),
            }
            for block in report.blocks
        ]
        + [
            {
                "title": subject,
                "metric": "loss",
                "mark": None,
                "cells": [i for i, one in report.models if one.subject == subject],
            }
            for subject in subjects
        ],
        "measures": {one.name: {"title": one.title, "close": one.by_domain} for one in measures},
        **{
            measure.name: {
                i: _numbers(one.curves[measure])
                for i, one in report.models
                if measure in one.curves
            }
            for measure in measures
        },
        "length": {i: _numbers(drawn.by_length) for i, drawn in members if drawn.by_length.points},
        "operations": {
            i: _numbers(drawn.operations) for i, drawn in members if drawn.operations.points
        },
        "loss": {i: _numbers(drawn.losses) for i, drawn in members if drawn.losses.points},
        "score": {i: _numbers(drawn.scores) for i, drawn in members if drawn.scores.points},
        "dots": {
            i: _dots(drawn.spectrum)
            for i, drawn in members
            if drawn.spectrum is not None and drawn.spectrum.dots
        },
    }


NO_RANGE, NO_PLAN = "none", "none"


def _facts(entry: Entry) -> dict[str, str]:
    plan = entry.plan
    return {
        "experiment": plan.experiment if plan else NO_PLAN,
        "scale": plan.scale if plan else NO_PLAN,
        "version": (plan.version if plan else None) or NO_PLAN,
        "task": entry.task,
        "model": entry.model,
        "range": entry.between or NO_RANGE,
    }


def _model_facts(one: Pretrained) -> dict[str, str]:
    return {
        "experiment": NO_PLAN,
        "scale": NO_PLAN,
        "version": NO_PLAN,
        "task": one.subject,
        "model": one.model,
        "range": one.between or NO_RANGE,
    }


def _by_range(name: str) -> tuple[bool, str]:
    return name == NO_RANGE, name


def _range_of(name: str) -> str | None:
    return None if name == NO_RANGE else name


def _words(entry: Entry) -> str:
    """What a search looks through."""
    plan = entry.plan
    said = (plan.experiment, plan.scale, plan.version, plan.paper_label) if plan else ()
    depth = f"{entry.layers} layer" + "s" * (entry.layers != 1)
    found = " ".join(filter(None, [*said, entry.task, entry.label, depth, entry.remark]))
    return found.lower()


def _numbers(curve: Curve) -> dict[str, Any]:
    """A curve as lists; `where` is left out where it is the unit and x."""
    found: dict[str, Any] = {
        "x": [_rounded(point.x) for point in curve.points],
        "y": [_rounded(point.middle) for point in curve.points],
        "seeds": curve.seeds,
    }
    if curve.seeds > 1:
        found["low"] = [_rounded(point.low) for point in curve.points]
        found["high"] = [_rounded(point.high) for point in curve.points]
    wheres = [point.where for point in curve.points]
    if wheres != [f"step {point.x:.0f}" for point in curve.points]:
        found["where"] = wheres
    return found


def _dots(found: Spectrum) -> dict[str, Any]:
    layers = sorted({dot.layer for dot in found.dots})
    mine = {layer: [dot for dot in found.dots if dot.layer == layer] for layer in layers}
    real = all(dot.imag == 0 for dot in found.dots)
    return {
        "lowest": None if found.lowest is None else _rounded(found.lowest),
        "seed": found.seed,
        "real": real,
        "layers": [
            {
                "layer": layer,
                "x": [_rounded(dot.real) for dot in mine[layer]],
                "y": [] if real else [_rounded(dot.imag) for dot in mine[layer]],
                "share": [float(f"{dot.share:.3g}") for dot in mine[layer]],
            }
            for layer in layers
        ],
    }


def _rounded(value: float) -> float | int:
    short = round(value, 4)
    return int(short) if short == int(short) else short


# -- plots as files -----------------------------------------------------------------------------


def pictures(report: Report) -> list[Picture]:
    """Every plot of the page, for `figures.to_png` and `to_svg`."""
    found: list[Picture | None] = []
    for index, block in enumerate(report.blocks, 1):
        name = "-".join(filter(None, (str(index), slug(block.title))))
        found += _block_pictures(block, name)
    found += _model_pictures(report.pretrained)
    return [picture for picture in found if picture is not None]


def _model_pictures(models: Sequence[Pretrained]) -> Iterable[Picture | None]:
    for subject in dict.fromkeys(one.subject for one in models):
        mine = [one for one in models if one.subject == subject]
        for measure in measures_of(mine):
            yield curves_picture(
                slug(f"pretraining-{subject}-{measure.title}"),
                f"{subject}: {measure.title}",
                [one.curves[measure] for one in mine if measure in one.curves],
                x_label="million tokens read",
                y_label=measure.title,
            )


def _block_pictures(block: Block, name: str) -> list[Picture | None]:
    metric = METRICS[block.metric]
    members = list(block.members.values())
    mark = None if block.trained_to is None else float(block.trained_to)
    found = [
        curves_picture(
            f"length-{name}",
            f"{block.title}: {metric} against length",
            [one.by_length for one in members],
            x_label="tokens read",
            y_label=metric,
            y_range=(-0.1, 1.04),
            mark=mark,
        ),
        curves_picture(
            f"operations-{name}",
            f"{block.title}: accuracy against operations",
            [one.operations for one in members],
            x_label="operations since last shown",
            y_label="accuracy",
            y_range=(-0.1, 1.04),
            log=True,
        ),
        curves_picture(
            f"loss-{name}",
            f"{block.title}: training loss",
            [one.losses for one in members],
            x_label="step",
            y_label="training loss",
        ),
        curves_picture(
            f"score-{name}",
            f"{block.title}: {metric} on the validation set",
            [one.scores for one in members],
            x_label="step",
            y_label=metric,
            y_range=(-0.1, 1.04),
        ),
    ]
    spectra = [one.spectrum for one in members if one.spectrum is not None and one.spectrum.dots]
    return [
        *found,
        *(
            spectrum_picture(f"spectrum-{name}-{i}", one, heading=f"{block.task}, {one.label}")
            for i, one in enumerate(spectra, 1)
        ),
    ]


# -- the page -----------------------------------------------------------------------------------


def render(report: Report, *, base: Path | None = None) -> str:
    """The page. The same report gives the same text.

    `base` is the folder that the page will be in: numbers are then links to the records behind
    them. Without it there are none, and the page needs no neighbours at all.
    """
    with needs("the report", "jinja2", "report"):
        import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    environment.filters["address"] = lambda place: address(place, base or Path())
    environment.filters["verdict"] = _verdict
    found = data(report)
    return environment.from_string(_resource("page.html.j2")).render(
        report=report,
        data=Markup(_script_json(found)),
        facets=[(name, found["facets"][name]) for name in FACETS if len(found["facets"][name]) > 1],
        planned=any(one.plan for one in report.entries),
        metrics=METRICS,
        near=NEAR,
        far=FAR,
        facts_of=_run_facts,
        config_of=_config_text,
        base=base,
        colours=Markup(_colours(found["models"])),
        css=Markup(_resource("page.css")),
        js=Markup(_resource("page.js")),
    )


def _colours(models: Sequence[str]) -> str:
    """A variable for each model, for a light and for a dark page."""
    found = [looks.colour_of(model) for model in models]
    light = "".join(f"--c{i}:{colour.light};" for i, colour in enumerate(found))
    dark = "".join(f"--c{i}:{colour.dark};" for i, colour in enumerate(found))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _script_json(found: Mapping[str, Any]) -> str:
    """JSON that ends no script element and opens no comment."""
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _verdict(gap: float | None) -> str:
    """How our number stands to the paper's: a class of page.css.

    >>> [_verdict(gap) for gap in (None, -0.5, -0.1, 0.0, 0.1, 0.5)]
    ['unknown', 'far-below', 'below', 'equal', 'above', 'far-above']
    """
    if gap is None:
        return "unknown"
    if abs(gap) <= NEAR:
        return "equal"
    where = "above" if gap > 0 else "below"
    return where if abs(gap) < FAR else f"far-{where}"


def _run_facts(run: StoredRun) -> dict[str, str]:
    """A run's circumstances, in words; what is not known is left out."""
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
    return {name: str(fact) for name, fact in facts.items() if fact}


def _config_text(run: StoredRun) -> str:
    return json.dumps(run.config.to_dict(), indent=1, sort_keys=True)


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
