"""Colours that can be seen and told apart, on a light and on a dark page."""

import itertools
import json
import re
from pathlib import Path

import pytest
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

import statetrack.report
from statetrack.layers.registry import BUILT_IN
from statetrack.report import figures, looks
from statetrack.report.tables import Curve, Point

CSS, JS = (
    (Path(statetrack.report.__file__).parent / name).read_text() for name in ("page.css", "page.js")
)


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def variables(scheme: str) -> dict[str, str]:
    """The colours of page.css in a scheme."""
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})\b", part)) for part in _roots())
    return light if scheme == "light" else light | dark


def _roots() -> tuple[str, str]:
    first, second = CSS.split("@media screen and (prefers-color-scheme: dark)", 1)
    return first, second[: second.index("} }")]


def test_contrast_is_measured_as_the_standard_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_stands_out(scheme: str) -> None:
    for colour in [*looks.MODELS.values(), *looks.OTHERS]:
        for page in looks.PAGES[scheme]:
            assert contrast(getattr(colour, scheme), page) >= 3, colour


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    found = variables(scheme)
    assert (found["page"], found["card"]) == looks.PAGES[scheme]
    for ink in ("ink", "soft", "accent", "warn"):
        for ground in ("page", "card"):
            assert contrast(found[ink], found[ground]) >= 4.5, (ink, ground)
    for verdict in ("far-below", "below", "equal", "above", "far-above"):
        assert contrast(found["ink"], found[verdict]) >= 4.5, verdict


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_two_models_share_a_colour(scheme: str) -> None:
    shown = [getattr(colour, scheme) for colour in [*looks.MODELS.values(), *looks.OTHERS]]
    for a, b in itertools.combinations(shown, 2):
        apart = sum(abs(int(a[i : i + 2], 16) - int(b[i : i + 2], 16)) for i in (1, 3, 5))
        assert apart >= 30, (a, b)


def test_every_layer_of_ours_has_a_colour_of_its_own() -> None:
    named = {name.split(" ")[0] for name in looks.MODELS}
    assert named >= BUILT_IN


def test_a_strange_model_keeps_its_colour_and_a_strange_range_its_dashes() -> None:
    assert looks.colour_of("MyLayer") == looks.colour_of("MyLayer") in looks.OTHERS
    assert looks.dashes_of("[-0.3, 1]") not in looks.RANGES.values()
    assert len(set(looks.RANGES.values())) == len(looks.RANGES)


def test_markers_are_the_same_on_page_and_plot() -> None:
    (written,) = re.findall(r"const MARKERS = (\[.*?\]);", JS)
    assert tuple(json.loads(written)) == looks.MARKERS == tuple(figures.MARKERS)
    assert len(set(figures.MARKERS.values())) == len(looks.MARKERS)
    shapes = JS[JS.index("const shapes = {") :].split("};", 1)[0]
    assert set(re.findall(r"^ +([a-z]+): `M", shapes, re.MULTILINE)) == set(looks.MARKERS[1:])


def test_the_name_of_a_model_fits_its_panel() -> None:
    names = ["DeltaNet", "DeltaProduct n=6 stretched", "GatedDeltaNet [-1, 1] x2 + Attention"]
    for many in (names, names[1:]):
        points = tuple(Point(x, "here", 0.5, 0.0, 1.0) for x in (1.0, 2.0))
        curves = [Curve(name, points, seeds=1, model=name) for name in many]
        made = figures.curves_picture("one", "", curves, x_label="x", y_label="y")
        assert made is not None
        renderer = FigureCanvasAgg(made.figure).get_renderer()
        for axes in made.figure.axes:
            (title,) = (text for text in axes.get_children() if _says(text, axes.get_title("left")))
            wide = axes.get_window_extent(renderer).width
            assert title.get_window_extent(renderer).width <= wide


def _says(artist: Artist, words: str) -> bool:
    return isinstance(artist, Text) and artist.get_text() == words
