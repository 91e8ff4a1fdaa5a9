"""Pictures of language models: loss against position, heads, text coloured by eigenvalue."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from statetrack.lm.evaluation import CONFIDENCE
from statetrack.report import looks
from statetrack.report.figures import AXES_GREY, DPI, Picture, drawing, line_style
from statetrack.report.language import LEARNT, STARTED, Asked, Difference, Family, said_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["differences_picture", "examples_picture", "heads_picture", "position_picture"]

PER_OCTAVE = 4
"""Points of a curve for each doubling of the position."""
LINE = 84
"""Characters of a line of text in a picture."""
CHARACTER, ROW = 0.078, 0.24
"""Size of a character and height of a line, in inches."""
BROKEN = "�"
"""What stands for bytes that are no character."""
SHOWN_SPACE = {"\n": "↵", "\t": "→", " ": "·"}
"""How white space is shown in a picture."""


def differences_picture(
    name: str, rows: Sequence[tuple[str, Sequence[Difference]]]
) -> Picture | None:
    """A line for each comparison, a column for each domain: the mean, its text and its seeds.

    Other recipes, and clamps of models that are special already, are left to the table.
    """
    rows = [(called, told) for called, told in rows if ", " not in told[0].layer]
    domains = list(dict.fromkeys(one.domain for _, told in rows for one in told))
    if not domains:
        return None
    make, context = drawing()
    width, height = 2.5 + 1.6 * len(domains), 0.95 + 0.2 * len(rows)
    with context:
        figure = make(figsize=(width, height), dpi=DPI)
        figure.subplots_adjust(
            left=2.4 / width,
            right=0.985,
            top=1 - 0.47 / height,
            bottom=0.48 / height,
            wspace=0.12,
        )
        (columns,) = figure.subplots(1, len(domains), squeeze=False, sharex=True, sharey=True)
    for axes, domain in zip(columns, domains, strict=True):
        axes.axvline(0, color="black", linewidth=0.8)
        for place, (_, told) in enumerate(rows):
            for one in told:
                if one.domain == domain:
                    colour = looks.colour_of(one.layer).light
                    axes.plot([one.low, one.high], [place] * 2, color=colour, linewidth=1.2)
                    axes.plot(one.seeds, [place] * len(one.seeds), "|", color=AXES_GREY, ms=6)
                    axes.plot(one.mean, place, "o", color=colour, markersize=5)
        axes.set_title(domain, fontsize=9, loc="left", pad=3)
        axes.tick_params(labelsize=7)
    columns[0].set_yticks(range(len(rows)), [called for called, _ in rows], fontsize=7)
    columns[0].set_ylim(len(rows) - 0.4, -0.6)
    columns[len(domains) // 2].set_xlabel("difference of the losses, nats a token", fontsize=8)
    said = "left of 0: lower; dot: mean; line: 95 % of the text; ticks: seeds"
    figure.text(0.99, 1 - 0.04 / height, said, ha="right", va="top", fontsize=8)
    return Picture(name, "Language models: differences of the losses", figure)


def position_picture(
    name: str,
    layer: str,
    found: Sequence[Family],
    told: Sequence[Difference],
    sign: Sequence[Difference] = (),
) -> Picture | None:
    """Above the loss of all ranges against the position, below their difference; by domain.

    `sign` is the difference to the control, which stands beside it. Curves are of the seeds that
    all models of the layer have, if there are any, so that they compare like with like. Bands are
    95 % intervals over the windows of text, of both ranges as they are. Grey are the positions
    trained on.
    """
    mine = [one for one in found if one.layer == layer and any(m.domains for m in one.members)]
    domains = list(dict.fromkeys(d for one in mine for m in one.members for d in m.domains))
    if not mine or not domains:
        return None
    pairs = [one for one in told if one.layer == layer]
    trained = mine[0].members[0].trained
    shared = set.intersection(*({m.seed for m in one.members if m.domains} for one in mine))
    figure, grid = _grid(2 if pairs else 1, len(domains))
    for column, domain in enumerate(domains):
        axes = grid[0][column]
        for family in mine:
            _draw_loss(axes, family, domain, shared or {one.seed for one in family.members})
        axes.set_title(domain, fontsize=9, loc="left", pad=3)
        farthest = max(end for one in mine for m in one.members for end in m.ends(domain))
        _position_axis(axes, trained, farthest)
        if pairs:
            _draw_difference(grid[1][column], [one for one in pairs if one.domain == domain])
            control = [one for one in sign if (one.layer, one.domain) == (layer, domain)]
            if control:
                _draw_difference(grid[1][column], control, control=True)
            _position_axis(grid[1][column], trained, farthest)
    grid[0][0].set_ylabel("loss, nats a token", fontsize=8)
    handles, names = grid[0][0].get_legend_handles_labels()
    if pairs:
        grid[1][0].set_ylabel("[-1, 1] minus another", fontsize=8)
        more, called = grid[1][0].get_legend_handles_labels()
        handles, names = [*handles, *more], [*names, *called]
    height, wide = figure.get_figheight(), min(len(domains), 3)
    figure.subplots_adjust(bottom=(0.37 + 0.18 * math.ceil(len(names) / wide)) / height)
    figure.legend(handles, names, loc="lower center", ncols=wide, frameon=False, fontsize=8)
    said = f"across: position in the text; grey: trained on, up to {trained}; ticks: seeds"
    figure.text(0.99, 1 - 0.04 / height, said, ha="right", va="top", fontsize=8)
    return Picture(name, f"{layer}: loss against position", figure)


def _grid(rows: int, columns: int) -> "tuple[Figure, list[list[Axes]]]":
    make, context = drawing()
    with context:
        figure = make(figsize=(1.1 + 2.3 * columns, 0.8 + 1.7 * rows), dpi=DPI)
        figure.subplots_adjust(
            left=0.75 / (1.1 + 2.3 * columns),
            right=0.985,
            top=1 - 0.42 / (0.8 + 1.7 * rows),
            bottom=0.55 / (0.8 + 1.7 * rows),
            wspace=0.28,
            hspace=0.3,
        )
        found = figure.subplots(rows, columns, squeeze=False, sharex=True)
    return figure, [list(row) for row in found]


def _position_axis(axes: "Axes", trained: int, farthest: int) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}")
    first = trained / 8
    axes.axvspan(first, trained, color=AXES_GREY, alpha=0.14, linewidth=0)
    axes.tick_params(labelsize=7)
    axes.set_xlim(first, farthest)


def _draw_loss(axes: "Axes", family: Family, domain: str, seeds: Set[int]) -> None:
    begins = family.variant.startswith(STARTED)
    between = said_of("", family.between, "" if begins else family.variant).strip() or None
    if family.variant == LEARNT:  # dotted, like models without a range
        between = None
    members = [one for one in family.members if one.seed in seeds and domain in one.domains]
    curves = [_pooled(one, domain) for one in members]
    curves = [curve for curve in curves if curve]
    if not curves:
        return
    colour = looks.colour_of(family.layer).light
    x = [place for place, _, _ in curves[0]]
    middle = [sum(c[i][1] for c in curves) / len(curves) for i in range(len(x))]
    error = [sum(c[i][2] for c in curves) / len(curves) for i in range(len(x))]
    label = f"{family.label}, {len(curves)} seed{'s' * (len(curves) > 1)}"
    axes.plot(
        x,
        middle,
        color=colour,
        linestyle=line_style(looks.dashes_of(between)),
        linewidth=0.9 if family.variant else 1.4,
        marker="o" if begins else None,  # the line of its range
        markersize=2.5,
        label=label,
    )
    if family.variant:
        return
    axes.fill_between(
        x,
        [m - CONFIDENCE * e for m, e in zip(middle, error, strict=True)],
        [m + CONFIDENCE * e for m, e in zip(middle, error, strict=True)],
        color=colour,
        alpha=0.1,
        linewidth=0,
    )


def _pooled(asked: Asked, domain: str) -> list[tuple[float, float, float]]:
    """Position, loss and its standard error, a few for each doubling."""
    domains = asked.answers["loss"]["domains"]
    found = domains[domain].get("long") or domains[domain].get("short")
    if not found:
        return []
    groups: dict[int, list[int]] = {}
    for i, end in enumerate(found["ends"]):
        groups.setdefault(math.floor(PER_OCTAVE * math.log2(end) + 1e-9), []).append(i)
    return [
        (
            sum(found["ends"][i] for i in members) / len(members),
            sum(found["loss"][i] for i in members) / len(members),
            sum(found["loss_error"][i] or 0.0 for i in members) / len(members),
        )
        for members in groups.values()
    ]


def _draw_difference(axes: "Axes", told: Sequence[Difference], *, control: bool = False) -> None:
    x = [one.end / math.sqrt(2) if i else one.end / 2 for i, one in enumerate(told)]
    axes.axhline(0, color="black", linewidth=0.8)
    middle = [one.mean for one in told]
    below = [one.mean - one.low for one in told]
    above = [one.high - one.mean for one in told]
    bars: Any = [below, above]
    axes.errorbar(
        x,
        middle,
        yerr=bars,
        fmt="s:" if control else "o-",
        color="black",
        markerfacecolor="white" if control else "black",
        markersize=3.5 if control else 3,
        linewidth=1,
        label="[-1, 1] minus the control" if control else "[-1, 1] minus [0, 1]",
    )
    for i, one in enumerate(told):
        axes.plot([x[i]] * len(one.seeds), one.seeds, "_", color=AXES_GREY, markersize=7)


# -- heads --------------------------------------------------------------------------------------


def heads_picture(name: str, found: Mapping[str, Any], label: str) -> Picture | None:
    """A square for each head: the share of tokens on which its lowest eigenvalue is below 0."""
    if not found.get("heads"):
        return None
    make, context = drawing()
    layers = max(one["layer"] for one in found["heads"])
    heads = max(one["head"] for one in found["heads"]) + 1
    said = f"{label}: % of tokens with an eigenvalue below 0"
    width = max(5.0, 1.0 + 0.55 * layers, 0.8 + 0.07 * len(said))
    with context:
        figure = make(figsize=(width, 0.95 + 0.34 * heads), dpi=DPI)
        axes = figure.subplots()
    figure.subplots_adjust(left=0.7 / figure.get_figwidth(), right=0.99, top=0.82, bottom=0.24)
    shares = [[math.nan] * layers for _ in range(heads)]
    for one in found["heads"]:
        shares[one["head"]][one["layer"] - 1] = one["below_0"]
    most = max(0.1, max(one["below_0"] for one in found["heads"]))
    axes.imshow(shares, cmap=_shades(), vmin=0, vmax=most, aspect="auto")
    for row, values in enumerate(shares):
        for column, share in enumerate(values):
            if not math.isnan(share):
                ink = "white" if share > 0.55 * most else "black"
                axes.text(
                    column,
                    row,
                    f"{100 * share:.1f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=ink,
                )
    axes.set_xticks(range(layers), [str(i + 1) for i in range(layers)], fontsize=8)
    axes.set_yticks(range(heads), [str(i) for i in range(heads)], fontsize=8)
    axes.grid(visible=False)
    axes.set(xlabel="layer", ylabel="head")
    axes.set_title(said, fontsize=9, loc="left")
    return Picture(name, f"{label}: heads with negative eigenvalues", figure)


def _shades() -> "Colormap":
    import matplotlib

    return matplotlib.colormaps["Oranges"]


def _diverging() -> "Colormap":
    import matplotlib

    return matplotlib.colormaps["PuOr_r"]


def examples_picture(
    name: str, found: Mapping[str, Any], label: str, *, most: int = 6
) -> Picture | None:
    """Pieces of held-out text, each token on the colour of one head's lowest eigenvalue.

    What is below 0 also has a line under it, the thicker the lower, so that it shows in grey.
    """
    from matplotlib.patches import Rectangle

    shown = _chosen(found.get("examples", []), most)
    if not shown:
        return None
    make, context = drawing()
    blocks = [(piece, head, _lines(piece["tokens"])) for piece, head in shown]
    rows = sum(len(lines) + 1.5 for _, _, lines in blocks)
    width, height = LINE * CHARACTER + 0.3, rows * ROW + 0.75
    with context:
        figure = make(figsize=(width, height), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    colours = _diverging()
    _key(axes, label, width)
    y = 0.75
    for piece, head, lines in blocks:
        said = f"{piece['domain']}: layer {head['layer']}, head {head['head']}"
        axes.text(0.15, y + ROW * 0.6, said, fontsize=9, fontweight="bold", va="center")
        y += ROW * 1.2
        for line in lines:
            x = 0.15
            for index, text in line:
                value = head["values"][index]
                wide = len(text) * CHARACTER
                face = colours((1 - value) / 2)
                dark = sum(w * c for w, c in zip((0.3, 0.59, 0.11), face[:3], strict=True)) < 0.5
                axes.add_patch(
                    Rectangle((x, y + 0.02), wide, ROW - 0.06, facecolor=face, linewidth=0)
                )
                if value < 0:
                    thick = 0.5 + 2.5 * -value
                    axes.plot(
                        [x + 0.01, x + wide - 0.01],
                        [y + ROW - 0.035] * 2,
                        color="black",
                        linewidth=thick,
                        solid_capstyle="butt",
                    )
                axes.text(
                    x,
                    y + ROW * 0.46,
                    text,
                    family="monospace",
                    fontsize=9.3,
                    va="center",
                    color="white" if dark else "black",
                    parse_math=False,
                )
                x += wide
            y += ROW
        y += ROW * 0.3
    return Picture(name, f"{label}: text coloured by eigenvalue", figure)


def _chosen(
    pieces: Sequence[Mapping[str, Any]], most: int
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The first piece of every domain with the lowest two heads, as far as there is room."""
    first: dict[str, Mapping[str, Any]] = {}
    for piece in pieces:
        first.setdefault(piece["domain"], piece)
    return [(piece, head) for piece in first.values() for head in piece["heads"][:2]][:most]


