"""One colour for each model and one line style for each eigenvalue range, on every page and plot.

Every colour has a contrast of at least 3 to 1 to the page it is drawn on, light or dark. No curve
is told apart by its colour alone: its panel or its read-out names it.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MARKERS", "MODELS", "PAGES", "RANGES", "Colour", "colour_of", "dashes_of", "in_turn"]


@dataclass(frozen=True)
class Colour:
    """The same colour for a light page and for a dark one."""

    light: str
    dark: str


PAGES = {"light": ("#ffffff", "#f5f6f8"), "dark": ("#15181c", "#1e2227")}
"""What colours are drawn on: the page, and the card of a plot."""

MODELS = {
    "DeltaNet": Colour("#0067b1", "#5ab0f2"),
    "DeltaNet stretched": Colour("#3a8bd0", "#2f86cc"),
    "DeltaNet learnt": Colour("#003f7f", "#a5d6ff"),
    "DeltaNet, then windows": Colour("#0092c8", "#7fe0ff"),
    "GatedDeltaNet": Colour("#00808a", "#35c4c4"),
    "Mamba": Colour("#c94f00", "#ff9052"),
    "Mamba2": Colour("#946800", "#ddb040"),
    "GLA": Colour("#2b8a2b", "#6ccb6c"),
    "MLSTM": Colour("#c0358a", "#f582c3"),
    "SLSTM": Colour("#a80f2a", "#ff6b78"),
    "LSTM": Colour("#7b4b2a", "#c89b7b"),
    "RWKV7": Colour("#66791a", "#b4c75a"),
    "ChannelMix": Colour("#8c5e9c", "#d3a6e0"),
    "Attention": Colour("#5a6b86", "#9aa9c2"),
    "FullMatrix": Colour("#22262b", "#e6e9ee"),
    "Diagonal": Colour("#4757d6", "#98a3ff"),
    "KDA": Colour("#00735a", "#4fd1a5"),
    "TTTLinear": Colour("#d0287a", "#ff9ab8"),
    "LRU": Colour("#8b8000", "#e8e070"),
    # more factors, a stronger shade
    "DeltaProduct n=1": Colour("#a274d3", "#8a63c4"),
    "DeltaProduct n=2": Colour("#8d57c6", "#a27ad9"),
    "DeltaProduct n=3": Colour("#773eb2", "#b892e8"),
    "DeltaProduct n=4": Colour("#652c9f", "#ccaaf3"),
    "DeltaProduct n=6": Colour("#461676", "#e0c8fb"),
    "DeltaProduct n=6 stretched": Colour("#6b1a5e", "#f2b5ea"),
    "DeltaProduct n=6, then windows": Colour("#2a0a52", "#f3e6ff"),
}
"""By the model's label without its range, as `model_label(config, with_range=False)` writes it."""

OTHERS = (
    Colour("#8a5a83", "#c994c1"),
    Colour("#3f7f6c", "#7fc7b2"),
    Colour("#9b5b4a", "#dd9a88"),
    Colour("#2f6f8f", "#8cc4d8"),
    Colour("#7a7030", "#c4b868"),
)
"""For models that are not in the table: other people's layers, hybrids."""

RANGES = {"[-1, 1]": "", "[0, 1]": "5 3", None: "1.5 2.5"}
"""Range -> dashes, as SVG writes them. A model without a range is dotted."""

OTHER_RANGE = "9 3 2 3"

MARKERS = ("", "circle", "square", "triangle", "diamond", "cross", "wedge", "plus")
"""For models of one range that differ in depth or another setting, in their order."""


def colour_of(model: str) -> Colour:
    """The model's colour; of one that is not in the table always the same among `OTHERS`.

    >>> colour_of("DeltaNet").light
    '#0067b1'
    """
    return MODELS.get(model) or OTHERS[zlib.crc32(model.encode()) % len(OTHERS)]


def dashes_of(between: str | None) -> str:
    """The dashes of a range.

    >>> dashes_of("[0, 1]"), dashes_of("[-0.5, 1]")
    ('5 3', '9 3 2 3')
    """
    return RANGES.get(between, OTHER_RANGE)


def in_turn(labels: Sequence[str]) -> dict[str, tuple[Colour, str]]:
    """Colours and dashes for curves that are no models, label by label."""
    colours = [
        MODELS[name] for name in ("DeltaNet", "Mamba", "GLA", "MLSTM", "Mamba2", "Attention")
    ]
    dashes = list(RANGES.values())
    return {
        label: (colours[i % len(colours)], dashes[i % len(dashes)])
        for i, label in enumerate(dict.fromkeys(labels))
    }
