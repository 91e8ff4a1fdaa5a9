"""From tables to pictures: matplotlib figures, as SVG and as PNG.

Curves are small multiples: one panel for each model, in its colour, a line style for each range
(`looks`). All panels of a picture share their axes.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from statetrack._extras import needs
from statetrack.report import looks
from statetrack.report.spectra import Spectrum
from statetrack.report.tables import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import Locator

__all__ = [
    "AXES_GREY",
    "DPI",
    "Picture",
    "curves_picture",
    "drawing",
    "line_style",
    "slug",
    "spectrum_picture",
    "to_png",
    "to_svg",
]

MARKERS = {
    "": None,
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "X",
    "wedge": "v",
    "plus": "P",
}
"""What matplotlib calls `looks.MARKERS`."""

LAYERS = "osD^vP"
"""Markers of eigenvalues, layer by layer."""

WIDTH = 5.6
PANEL_HEIGHT = 1.25
COLUMNS = 4
LEFT, RIGHT, TOP, BOTTOM = 0.42, 0.1, 0.42, 0.4
GAP, TITLE = 0.14, 0.26
LEGEND_ROW, LEGEND_LINE, LEGEND_LETTER = 0.2, 0.45, 0.062
"""All in inches: laid out here, because matplotlib's own layout takes longer than the drawing."""

LETTER = 0.6
"""Width of a letter over the size of its font, about."""

