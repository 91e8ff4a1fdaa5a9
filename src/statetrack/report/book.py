"""The results page in Markdown: stories, tables beside the paper's numbers, pictures, empty cells.

Everything on it comes from the runs, from the plans that say which runs there should be, and
from two files written by hand beside the runs: stories.md and remarks.json.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statetrack.analysis.audit_file import NEAR_MINUS_ONE, LayerSpectrum, RunAudit, read_audit
from statetrack.analysis.exact_file import exact_files
from statetrack.experiments.plan import Plan
from statetrack.experiments.summary import LANGUAGE
from statetrack.report.cells import Cell, all_cells, summary_rows
from statetrack.report.chess import chess_picture, chess_tables
from statetrack.report.entries import MADE_IN
from statetrack.report.exact import ExactRow, exact_rows
from statetrack.report.figures import Picture, curves_picture, slug, spectrum_picture
from statetrack.report.language import Asked, differences, families, read_study
from statetrack.report.language_figures import (
    differences_picture,
    examples_picture,
    heads_picture,
    position_picture,
)
from statetrack.report.language_pages import (
    heads_answer,
    heads_tables,
    in_short,
    language_answer,
    language_tables,
    looked_at,
    probe_tables,
    short_table,
)
from statetrack.report.language_pages import summary_rows as language_rows
from statetrack.report.markdown import table_line
from statetrack.report.page import METRICS, address
from statetrack.report.paper import best_in_paper
from statetrack.report.questions import (
    QUESTIONS,
    answer,
    missing_table,
    pairs,
    pairs_picture,
    pairs_table,
)
from statetrack.report.spectra import spectrum
from statetrack.report.tables import (
    Curve,
    Group,
    Point,
    by_length,
    by_operations,
    by_step,
    places,
    trained_tokens,
)
from statetrack.runs import StoredRun
from statetrack.runs.stored import Place

__all__ = ["Book", "make_book", "remarks_in"]

STORIES, REMARKS = "stories.md", "remarks.json"
STATES = Path("states") / "states.json"
EXACT, ANCHOR = "exact", "from-examples-to-exact-networks"
EXACT_SUMMARY = "train on examples, get a network that is exact at every length"
SHOWN_HEADS = 8
SHOWN_STATES = 24

HEADER = """\
<!-- Made by `{command}`: edit {root}/{stories}, {root}/{remarks} or the runs, not this file. -->

# Results

Each table has our numbers beside the paper's. Every number links to the records it comes from.

- **Best, median and spread** (highest minus lowest) are over the seeds of the learning rate with
  the highest median. They link to the records of the best seed, of the one in the middle and of
  the worst.
- **Scaled accuracy** is 0 for a guess and 1 for a solution, over the lengths beyond training.
- **Faultless sequences** is the share of sequences with every answer right, at the longest length.
- **Exact to** is the longest tested length up to which the best run has at least 99 % of the
  sequences right.
- **Paper** is the number in the first version of the paper, for the same task, model, range and
  lengths. Where its versions differ, `workshop` is the first, `iclr` the final one, and `ran` has
  the steps and batches that the published results were made with.
- **An empty cell** was not run. It shows the command that runs it; `statetrack archive {made_in}
  --out {root}` then adds the runs here.