def _lines(tokens: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Tokens with their numbers in lines that end at a newline or when they are full."""
    lines: list[list[tuple[int, str]]] = [[]]
    used = 0
    for index, token in enumerate(tokens):
        for part in token.splitlines(keepends=True):
            text = "".join(SHOWN_SPACE.get(letter, letter) for letter in part)
            text = "".join(letter if letter.isprintable() else BROKEN for letter in text)[:LINE]
            if used + len(text) > LINE:
                lines.append([])
                used = 0
            lines[-1].append((index, text))
            used += len(text)
            if part.endswith("\n"):
                lines.append([])
                used = 0
    return [line for line in lines if line]


def _key(axes: "Axes", label: str, width: float) -> None:
    """What the colours mean."""
    from matplotlib.patches import Rectangle

    axes.text(0.15, 0.2, label, fontsize=10, fontweight="bold", va="center")
    left, step = 0.15, 0.035
    colours = _diverging()
    axes.text(left, 0.48, "kept 1", fontsize=8, va="center")
    left += 0.45
    for i in range(41):
        axes.add_patch(
            Rectangle((left + i * step, 0.4), step, 0.16, facecolor=colours(i / 40), linewidth=0)
        )
    axes.text(left + 41 * step + 0.06, 0.48, "-1 flipped", fontsize=8, va="center")
    axes.text(left + 20.5 * step, 0.65, "0 forgotten", fontsize=7, va="center", ha="center")
    said = "lowest eigenvalue of A(x); underlined: below 0, thicker is lower"
    axes.text(width - 0.15, 0.48, said, fontsize=8, va="center", ha="right")
