"""One page for each question: the answer first, then one picture, then the table.

Every number and every verdict is made from the runs, so that a new run changes the page.
"""

import dataclasses
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from statetrack.experiments.chomsky import SIGNED
from statetrack.experiments.recipes import rebuilt
from statetrack.report import looks
from statetrack.report.cells import Cell
from statetrack.report.entries import MADE_IN
from statetrack.report.figures import AXES_GREY, DPI, Picture, drawing
from statetrack.report.markdown import table_line
from statetrack.report.page import METRICS
from statetrack.report.tables import in_training
from statetrack.runs.labels import label, model_label
from statetrack.runs.selection import cell as cell_of
from statetrack.runs.selection import values_of
from statetrack.runs.stored import Place, StoredRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
"""A pair whose best seed of either range is below it says nothing at the lengths it is judged at;
what can be said of it is said of training."""
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

    @cached_property
    def learnt(self) -> tuple[list[float], list[float]]:
        """The same of training itself: see `in_training`."""
        return _learnt(self.usual), _learnt(self.extended)

    @property
    def complete(self) -> bool:
        return all(self.seeds)

    @property
    def difference(self) -> float:
        """Of the medians."""
        return _gap(*self.seeds)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, of the lengths judged."""
        return _verdict(*self.seeds)

    @property
    def verdict_in_training(self) -> str:
        """One of `VERDICTS`, of the lengths of training."""
        return _verdict(*self.learnt)


def _verdict(before: Sequence[float], after: Sequence[float]) -> str:
    """`better` and `worse` are what all seeds agree on.

    `alike` are medians within `LEAST`, and `open` is a wider gap where the seeds of both ranges
    overlap.
    """
    if min(len(before), len(after)) < 2:
        return "one seed"
    if max(*before, *after) < GUESS:
        return "near a guess"
    if abs(_gap(before, after)) < LEAST:
        return "alike"
    if min(after) > max(before):
        return "better"
    return "worse" if max(after) < min(before) else "open"


def _values(cell: Cell) -> list[float]:
    return [] if cell.group is None else values_of(cell.group.chosen, cell.group.metric)


def _learnt(cell: Cell) -> list[float]:
    return [value for value, _ in _runs_learnt(cell)]


def _runs_learnt(cell: Cell) -> list[tuple[float, StoredRun]]:
    """The runs whose numbers stand in the table, with those of training."""
    chosen = [] if cell.group is None else cell.group.chosen
    return [(value, run) for run in chosen if (value := in_training(run)) is not None]


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
        said.append(_of_training(by["near a guess"]))
    if by["one seed"]:
        said.append(f"With one seed, too few to say: {len(by['one seed'])}.")
    if len(known) < len(found):
        missing = len(found) - len(known)
        said.append(f"Open, because not run in both ranges: {missing} of {len(found)}.")
    return " ".join(said)


IN_TRAINING = {
    "better": f"every seed with {EXTENDED} is better",
    "worse": f"every seed with {EXTENDED} is worse",
    "open": "the medians are apart but the seeds overlap",
    "alike": f"the medians are within {LEAST}",
    "near a guess": "both are near a guess",
    "one seed": "there is one seed",
}


def _of_training(found: Sequence[Pair]) -> str:
    """What is said of pairs that are near a guess where they are judged."""
    by = {name: [p for p in found if p.verdict_in_training == name] for name in IN_TRAINING}
    alone = len(found) == 1
    parts = [
        words if alone else f"{words} in {len(by[name])}"
        for name, words in IN_TRAINING.items()
        if by[name]
    ]
    said = f"Both ranges are near a guess at the lengths judged in {len(found)}; "
    said += f"in training {', '.join(parts)}"
    apart = [*by["better"], *by["worse"], *by["open"]]
    if not apart:
        return f"{said}."
    most = max(apart, key=lambda pair: abs(_gap(*pair.learnt)))
    lead = "," if alone else "; the widest gap is"
    return f"{said}{lead} {_in_words(most, in_training=True)}."


def _gap(before: Sequence[float], after: Sequence[float]) -> float:
    """Between the medians."""
    return statistics.median(after) - statistics.median(before)


def _in_words(pair: Pair, *, in_training: bool = False) -> str:
    before, after = map(statistics.median, pair.learnt if in_training else pair.seeds)
    return f"{pair.model} on {pair.task}: {before:z.3f} with {USUAL}, {after:z.3f} with {EXTENDED}"


Link = Callable[[str, Place], str]
"""A text and where it was read -> a link."""


def pairs_table(found: Sequence[Pair], link: Link) -> list[str]:
    """A line for each pair of which something was run: the medians, linked to their records."""
    run = [pair for pair in found if any(pair.seeds)]
    lines = []
    if run:
        lines = [
            f"| task | model | layers | scale | in training, {USUAL} | {EXTENDED} "
            f"| judged, {USUAL} | {EXTENDED} | difference | seeds | steps × batch "
            f"| every seed with {EXTENDED} is |",
            "|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|---|",
        ]
    for pair in run:
        config = pair.extended.config
        columns = [
            pair.task,
            pair.model,
            str(config.model.backbone.num_layers),
            pair.scale,
            *(_median_in_training(cell, link) for cell in (pair.usual, pair.extended)),
            *(_median(cell, link) for cell in (pair.usual, pair.extended)),
            f"{pair.difference:+.3f}" if pair.complete else "",
            " / ".join(str(len(values)) for values in pair.seeds),
            f"{config.steps:,} × {config.batch}",
            _said(pair) if pair.complete else f"not run: `{_command(pair)}`",
        ]
        lines.append(table_line(columns))
    return [*lines, "", LEARNT] if lines else []


LEARNT = (
    "*In training* is the scaled accuracy of the last tenth of training, in sequences of its "
    "lengths; *judged* is what the model is asked for, mostly on longer ones. Both are medians "
    "over seeds."
)


def _said(pair: Pair) -> str:
    if pair.verdict != "near a guess":
        return pair.verdict
    return f"near a guess; {pair.verdict_in_training} in training"


def missing_table(found: Sequence[Pair]) -> list[str]:
    """A line for each of the others: the command that runs it."""
    left = [pair for pair in found if not any(pair.seeds)]
    if not left:
        return []
    lines = ["\n## Not run\n", "| task | model | layers | scale | command |"]
    lines.append("|---|---|--:|---|---|")
    for pair in left:
        layers = str(pair.extended.config.model.backbone.num_layers)
        lines.append(table_line([pair.task, pair.model, layers, pair.scale, f"`{_command(pair)}`"]))
    return lines


def _median(cell: Cell, link: Link) -> str:
    if cell.row is None or cell.row.median is None:
        return ""
    return link(f"{cell.row.median:z.3f}", cell.row.behind[1].records_at)


def _median_in_training(cell: Cell, link: Link) -> str:
    """Linked to the run in the middle."""
    found = sorted(_runs_learnt(cell), key=lambda one: one[0])
    if not found:
        return ""
    middle = statistics.median(value for value, _ in found)
    return link(f"{middle:z.3f}", found[(len(found) - 1) // 2][1].records_at)


def _command(pair: Pair) -> str:
    """What fills the empty half of a pair, or both."""
    before, after = pair.seeds
    if before or after:
        return (pair.usual if not before else pair.extended).command(MADE_IN)
    name = label(pair.extended.config).partition(EXTENDED)[0]
    return pair.extended.plan.command(MADE_IN, f"{name}[")


# -- the picture --------------------------------------------------------------------------------


PANEL, GAP, MARGIN = 2.55, 0.2, 0.15
LETTER = 0.05
"""Inches: a panel, the space between two, the one at the edges, a letter of a name."""


def pairs_picture(name: str, title: str, found: Sequence[Pair]) -> Picture | None:
    """A line for each pair, from the median with [0, 1] (a ring) to that with [-1, 1] (a dot).

    Small ticks are the seeds. On the left are numbers of training, on the right those of the
    lengths judged. What was not run in both ranges is left out.
    """
    known = [pair for pair in found if pair.complete]
    if not known:
        return None
    metrics = sorted({METRICS[pair.extended.row.metric] for pair in known if pair.extended.row})
    names = [f"{pair.task}: {pair.model}, {pair.scale}" for pair in known]
    left = 2 * MARGIN + LETTER * max(map(len, names))
    make, context = drawing()
    width, height = left + 2 * PANEL + GAP + MARGIN, 0.85 + 0.2 * len(known)
    shown = [
        ("in training", "scaled accuracy", [pair.learnt for pair in known]),
        ("judged", " or ".join(metrics), [pair.seeds for pair in known]),
    ]
    low = min(min(values) for pair in known for values in (*pair.learnt, *pair.seeds) if values)
    with context:
        figure = make(figsize=(width, height), dpi=DPI)
        for column, (heading, measured, numbers) in enumerate(shown):
            at = left + column * (PANEL + GAP)
            box = (at / width, 0.42 / height, PANEL / width, (height - 0.85) / height)
            axes = figure.add_axes(box)
            for place, (pair, values) in enumerate(zip(known, numbers, strict=True)):
                _draw_pair(axes, place, pair, values)
            axes.set_yticks(range(len(known)), names if column == 0 else [], fontsize=7)
            axes.set_ylim(len(known) - 0.4, -0.6)
            axes.set_xlim(min(-0.05, low - 0.03), 1.04)
            axes.tick_params(axis="x", labelsize=8)
            axes.set_xlabel(measured, fontsize=8)
            axes.set_title(heading, fontsize=9, loc="left", pad=3)
    said = f"ring: median with {USUAL}; dot: with {EXTENDED}; ticks: seeds"
    figure.text(1 - MARGIN / width, 1 - 0.05 / height, said, ha="right", va="top", fontsize=8)
    return Picture(name, title, figure)


def _draw_pair(
    axes: "Axes", place: int, pair: Pair, numbers: tuple[Sequence[float], Sequence[float]]
) -> None:
    if not all(numbers):
        return
    colour = looks.colour_of(model_label(pair.extended.config, with_range=False)).light
    before, after = map(statistics.median, numbers)
    axes.plot([before, after], [place, place], color=colour, linewidth=1.2)
    for values in numbers:
        axes.plot(values, [place] * len(values), "|", color=AXES_GREY, markersize=6)
    axes.plot(before, place, "o", mfc="white", mec=colour, markersize=6)
    axes.plot(after, place, "o", color=colour, markersize=6)