| experiment | what it shows | cells filled |
|---|---|---|
"""


@dataclass(frozen=True, eq=False)
class Book:
    """The page, pages for its questions, all their pictures, and the rows of summary.json.

    Pages and pictures go by their file name without its ending.
    """

    text: str
    pages: dict[str, str]
    pictures: dict[str, Picture]
    summary: list[dict[str, Any]]


@dataclass(frozen=True)
class _Site:
    """Where things are: the results, the page and the name of its folder of pictures."""

    root: Path
    page: Path
    images: str

    def link(self, text: str, place: Place) -> str:
        return f"[{text}]({address(place, self.page.parent)})"

    def image(self, name: str, picture: Picture, width: str = "49%") -> str:
        return f'<img src="{self.images}/{name}.png" width="{width}" alt="{picture.title}">'


def make_book(plans: Sequence[Plan], runs: Iterable[StoredRun], root: Path, page: Path) -> Book:
    """The page that stands at `page`, from runs that lie in the folders of the plans in `root`.

    A run counts in every table that has it in its list, whichever folder it lies in.
    """
    runs = list(runs)
    site = _Site(root, page, f"images/{page.stem}")
    tables = all_cells(plans, runs)
    names = list(dict.fromkeys(plan.experiment for plan in plans))
    stories = _stories(root / STORIES, [*names, "states", LANGUAGE, EXACT])
    exact = exact_rows(exact_files(root))
    remarks = remarks_in(root)
    known = [cell.key for table in tables.values() for cell in table]
    _refuse_strangers(root / REMARKS, remarks, known)
    pictures: dict[str, Picture] = {}
    lines = []
    sections = []
    study = read_study(root, runs)
    for name in names:
        mine = [plan for plan in plans if plan.experiment == name]
        table = [cell for plan in mine for cell in tables[plan.folder]]
        filled = sum(cell.row is not None for cell in table)
        called = f"{name} ({mine[0].paper_label})" if mine[0].paper_label else name
        anchor = re.sub(r"[^a-z0-9-]", "", called.replace(" ", "-"))
        lines.append(f"| [{name}](#{anchor}) | {mine[0].summary} | {filled} of {len(table)} |")
        sections += [f"\n## {called}\n", stories.get(name, f"{mine[0].summary}.")]
        for plan in mine:
            sections += _plan_section(plan, tables[plan.folder], remarks, site, pictures)
        if name == names[0]:
            sections += _states_section(stories.get("states", ""), site, pictures)
    lines.append(
        f"| [{LANGUAGE}](#{LANGUAGE}) | language models, pairs that differ in the range alone "
        f"| {len(study)} runs |"
    )
    sections += [f"\n## {LANGUAGE}\n", stories.get(LANGUAGE, ""), "", *short_table(study)]
    sections.append(LANGUAGE_PAGES.format(folder=page.with_suffix("").name))
    if exact:
        proved = sum(row.record.exact for row in exact)
        lines.append(f"| [{EXACT}](#{ANCHOR}) | {EXACT_SUMMARY} | {proved} of {len(exact)} |")
        sections += _exact_section(stories.get(EXACT, ""), exact, site)
    shown = page.name if page.is_absolute() else page.as_posix()
    command = f"statetrack report {root.name} --markdown {shown}"
    header = HEADER.format(
        command=command, root=root.name, made_in=MADE_IN, stories=STORIES, remarks=REMARKS
    )
    text = header + "\n".join([*lines, *sections]) + "\n"
    summary = [
        row for table in tables.values() for cell in table for row in summary_rows(cell, root)
    ]
    summary += language_rows(study, root)
    inner = _Site(root, page.with_suffix("") / "page.md", f"../images/{page.stem}")
    pages = _question_pages(tables, study, inner, pictures, command, page.name, stories)
    return Book(text, pages, pictures, summary)


# -- pages of questions -------------------------------------------------------------------------

QUESTION = "<!-- Made by `{command}` from the runs. -->\n\n# {title}\n\n{answer}\n"
CHESS = "chess"
LANGUAGE_PAGES = (
    "[Language models]({folder}/language.md) has the loss of every model, every difference by "
    "position and seed, and the commands of what was not run; [heads]({folder}/heads.md) has who "
    "uses negative eigenvalues, and on which tokens."
)
LANGUAGE_TITLE = "Does [-1, 1] matter for language models?"
LANGUAGE_WHY = (
    "Code and mathematics have brackets to close, variables to follow and proofs to carry on, "
    "which prose has less of: there a difference should show first."
)
HEADS_TITLE = "What do heads do with negative eigenvalues?"
HEADS_WHY = (
    "An eigenvalue of 1 keeps what a head has stored under a key, 0 forgets it, and -1 turns it "
    "over. For DeltaNet it is 1 - β. A head that only ever overwrites has no use for less than 0. "
    "With [-1, 1] as it is, training begins with β near 1, so that half of all eigenvalues are a "
    "little below 0 before anything is learnt: what is left there, or is below -0.5, was learnt. "
    "With a β from 0.5 or a learnt range none begins there. A head of GLA has a gate for each of "
    "its keys, and the lowest of them counts here; all begin at 0.91."
)


def _question_pages(
    tables: Mapping[str, Sequence[Cell]],
    study: Sequence[Asked],
    site: _Site,
    pictures: dict[str, Picture],
    command: str,
    page: str,
    stories: Mapping[str, str],
) -> dict[str, str]:
    """File name -> the page: the answer, one picture, the table, the stories."""

    def shown(drawn: Sequence[Picture | None]) -> list[str]:
        there = [picture for picture in drawn if picture is not None]
        pictures.update({picture.name: picture for picture in there})
        return [site.image(picture.name, picture, "100%") for picture in there]

    def made(title: str, answer: str, drawn: Sequence[Picture | None], rest: list[str]) -> str:
        lines = [QUESTION.format(command=command, title=title, answer=answer), *shown(drawn)]
        more = f"\n[All tables](../{page}) have every number, every model and its curves."
        return "\n".join([*lines, *rest, more]) + "\n"

    found = {}
    for question in QUESTIONS:
        mine = pairs(tables, question)
        picture = pairs_picture(f"question-{question.name}", question.title, mine)
        drawn = [picture]
        rest = ["", question.why, "", *pairs_table(mine, site.link)]
        if question.name == CHESS:
            drawn = [chess_picture("chess-plies", mine) or picture]
            rest += chess_tables(mine)
        words = [name for name in question.experiments if name in stories]
        rest += ["\n## In words"] if words else []
        rest += [f"\n### {name}\n\n{_from_below(stories[name])}" for name in words]
        rest += missing_table(mine)
        found[question.name] = made(question.title, answer(question, mine), drawn, rest)
    kin = families(study)
    told, sign = differences(kin), differences(kin, "sign")
    by_position = [
        position_picture(f"language-{slug(layer)}-position", layer, kin, told, sign)
        for layer in dict.fromkeys(one.layer for one in kin)
    ]
    drawn = [differences_picture("language-differences", in_short(study))]
    story = _from_below(stories.get(LANGUAGE, ""))
    rest = ["", *short_table(study), LANGUAGE_WHY, "\n## In words\n", story]
    rest += ["\n## Losses\n", *language_tables(study, site.link)]
    rest += ["\n## By position\n", *shown(by_position)]
    asked = probe_tables(study, site.link)
    rest += ["\n## Asked for the state of a trace", *asked] if asked else []
    found["language"] = made(LANGUAGE_TITLE, language_answer(study), drawn, rest)
    images: dict[str, list[str]] = {}
    drawn = []
    for family, one in looked_at(study):
        name = f"heads-{slug(family.label)}"
        heads, called = one.answers["heads"], f"{family.label}, seed {one.seed}"
        squares = heads_picture(name, heads, called)
        text = examples_picture(f"{name}-text", heads, called)
        images[family.label] = shown([squares, text] if images else [text])
        drawn = drawn or [squares]
    rest = ["", HEADS_WHY, "", *heads_tables(study, site.link, images)]
    found["heads"] = made(HEADS_TITLE, heads_answer(study), drawn, rest)
    return found


# -- what is written by hand --------------------------------------------------------------------


def _from_below(story: str) -> str:
    """A story for a page in a folder of its own: its links lead up first."""
    return re.sub(r"\]\((?!https?:|#)", "](../", story)


def _stories(path: Path, known: Iterable[str]) -> dict[str, str]:
    """The text below each `# experiment` of a file."""
    if not path.exists():
        return {}
    _, *parts = re.split(r"^# +(.+?) *\n", path.read_text(), flags=re.MULTILINE)
    found = {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    _refuse_strangers(path, found, known)
    return {name: text for name, text in found.items() if text}


def remarks_in(root: Path) -> dict[str, str]:
    """Cell -> sentence, as written by hand in a folder of results; none where there is no file."""
    path = root / REMARKS
    if not path.exists():
        return {}
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError(f"{path} must be an object of sentences, one for each cell it is about")
    return found


def _refuse_strangers(path: Path, found: Iterable[str], known: Iterable[str]) -> None:
    """A text that would silently not be shown is a mistake."""
    there = list(known)
    for name in found:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1, cutoff=0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{path} is about {name!r}, which is not on the page{hint}")


# -- one plan -----------------------------------------------------------------------------------


def _plan_section(
    plan: Plan,
    table: Sequence[Cell],
    remarks: Mapping[str, str],
    site: _Site,
    pictures: dict[str, Picture],
) -> list[str]:
    whose = f", version {plan.version}" if plan.version else ""
    metrics = sorted({METRICS[cell.row.metric] for cell in table if cell.row is not None})
    judged = f" Judged by {' and '.join(metrics)}." if metrics else ""
    lines = [
        f"\n### {plan.experiment}: {plan.scale} scale{whose}\n",
        f"`{plan.command(MADE_IN)}`{judged}\n",
        "| task | model | layers | paper | best | median | spread | seeds | steps × batch "
        "| exact to | remark |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    lines += [_cell_line(cell, remarks.get(cell.key), site) for cell in table]
    lines += _places_tables(table)
    lines += _audit_table(table, site)
    lines += _curves(plan, table, site, pictures)
    lines += _spectra(plan, table, site, pictures)
    return lines


def _cell_line(cell: Cell, remark: str | None, site: _Site) -> str:
    config, found = cell.config, cell.row
    said = [remark] if remark else []
    numbers = [""] * 5
    if found is None:
        said.insert(0, f"{cell.why_empty()}: `{cell.command(MADE_IN)}`")
    else:
        values = (found.best, found.median, found.spread)
        numbers = [
            "" if value is None else site.link(f"{value:z.3f}", run.records_at)
            for value, run in zip(values, found.behind, strict=True)
        ]
        numbers.append(str(found.seeds))
        exact = None if found.exact is None else str(found.exact)
        numbers.append(site.link(exact, found.behind[0].audit_at) if exact else "")
        said += [f"({', '.join(short)})"] if (short := cell.unlike_the_plan()) else []
    *scores, seeds, exact_to = numbers
    from_paper = best_in_paper(config)
    columns = (
        config.learns.name,
        cell.label,
        str(config.model.backbone.num_layers),
        "" if from_paper is None else f"{from_paper:.3f}",
        *scores,
        seeds,
        f"{config.steps:,} × {config.batch}",
        exact_to,
        " ".join(said),
    )
    return table_line(columns)


# -- applied tasks --------------------------------------------------------------------------------


def _places_tables(table: Sequence[Cell]) -> list[str]:
    """Accuracy by length and by operations, of tasks whose answers count one by one."""
    lines = []
    for task in dict.fromkeys(cell.config.learns.name for cell in table):
        found = {
            cell.label: {place: max(values) for place, values in places(cell.group).items()}
            for cell in table
            if cell.config.learns.name == task and cell.group is not None
        }
        columns = list(dict.fromkeys(place for row in found.values() for place in row))
        if not columns:
            continue
        lengths = sorted(length for length, _ in columns if length is not None)
        operations = sorted(count for _, count in columns if count is not None)
        columns = [*((length, None) for length in lengths), *((None, n) for n in operations)]
        heads = [f"{length} tokens" for length in lengths] + [f"{n} op." for n in operations]
        lines += [
            f"\n{task}: accuracy of the best seed by length (answers between half of it and all of "
            "it) and by the operations since the answer was last shown.\n",
            table_line(["model", *heads]),
            "|---|" + "--:|" * len(heads),
        ]
        for label, row in found.items():
            if row:
                numbers = [f"{row[place]:.3f}" if place in row else "" for place in columns]
                lines.append(table_line([label, *numbers]))
    return lines


# -- audits -------------------------------------------------------------------------------------


def _audit_table(table: Sequence[Cell], site: _Site) -> list[str]:
    """How far the best runs carry, and which of their heads reach down to -1."""
    audited = [(cell, found) for cell in table if (found := _audit_of(cell)) is not None]
    lengths = sorted({at.length for _, found in audited for at in found.horizon.accuracy})
    if not audited:
        return []
    heading = "".join(f" {length} |" for length in lengths)
    lines = [
        "\nThe best runs audited: the lowest eigenvalue of any A(x), the heads that go below -0.99 "
        "and the share of words answered rightly at each length.\n",
        f"| task | model | lowest | heads below -0.99 | the lowest head, by token |{heading}",
        "|---|---|--:|---|---|" + "--:|" * len(lengths),
    ]
    for cell, found in audited:
        assert cell.best is not None
        record = cell.best.audit_at
        accuracy = {at.length: at.share for at in found.horizon.accuracy}
        columns = [
            cell.config.learns.name,
            cell.label,
            "" if found.lowest is None else site.link(f"{found.lowest:z.3f}", record),
            found.note or "; ".join(_low_heads(found.layers)) or "none",
            _by_token(found.layers),
            *(
                site.link(f"{accuracy[length]:.3f}", record) if length in accuracy else ""
                for length in lengths
            ),
        ]
        lines.append(table_line(columns))
    return lines


def _audit_of(cell: Cell) -> RunAudit | None:
    return None if cell.best is None else read_audit(cell.best)


def _low_heads(layers: Sequence[LayerSpectrum]) -> list[str]:
    said = []
    for number, layer in enumerate(layers, 1):
        heads = layer.heads_below[NEAR_MINUS_ONE]
        if heads:
            which = f" ({', '.join(map(str, heads))})" if len(heads) <= SHOWN_HEADS else ""
            said.append(f"layer {number}: {len(heads)} of {layer.heads}{which}")
    return said


def _by_token(layers: Sequence[LayerSpectrum]) -> str:
    """The lowest head of all, and its lowest eigenvalue on each token, at most four of them."""
    heads = [
        (min(extent.least for extent in head.by_token.values()), number, head)
        for number, layer in enumerate(layers, 1)
        for head in layer.low_heads
    ]
    if not heads:
        return ""
    _, number, head = min(heads, key=lambda item: item[:2])
    rows = sorted((extent.least, token) for token, extent in head.by_token.items())
    shown = [f"`{token}` {least:.2f}" for least, token in rows]
    if len(shown) > 4:
        shown = [*shown[:2], "…", shown[-1]]
    return f"layer {number}, head {head.head}: {', '.join(shown)}"


# -- pictures -----------------------------------------------------------------------------------


def _curves(
    plan: Plan, table: Sequence[Cell], site: _Site, pictures: dict[str, Picture]
) -> list[str]:
    lines = []
    for task in dict.fromkeys(cell.config.learns.name for cell in table):
        groups = [
            cell.group
            for cell in table
            if cell.config.learns.name == task and cell.group is not None and cell.group.chosen
        ]
        if not groups:
            continue
        drawn = _task_pictures(f"{plan.folder}-{slug(task)}", task, groups)
        *first, last = [AGAINST[picture.name.rpartition("-")[2]] for picture in drawn]
        lines.append(f"\n{task}, against {', '.join(first)} and {last}:\n")
        for picture in drawn:
            pictures[picture.name] = picture
            lines.append(site.image(picture.name, picture))
    return lines


AGAINST = {"length": "length", "operations": "operations", "learning": "steps"}
"""By the end of a picture's name."""


