"""One page for each question: the answer first, then one picture, then the table.

Every number and every verdict is made from the runs, so that a new run changes the page.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from statetrack.experiments.chomsky import SIGNED
from statetrack.experiments.recipes import rebuilt
from statetrack.report import looks
from statetrack.report.cells import Cell
from statetrack.report.entries import MADE_IN
from statetrack.report.figures import AXES_GREY, DPI, Picture, drawing
from statetrack.report.page import METRICS
from statetrack.runs.labels import label, model_label
from statetrack.runs.selection import cell as cell_of
from statetrack.runs.selection import values_of
from statetrack.runs.stored import Place

__all__ = [
    "EXTENDED",
    "QUESTIONS",
    "USUAL",
    "Link",
    "Pair",
    "Question",
    "answer",
    "missing_table",
    "pairs",
    "pairs_picture",
    "pairs_table",
]

USUAL, EXTENDED = "[0, 1]", "[-1, 1]"
LEAST = 0.02
"""Medians that are nearer to one another are told as equal."""
GUESS = 0.1
"""A pair whose best seed of either range is below it says nothing at the lengths it is judged at,
however well it does at those of training."""
VERDICTS = ("better", "worse", "alike", "open", "near a guess", "one seed")


@dataclass(frozen=True)
class Question:
    """A page.

    Attributes:
        name, title: of the file, and the question itself.
        experiments: whose runs answer it.
        why: what one would expect, in a sentence or two without numbers.
        costs: whether it asks for harm instead of help.
    """

    name: str
    title: str
    experiments: tuple[str, ...]
    why: str
    costs: bool = False


QUESTIONS = (
    Question(
        "groups",
        "Does [-1, 1] matter for parity and groups?",
        (
            "parity-diagonal",
            "parity-far",
            "chomsky",
            "arithmetic-far",
            "s5",
            "z60",
            "signed-gates",
            "householders",
            "puzzles",
        ),
        "Parity needs an eigenvalue at -1. A permutation is a product of reflections, which have "
        "one at -1 each. With [0, 1] a state can be kept or forgotten, but not moved.",
    ),
    Question(
        "code",
        "Does [-1, 1] matter for traces of code and for boxes?",
        ("repl", "boxes"),
        "A swap of two variables, or of the contents of two boxes, is one reflection. Replacing "
        "and emptying are not: there both ranges should do alike.",
    ),
    Question(
        "chess",
        "Does [-1, 1] matter for the position on a chess board?",
        ("chess",),
        "A move carries a piece from one square to another. With [0, 1] every hop of a piece "
        "should cost some of what is known about it.",
    ),
    Question(
        "controls",
        "Does [-1, 1] cost anything where it is not needed?",
        ("recall",),
        "Recall, flip-flop and copying need what was written to be kept and overwritten, which "
        "[0, 1] can do. Overwriting exactly is an end of the range [0, 1] and the middle of "
        "[-1, 1], which may be harder to learn.",
        costs=True,
    ),
)


@dataclass(frozen=True, eq=False)
class Pair:
    """One model on one task in both ranges; a cell that was not run has no numbers."""

    usual: Cell
    extended: Cell

    @property
    def task(self) -> str:
        return self.extended.config.learns.name

    @property
    def model(self) -> str:
        """With whatever tells it from others of that task, without the range."""
        return re.sub(r" \[-?\d, 1\]", "", self.extended.label)

    @property
    def scale(self) -> str:
        """In words, with the paper's version where it has one."""
        plan = self.extended.plan
        return " ".join(filter(None, (plan.scale, plan.version)))

    @cached_property
    def seeds(self) -> tuple[list[float], list[float]]:
        """The numbers of all seeds, usual range first."""
        return _values(self.usual), _values(self.extended)

    @property
    def complete(self) -> bool:
        return all(self.seeds)

    @property
    def difference(self) -> float:
        """Of the medians."""
        assert self.usual.row is not None and self.extended.row is not None
        assert self.usual.row.median is not None and self.extended.row.median is not None
        return self.extended.row.median - self.usual.row.median

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`.

        `better` and `worse` are what all seeds agree on; `alike` are medians within `LEAST`, and
        `open` is a wider gap where the seeds of both ranges overlap.
        """
        before, after = self.seeds
        if min(len(before), len(after)) < 2:
            return "one seed"
        if max(*before, *after) < GUESS:
            return "near a guess"
        if abs(self.difference) < LEAST:
            return "alike"
        if min(after) > max(before):
            return "better"
        return "worse" if max(after) < min(before) else "open"


def _values(cell: Cell) -> list[float]:
    return [] if cell.group is None else values_of(cell.group.chosen, cell.group.metric)


def pairs(tables: Mapping[str, Sequence[Cell]], question: Question) -> list[Pair]:
    """Cells that differ in the range alone, plan by plan."""
    found = []
    for table in tables.values():
        mine = [cell for cell in table if cell.plan.experiment in question.experiments]
        usual = {key: cell for cell in mine if USUAL in cell.label for key in _keys(cell)}
        for cell in mine:
            if EXTENDED in cell.label:
                other = next((usual[key] for key in _keys(cell) if key in usual), None)
                found += [] if other is None else [Pair(other, cell)]
    return found


def _keys(cell: Cell) -> list[tuple[str, str, str]]:
    """What both cells of a pair have in common: all settings but the range, or else the label.

    The settings come first: a label names only those that its own range has several of.
    """
    mixers = [
        (mixer.layer, {**mixer.options, "eigen_range": SIGNED})
        for mixer in cell.config.model.backbone.mixers
    ]
    config = dataclasses.replace(cell.config, model=rebuilt(cell.config.model, mixers=mixers))
    without = cell.label.replace(EXTENDED, "").replace(USUAL, "")
    place = cell.plan.folder, cell.config.learns.name
    return [(*place, cell_of(config)), (*place, without)]


def answer(question: Question, found: Sequence[Pair]) -> str:
    """The first sentence of the page, and a second one with the numbers behind it."""
    known = [pair for pair in found if pair.complete]
    if not known:
        return "Not known: none of the pairs below has been run in both ranges."
    by = {name: [p for p in known if p.verdict == name] for name in VERDICTS}
    alone = len(known) == 1
    run = "the one pair" if alone else f"{len(known)} pairs"
    run += " of models run in both ranges"
    lead, other = ("worse", "better") if question.costs else ("better", "worse")
    every = f"every seed with {EXTENDED}"
    in_none = f"in {run} not {every} is" if alone else f"in none of the {run} is {every}"
    if by[lead]:
        most = max(by[lead], key=lambda pair: abs(pair.difference))
        some = run if alone else f"{len(by[lead])} of the {run}"
        said = [
            f"Yes, in {some}: {every} is {lead} there than every seed with {USUAL}.",
            f"The widest gap is {_in_words(most)}.",
        ]
    elif by["open"] or not (by["alike"] or by[other]):
        said = [f"Not settled: {in_none} {lead} than every one of {USUAL}."]
    else:
        said = [f"No: {in_none} {lead} than every seed with {USUAL}."]
    if by["alike"]:
        there = "There" if alone else f"In {len(by['alike'])}"
        said.append(f"{there} the medians are within {LEAST}.")
    if by["open"]:
        most = max(by["open"], key=lambda pair: abs(pair.difference))
        there = "There" if alone else f"In {len(by['open'])}"
        said.append(
            f"{there} the medians are apart but the seeds overlap, the widest is {_in_words(most)}."
        )
    if by[other]:
        most = max(by[other], key=lambda pair: abs(pair.difference))
        said.append(f"It is the other way round in {len(by[other])}: {_in_words(most)}.")
    if by["near a guess"]:
        count = len(by["near a guess"])
        said.append(f"Near a guess in both ranges at the lengths judged, and so mute: {count}.")
    if by["one seed"]:
        said.append(f"With one seed, too few to say: {len(by['one seed'])}.")
    if len(known) < len(found):
        missing = len(found) - len(known)
        said.append(f"Open, because not run in both ranges: {missing} of {len(found)}.")
    return " ".join(said)


def _in_words(pair: Pair) -> str:
    before, after = pair.usual.row, pair.extended.row
    assert before is not None and after is not None
    assert before.median is not None and after.median is not None
    return (
        f"{pair.model} on {pair.task}: {before.median:z.3f} with {USUAL}, {after.median:z.3f} with "
        f"{EXTENDED}"
    )


Link = Callable[[str, Place], str]
"""A text and where it was read -> a link."""


def pairs_table(found: Sequence[Pair], link: Link) -> list[str]:
    """A line for each pair of which something was run: the medians, linked to their records."""
    run = [pair for pair in found if any(pair.seeds)]
    lines = []
    if run:
        lines = [
            f"| task | model | layers | scale | {USUAL} | {EXTENDED} | difference | seeds "
            f"| steps × batch | every seed with {EXTENDED} is |",
            "|---|---|--:|---|--:|--:|--:|--:|--:|---|",
        ]
    for pair in run:
        config = pair.extended.config
        columns = [
            pair.task,
            pair.model,
            str(config.model.backbone.num_layers),
            pair.scale,
            *(_median(cell, link) for cell in (pair.usual, pair.extended)),
            f"{pair.difference:+.3f}" if pair.complete else "",
            " / ".join(str(len(values)) for values in pair.seeds),
            f"{config.steps:,} × {config.batch}",
            pair.verdict if pair.complete else f"not run: `{_command(pair)}`",
        ]
        lines.append(_line(columns))
    return lines


def missing_table(found: Sequence[Pair]) -> list[str]:
    """A line for each of the others: the command that runs it."""
    left = [pair for pair in found if not any(pair.seeds)]
    if not left:
        return []
    lines = ["\n## Not run\n", "| task | model | layers | scale | command |"]
    lines.append("|---|---|--:|---|---|")
    for pair in left:
        layers = str(pair.extended.config.model.backbone.num_layers)
        lines.append(_line([pair.task, pair.model, layers, pair.scale, f"`{_command(pair)}`"]))
    return lines


def _line(columns: Sequence[str]) -> str:
    return "| " + " | ".join(column.replace("|", "\\|") for column in columns) + " |"


def _median(cell: Cell, link: Link) -> str:
    if cell.row is None or cell.row.median is None:
        return ""
    return link(f"{cell.row.median:z.3f}", cell.row.behind[1].records_at)


def _command(pair: Pair) -> str:
    """What fills the empty half of a pair, or both."""
    before, after = pair.seeds
    if before or after:
        return (pair.usual if not before else pair.extended).command(MADE_IN)
    name = label(pair.extended.config).partition(EXTENDED)[0]
    return pair.extended.plan.command(MADE_IN, f"{name}[")


# -- the picture --------------------------------------------------------------------------------


def pairs_picture(name: str, title: str, found: Sequence[Pair]) -> Picture | None:
    """A line for each pair, from the median with [0, 1] (a ring) to that with [-1, 1] (a dot).

    Small ticks are the seeds. What was not run in both ranges is left out.
    """
    known = [pair for pair in found if pair.complete]
    if not known:
        return None
    make, context = drawing()
    height = 0.75 + 0.2 * len(known)
    with context:
        figure = make(figsize=(6.6, height), dpi=DPI)
        axes = figure.add_axes((0.42, 0.42 / height, 0.55, (height - 0.75) / height))
    for place, pair in enumerate(known):
        before, after = pair.usual.row, pair.extended.row
        assert before is not None and after is not None
        colour = looks.colour_of(model_label(pair.extended.config, with_range=False)).light
        assert before.median is not None and after.median is not None
        axes.plot([before.median, after.median], [place, place], color=colour, linewidth=1.2)
        for values in pair.seeds:
            axes.plot(values, [place] * len(values), "|", color=AXES_GREY, markersize=6)
        axes.plot(before.median, place, "o", mfc="white", mec=colour, markersize=6)
        axes.plot(after.median, place, "o", color=colour, markersize=6)
    names = [f"{pair.task}: {pair.model}, {pair.scale}" for pair in known]
    axes.set_yticks(range(len(known)), names, fontsize=7)
    axes.set_ylim(len(known) - 0.4, -0.6)
    low = min(min(values) for pair in known for values in pair.seeds)
    axes.set_xlim(min(-0.05, low - 0.03), 1.04)
    axes.tick_params(axis="x", labelsize=8)
    metrics = sorted({METRICS[pair.extended.row.metric] for pair in known if pair.extended.row})
    axes.set_xlabel(" or ".join(metrics), fontsize=8)
    said = f"ring: median with {USUAL}; dot: with {EXTENDED}; ticks: seeds"
    figure.text(0.98, 1 - 0.05 / height, said, ha="right", va="top", fontsize=8)
    return Picture(name, title, figure)
