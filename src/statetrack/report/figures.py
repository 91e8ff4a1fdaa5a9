"""From tables to pictures: matplotlib figures, as SVG that answers to the mouse, and as PNG.

Every picture has the size of a phone's screen, so that its letters can be read there.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from statetrack.report.spectra import Spectrum
from statetrack.report.tables import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

__all__ = ["Picture", "Style", "curves_picture", "spectrum_picture", "styles", "to_png", "to_svg"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00")
"""Okabe and Ito's, which the colour-blind can tell apart; black and yellow left out, which cannot
be seen on a dark or a light page."""

DASHES = ("", "6 2.5", "1.5 2", "8 2 1.5 2")
"""Taken in turn with the colours: a line on top of another lets it shine through."""

MARKERS = "osD^vP"
SIZE = (4.6, 3.0)
LEGEND_ROW = 0.18  # inches
DPI = 72  # SVG's points: a figure's pixels are the picture's units
AXES_GREY = "#808080"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9.5,
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


@dataclass(frozen=True)
class Style:
    """How a line is drawn; `dashes` as SVG writes them."""

    colour: str
    dashes: str

    @property
    def matplotlib_dashes(self) -> "tuple[float, tuple[float, ...]] | str":
        return (0.0, tuple(map(float, self.dashes.split()))) if self.dashes else "-"


@dataclass(frozen=True)
class Hit:
    """A spot of a picture that says something when pointed at."""

    x: float
    y: float
    text: str
    colour: str


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, and its spots in data coordinates."""

    name: str
    title: str
    figure: "Figure"
    hits: tuple[Hit, ...]


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for every label; no two of 28 are alike in colour and dashes.

    >>> styles(["a", "b"])["b"].colour
    '#D55E00'
    """
    unique = list(dict.fromkeys(labels))
    return {
        label: Style(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)])
        for i, label in enumerate(unique)
    }


def curves_picture(
    name: str,
    title: str,
    curves: Sequence[Curve],
    style: dict[str, Style],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    mark: float | None = None,
    legend: bool = False,
) -> Picture:
    """Lines with a band from the least to the greatest seed; `mark` is where training ended."""
    figure, axes = _canvas()
    if mark is not None:
        axes.axvspan(0, mark, color=AXES_GREY, alpha=0.12, linewidth=0)
        longest = max((point.x for curve in curves for point in curve.points), default=mark)
        axes.annotate(
            f"trained to {mark:g}",
            (mark, 1.0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(0, 3),
            ha="left" if mark < longest / 2 else "right",
            fontsize=8.5,
        )
        axes.axvline(mark, color=AXES_GREY, linestyle=":", linewidth=1.2)
    hits = []
    for curve in curves:
        look = style[curve.label]
        x = [point.x for point in curve.points]
        axes.plot(
            x,
            [point.middle for point in curve.points],
            color=look.colour,
            linestyle=look.matplotlib_dashes,
            linewidth=1.8,
            marker="o" if len(x) == 1 else None,
            label=curve.label,
        )
        if curve.seeds > 1:
            low = [point.low for point in curve.points]
            high = [point.high for point in curve.points]
            axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
        for point in curve.points:
            text = f"{curve.label}: {point.middle:.3f} at {point.where}"
            if curve.seeds > 1:
                text += f" ({point.low:.3f} to {point.high:.3f} over {curve.seeds} seeds)"
            hits.append(Hit(point.x, point.middle, text, look.colour))
    axes.set(xlabel=x_label, ylabel=y_label)
    if y_range is not None:
        least = min((point.low for curve in curves for point in curve.points), default=0.0)
        axes.set_ylim(min(y_range[0], least - 0.05), y_range[1])
    axes.set_xlim(left=0)
    if legend:
        rows = -(-len(curves) // 2)
        figure.set_size_inches(SIZE[0], SIZE[1] + LEGEND_ROW * rows)
        figure.legend(loc="outside lower left", frameon=False, fontsize=8, ncols=2)
    return Picture(name, title, figure, tuple(hits))


def spectrum_picture(name: str, spectrum: Spectrum, *, heading: str | None = None) -> Picture:
    """The eigenvalues in the complex plane; where all are real, each above with its share.

    `heading` is written above the axes, for a picture that stands alone.
    """
    figure, axes = _canvas()
    layers = sorted({dot.layer for dot in spectrum.dots})
    real = all(dot.imag == 0 for dot in spectrum.dots)
    hits = []
    for layer in layers:
        dots = [dot for dot in spectrum.dots if dot.layer == layer]
        colour = COLOURS[(layer - 1) % len(COLOURS)]
        x = [dot.real for dot in dots]
        y = [dot.share if real else dot.imag for dot in dots]
        sizes = 22.0 if real else [8 + 120 * dot.share**0.5 for dot in dots]
        marker = MARKERS[(layer - 1) % len(MARKERS)]
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
        for dot, height in zip(dots, y, strict=True):
            number = f"{dot.real:.2f}" if real else f"{dot.real:.2f} {dot.imag:+.2f} i"
            text = f"layer {layer}: {number}, {dot.share:.2%} of the eigenvalues"
            hits.append(Hit(dot.real, height, text, colour))
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
    if heading is not None:
        axes.set_title(heading, fontsize=9.5)
    if len(layers) > 1:
        figure.legend(loc="outside upper left", fontsize=8, frameon=False, ncols=4)
    return Picture(name, heading or spectrum.label, figure, tuple(hits))


def _no_ticks() -> "Locator":
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _canvas() -> "tuple[Figure, Axes]":
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "the report needs matplotlib: pip install 'statetrack[report]'"
        ) from error
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
    return figure, axes


def to_svg(picture: Picture, *, hover: bool = True) -> str:
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
    svg = re.sub(r'(url\(|href=")#', rf"\1#{picture.name}-", svg)
    if not hover:
        return svg
    title = f'<svg role="img" aria-label="{escape(picture.title)}"'
    return svg.replace("<svg", title, 1).replace("</svg>", f"{_hit_elements(picture)}</svg>")


def _hit_elements(picture: Picture) -> str:
    """A round spot for every hit; must come after the figure was drawn, which lays it out."""
    (axes,) = picture.figure.axes
    height = picture.figure.bbox.height
    elements = []
    for hit in picture.hits:
        x, y = axes.transData.transform((hit.x, hit.y))
        elements.append(
            f'<circle class="hit" cx="{x:.1f}" cy="{height - y:.1f}" r="5" '
            f'fill="{hit.colour}"><title>{escape(hit.text)}</title></circle>'
        )
    return "\n".join(elements)


def to_png(picture: Picture) -> bytes:
    """The picture on white, for slides and papers."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        picture.figure.savefig(
            out, format="png", dpi=200, facecolor="white", metadata={"Software": None}
        )
    return out.getvalue()