SINGLE, SINGLE_LEFT = (4.6, 3.0), 0.72
DPI = 72  # SVG's points: a figure's pixels are the picture's units
AXES_GREY = "#808080"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": AXES_GREY,
    "xtick.color": AXES_GREY,
    "ytick.color": AXES_GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "axes.grid": True,
    "grid.color": AXES_GREY,
    "grid.alpha": 0.2,
}


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with a name and a title."""

    name: str
    title: str
    figure: "Figure"


def curves_picture(
    name: str,
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    mark: float | None = None,
    log: bool = False,
) -> Picture | None:
    """Lines with a band from the least to the greatest seed, one panel for each model.

    `mark` is where training ended; `log` is for an x axis of doublings, with 0 at a half. `None`
    where no curve has a point.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return None
    drawing()
    panels = list(dict.fromkeys(curve.model for curve in drawn))
    variants = list(dict.fromkeys(curve.variant for curve in drawn))
    ranges = list(dict.fromkeys(curve.between for curve in drawn))
    turns = looks.in_turn([curve.label for curve in drawn])
    keys = _legend(ranges, variants) if panels != [""] else []
    named = [curve.label for curve in drawn] if panels == [""] else [k.get_label() for k in keys]
    columns = _legend_columns(named, WIDTH if len(panels) > 1 else SINGLE[0], 3 if keys else 2)
    keys_rows = -(-len(named) // columns)
    figure, grid = _panels(len(panels), keys_rows)
    for axes, model in zip(grid, panels, strict=True):
        if mark is not None:
            axes.axvspan(0, mark, color=AXES_GREY, alpha=0.14, linewidth=0)
        for curve in (curve for curve in drawn if curve.model == model):
            if model:
                colour, dashes = looks.colour_of(model), looks.dashes_of(curve.between)
            else:
                colour, dashes = turns[curve.label]
            marker = looks.MARKERS[variants.index(curve.variant) % len(looks.MARKERS)]
            _draw(axes, curve, colour.light, dashes, MARKERS[marker])
        if model:
            size = min(9.0, 72 * axes.get_position().width * WIDTH / (LETTER * len(model)))
            colour = looks.colour_of(model)
            axes.set_title(model, fontsize=size, loc="left", color=colour.light, pad=3)
    first = grid[0]
    if log:
        first.set_xscale("log", base=2)
        first.xaxis.set_major_formatter(lambda x, _: f"{0 if x == 0.5 else x:g}")
    else:
        first.set_xlim(left=0)
        first.locator_params(axis="x", nbins=4)
    if y_range is not None:
        least = min(point.low for curve in drawn for point in curve.points)
        first.set_ylim(min(y_range[0], least - 0.05), y_range[1])
        first.locator_params(axis="y", nbins=4)
    height = figure.get_figheight()
    over = LEGEND_ROW * keys_rows
    figure.text(0.5, (over + 0.05) / height, x_label, ha="center", va="bottom", fontsize=8.5)
    figure.text(0.01, 1 - 0.05 / height, f"up: {y_label}", va="top", fontsize=8.5)
    if mark is not None:
        said = f"grey: lengths trained on, up to {mark:g}"
        figure.text(0.99, 1 - 0.05 / height, said, ha="right", va="top", fontsize=8)
    shape: dict[str, Any] = {"frameon": False, "fontsize": 8, "loc": "lower center"}
    if keys:
        figure.legend(handles=keys, ncols=columns, borderaxespad=0.1, **shape)
    elif panels == [""]:
        figure.legend(ncols=columns, borderaxespad=0.1, **shape)
    return Picture(name, title, figure)


def _draw(axes: "Axes", curve: Curve, colour: str, dashes: str, marker: str | None) -> None:
    x = [point.x for point in curve.points]
    axes.plot(
        x,
        [point.middle for point in curve.points],
        color=colour,
        linestyle=line_style(dashes),
        linewidth=1.5,
        marker=marker or ("o" if len(x) == 1 else None),
        markersize=3.5,
        markevery=max(1, len(x) // 6),
        label=curve.label,
    )
    if curve.seeds > 1:
        low = [point.low for point in curve.points]
        high = [point.high for point in curve.points]
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def line_style(dashes: str) -> "tuple[float, Sequence[float]] | Literal['-']":
    """SVG's dashes, which matplotlib counts in line widths."""
    return (0.0, tuple(float(part) / 1.5 for part in dashes.split())) if dashes else "-"


def _legend(ranges: Sequence[str | None], variants: Sequence[str]) -> "list[Line2D]":
    """What line styles and markers mean; nothing for the one of a kind."""
    from matplotlib.lines import Line2D

    found = [
        Line2D([], [], color="black", linestyle=line_style(looks.dashes_of(one)), linewidth=1.5)
        for one in ranges
    ]
    names = [f"range {one}" if one else "no range" for one in ranges]
    if len(variants) > 1:
        marks = [looks.MARKERS[i % len(looks.MARKERS)] for i in range(len(variants))]
        found += [
            Line2D([], [], color="black", marker=MARKERS[mark], linewidth=1.5, markersize=3.5)
            for mark in marks
        ]
        names += [variant or "as usual" for variant in variants]
    for line, text in zip(found, names, strict=True):
        line.set_label(text)
    return found


def _legend_columns(names: Sequence[object], width: float, most: int) -> int:
    """How many names of this length stand side by side in so many inches, at most `most`."""
    longest = max((len(str(name)) for name in names), default=0)
    return max(1, min(most, int(width / (LEGEND_LINE + LEGEND_LETTER * longest))))


def _panels(count: int, legend_rows: int) -> "tuple[Figure, list[Axes]]":
    """A figure with `count` panels in rows, which share their axes."""
    make, context = drawing()
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    under = BOTTOM + LEGEND_ROW * legend_rows
    width, start = (WIDTH, LEFT) if count > 1 else (SINGLE[0], SINGLE_LEFT)
    tall = PANEL_HEIGHT if count > 1 else SINGLE[1] - TOP - BOTTOM
    height = TOP + rows * tall + (rows - 1) * (TITLE + GAP) + under
    with context:
        figure = make(figsize=(width, height), dpi=DPI)
        figure.patch.set_alpha(0.0)
        wide = (width - start - RIGHT - (columns - 1) * GAP) / columns
        found: list[Axes] = []
        for i in range(count):
            row, column = divmod(i, columns)
            left = start + column * (wide + GAP)
            bottom = height - TOP - tall - row * (tall + TITLE + GAP)
            box = (left / width, bottom / height, wide / width, tall / height)
            shared: dict[str, Any] = {"sharex": found[0], "sharey": found[0]} if found else {}
            axes = figure.add_axes(box, **shared)
            axes.patch.set_alpha(0.0)
            last = i + columns >= count
            axes.tick_params(labelleft=column == 0, labelbottom=last, labelsize=8)
            found.append(axes)
    return figure, found


def spectrum_picture(name: str, spectrum: Spectrum, *, heading: str) -> Picture:
    """The eigenvalues in the complex plane; where all are real, each above with its share.

    The colour is the model's, the marker says the layer. `heading` is written above the axes.
    """
    figure, (axes,) = _panels(1, 0)
    layers = sorted({dot.layer for dot in spectrum.dots})
    real = all(dot.imag == 0 for dot in spectrum.dots)
    colour = looks.colour_of(spectrum.model).light
    for layer in layers:
        dots = [dot for dot in spectrum.dots if dot.layer == layer]
        x = [dot.real for dot in dots]
        y = [dot.share if real else dot.imag for dot in dots]
        sizes = 22.0 if real else [8 + 120 * dot.share**0.5 for dot in dots]
        marker = LAYERS[(layer - 1) % len(LAYERS)]
        axes.scatter(
            x,
            y,
            s=sizes,
            color=colour,
            marker=marker,
            alpha=0.7,
            linewidth=0,
            label=f"layer {layer}",
        )
    reach = max([1.0, *(abs(dot.real) for dot in spectrum.dots)]) * 1.12
    if real:
        axes.set_yscale("log")
        axes.set_ylim(min(0.0005, *(dot.share / 2 for dot in spectrum.dots)), 1.6)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
        axes.yaxis.set_minor_locator(_no_ticks())
        axes.set(xlabel="eigenvalue of A(x)", ylabel="share")
        axes.axvline(0, color=AXES_GREY, linewidth=1, alpha=0.6)
    else:
        from matplotlib.patches import Circle

        axes.add_patch(Circle((0, 0), 1, fill=False, color=AXES_GREY, linewidth=1))
        axes.set_aspect("equal")
        axes.set(xlabel="real part", ylabel="imaginary part", ylim=(-reach, reach))
    axes.set_xlim(-reach, reach)
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(heading, fontsize=9, pad=4)
    if len(layers) > 1:
        axes.legend(loc="upper left", fontsize=7, ncols=2, framealpha=0.6, edgecolor="none")
    return Picture(name, heading, figure)


def _no_ticks() -> "Locator":
    from matplotlib.ticker import NullLocator

    return NullLocator()


def drawing() -> "tuple[type[Figure], Any]":
    """The class of figures, and a context in which they are made."""
    with needs("a plot", "matplotlib", "report"):
        import matplotlib
        from matplotlib.figure import Figure
    return Figure, matplotlib.rc_context(SETTINGS)


def slug(text: str) -> str:
    """For file names; ranges keep their sign.

    >>> slug("DeltaNet [-1, 1] (5 layers)")
    'deltanet-m1-1-5-layers'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("[-", "[m")).strip("-")


def to_svg(picture: Picture) -> str:
    """The picture as an <svg> element: no ids that clash with another's, no date, no links."""
    import matplotlib

    settings = SETTINGS | {"svg.hashsalt": picture.name}
    out = io.StringIO()
    with matplotlib.rc_context(settings):
        picture.figure.savefig(out, format="svg", dpi=DPI, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{picture.name}-', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{picture.name}-", svg)


def to_png(picture: Picture) -> bytes:
    """The picture on white, for slides and papers."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        picture.figure.savefig(
            out, format="png", dpi=200, facecolor="white", metadata={"Software": None}
        )
    return out.getvalue()