def _task_pictures(name: str, task: str, groups: Sequence[Group]) -> list[Picture]:
    metric = METRICS[groups[0].metric]
    ends = {trained_tokens(group.config) for group in groups}
    found = [
        curves_picture(
            f"{name}-length",
            f"{task}: {metric} against length",
            [by_length(group) for group in groups],
            x_label="tokens read",
            y_label=metric,
            y_range=(-0.1, 1.04),
            mark=float(ends.pop()) if len(ends) == 1 else None,
        ),
        curves_picture(
            f"{name}-operations",
            f"{task}: accuracy against operations",
            [by_operations(group) for group in groups],
            x_label="operations since last shown",
            y_label="accuracy",
            y_range=(-0.1, 1.04),
            log=True,
        ),
        curves_picture(
            f"{name}-learning",
            f"{task}: {metric} on the validation set",
            [by_step(group, groups[0].metric, "validation") for group in groups],
            x_label="step",
            y_label=metric,
            y_range=(-0.1, 1.04),
        ),
    ]
    return [picture for picture in found if picture is not None]


def _spectra(
    plan: Plan, table: Sequence[Cell], site: _Site, pictures: dict[str, Picture]
) -> list[str]:
    lines = []
    for cell in table:
        found = _audit_of(cell)
        if found is None or not found.spectrum or cell.group is None:
            continue
        seen = spectrum(cell.group)
        assert seen is not None
        name = f"{plan.folder}-{slug(cell.config.learns.name)}-{slug(cell.label)}-spectrum"
        picture = spectrum_picture(name, seen, heading=f"{cell.config.learns.name}, {cell.label}")
        pictures[name] = picture
        lines.append(site.image(name, picture))
    return ["\nEigenvalues of A(x) of the best runs:\n", *lines] if lines else []


