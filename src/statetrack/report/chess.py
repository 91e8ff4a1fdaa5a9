"""The position on a chess board, by twenty plies, beside the published numbers."""

import statistics
from collections.abc import Mapping, Sequence

from statetrack.report import looks
from statetrack.report.cells import Cell
from statetrack.report.figures import AXES_GREY, DPI, Picture, drawing, line_style
from statetrack.report.markdown import table_line
from statetrack.report.questions import EXTENDED, USUAL, Pair
from statetrack.report.tables import trained_tokens
from statetrack.runs import StoredRun
from statetrack.runs.labels import model_label

__all__ = ["chess_picture", "chess_tables", "exact_by_plies"]

TASK = "chess"
BIN = 20
METRICS = {"accuracy": "75", "position_accuracy": "71", "board_accuracy": "64"}
"""What is right -> how many labels that are: all, all but the counters, the squares."""

PUBLISHED = {
    "Gated DeltaNet [0, 1]": (4.80, 27.79, 48.57, 61.17),
    "Gated DeltaNet [-1, 1]": (5.05, 36.15, 56.87, 61.19),
    "Mamba-2": (4.92, 19.32, 45.66, 50.02),
    "Mamba-3": (5.66, 33.31, 68.78, 81.13),
    "Transformer": (2.67, 8.58, 59.45, 72.93),
}
"""Percent of positions of uniformly random games that are right in all 75 labels, at the widths
128, 256, 384 and 512 with 1, 2, 4 and 6 layers: tables 8 and 10 of Chess-World-Model
(arXiv:2605.30100). Its models are trained on 10 million games of people, 310,944 steps of 128."""


def exact_by_plies(run: StoredRun) -> dict[str, dict[int, float]]:
    """For every metric the share of positions that are right, by the first ply of their bin."""
    found: dict[str, dict[int, float]] = {}
    for metric in METRICS:
        rows = [r for r in run.records if (r.split, r.metric) == ("test", metric) and r.length]
        last = max((r.step for r in rows), default=0)
        right: dict[int, float] = {}
        asked: dict[int, int] = {}
        for row in rows:
            if row.step != last:
                continue
            assert row.length is not None and row.count is not None
            begin = (row.length - 1) // BIN * BIN  # the first token is no ply
            right[begin] = right.get(begin, 0.0) + row.value * row.count
            asked[begin] = asked.get(begin, 0) + row.count
        found[metric] = {begin: right[begin] / asked[begin] for begin in sorted(right)}
    return found


def _medians(cell: Cell) -> Mapping[str, Mapping[int, float]]:
    """Over the seeds; a bin that one seed lacks is left out."""
    assert cell.group is not None
    each = [exact_by_plies(run) for run in cell.group.chosen]
    return {
        metric: {
            begin: statistics.median(one[metric][begin] for one in each)
            for begin in each[0][metric]
            if all(begin in one[metric] for one in each)
        }
        for metric in METRICS
    }


def chess_tables(found: Sequence[Pair]) -> list[str]:
    """For each pair a table by plies; then what others have published."""
    lines = []
    for pair in found:
        if pair.task != TASK or not pair.complete:
            continue
        usual, extended = _medians(pair.usual), _medians(pair.extended)
        heads = [
            f"{between}, {count}" for count in METRICS.values() for between in (USUAL, EXTENDED)
        ]
        lines += [
            f"\n## {pair.model} by plies\n",
            "The share of positions that are right in all 75 labels, in the 71 without the two "
            "counters, and on the 64 squares: medians over seeds. Games are trained on up to ply "
            f"{trained_tokens(pair.extended.config) - 1}.\n",
            table_line(["plies", *heads]),
            "|---|" + "--:|" * len(heads),
        ]
        for begin in extended["accuracy"]:
            numbers = [
                f"{one[metric][begin]:.3f}" if begin in one[metric] else ""
                for metric in METRICS
                for one in (usual, extended)
            ]
            lines.append(table_line([f"{begin} to {begin + BIN - 1}", *numbers]))
    lines += [
        "\n## Published\n",
        "Positions of random games that are right in all 75 labels, in percent, of the models of "
        "Chess-World-Model (arXiv:2605.30100). Those are trained on 10 million games of people, in "
        "310,944 steps of 128 games; ours on random games, in far fewer steps. So the sign of a "
        "difference between the ranges can be compared, and the numbers cannot.\n",
        "| model | width 128, 1 layer | 256, 2 layers | 384, 4 layers | 512, 6 layers |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, shares in PUBLISHED.items():
        lines.append(table_line([name, *(f"{share:.2f}" for share in shares)]))
    return lines


def chess_picture(name: str, found: Sequence[Pair]) -> Picture | None:
    """Right positions against plies, with the counters (thin) and without; a panel for each model.

    `None` where no pair was run in both ranges.
    """
    known = [pair for pair in found if pair.task == TASK and pair.complete]
    if not known:
        return None
    make, context = drawing()
    with context:
        figure = make(figsize=(6.6, 2.6), dpi=DPI)
        grid = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
    for axes, pair in zip(grid, known, strict=True):
        colour = looks.colour_of(model_label(pair.extended.config, with_range=False)).light
        axes.axvspan(0, trained_tokens(pair.extended.config) - 1, color=AXES_GREY, alpha=0.14)
        for cell, between in ((pair.usual, USUAL), (pair.extended, EXTENDED)):
            numbers = _medians(cell)
            for metric, width in (("position_accuracy", 1.6), ("accuracy", 0.7)):
                places = [begin + BIN / 2 for begin in numbers[metric]]
                axes.plot(
                    places,
                    list(numbers[metric].values()),
                    color=colour,
                    linewidth=width,
                    linestyle=line_style(looks.dashes_of(between)),
                    label=f"{between}, {METRICS[metric]} labels",
                )
        axes.set_title(pair.model, fontsize=9, loc="left", color=colour, pad=3)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(left=0)
        axes.set_xlabel("plies (grey: trained on)", fontsize=8)
    grid[0].set_ylabel("right positions", fontsize=8)
    grid[0].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    return Picture(name, "Right positions of random chess games, by plies", figure)