# -- states -------------------------------------------------------------------------------------


def _states_section(story: str, site: _Site, pictures: dict[str, Picture]) -> list[str]:
    """Figure 2, which trains nothing: the state on 1111... for several eigenvalues."""
    path = site.root / STATES
    lines = ["\n## states (figure 2)\n", story]
    if not path.exists():
        command = f"statetrack reproduce states --out {site.root.name}"
        return [*lines, f"\nNot run: `{command}`"]
    tracks = json.loads(path.read_bytes())
    lines += ["\n| recurrence | eigenvalue | states 1 to 4 | the last two |", "|---|--:|---|---|"]
    curves = []
    for track in tracks:
        states = track["states"]
        columns = [
            track["label"],
            site.link(f"{track['eigenvalue']:g}", Place(path)),
            ", ".join(f"{state:.3g}" for state in states[:4]),
            ", ".join(f"{state:.5g}" for state in states[-2:]),
        ]
        lines.append(table_line(columns))
        early = enumerate(states[:SHOWN_STATES], 1)
        points = [Point(float(t), f"token {t}", h, h, h) for t, h in early]
        curves.append(Curve(track["label"], tuple(points), 1))
    picture = curves_picture(
        "states",
        "the state on 1111...",
        curves,
        x_label="ones read",
        y_label="state",
    )
    if picture is None:
        return lines
    pictures[picture.name] = picture
    return [*lines, "", site.image(picture.name, picture)]


# -- exact networks -------------------------------------------------------------------------------


def _exact_section(story: str, rows: Sequence[ExactRow], site: _Site) -> list[str]:
    """Runs whose machine was extracted and compiled; every states number is a link to its file."""
    heads = list(rows[0].cells)
    lines = ["\n## From examples to exact networks\n", story or f"{EXACT_SUMMARY}.", ""]
    lines += [table_line(heads), "|" + "---|" * len(heads)]
    for row in rows:
        cells = row.cells | {"states": site.link(row.cells["states"], row.place)}
        lines.append(table_line(cells.values()))
    return lines
