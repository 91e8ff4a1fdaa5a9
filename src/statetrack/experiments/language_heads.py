"""Which heads of a language model use negative eigenvalues, and on which tokens."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from statetrack.analysis.spectra import lowest_on
from statetrack.lm.shards import Manifest, Part
from statetrack.lm.text import Text
from statetrack.lm.token_classes import CLASSES, token_classes
from statetrack.models import CausalLM
from statetrack.models._tokens import evaluating
from statetrack.training.precision import autocast

__all__ = ["FIRST", "HeadSettings", "held_out", "look_at_heads", "windows_of"]

FIRST = "first of a document"
"""A class of its own, whatever the token is."""
MOST_HEADS = 512
"""Of a layer; those of one with more (Mamba has one for each channel) are only counted together."""

ROUNDING = 1e-6
"""An eigenvalue of 0 may come out so far below it."""

Values = NDArray[np.float32]
Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """What is read, and how much of it is told.

    Attributes:
        windows, length: of the held-out text of every domain.
        least: times that a token is read before its mean counts.
        tokens: shown of every head, those with the lowest means.
        shown: heads in the examples, those below -0.5 and then below 0 most often.
        pieces, piece: examples of every domain, and their tokens.
    """

    windows: int = 16
    length: int = 2048
    least: int = 20
    tokens: int = 8
    shown: int = 4
    pieces: int = 2
    piece: int = 72
    bins: int = 40


def held_out(manifest: Manifest, settings: HeadSettings) -> dict[str, list[Tokens]]:
    """Domain -> windows of its held-out text; those without one are left out."""
    windows = {
        name: Part(manifest, "validation", name).windows(settings.length, settings.windows)
        for name in manifest.domains("validation")
    }
    windows = {name: rows for name, rows in windows.items() if rows}
    if not windows:
        raise ValueError(
            f"{manifest.folder} has no held-out text of {settings.length} tokens in one domain"
        )
    return windows


def windows_of(texts: Iterable[str], text: Text, settings: HeadSettings) -> list[Tokens]:
    """Windows at equal distances of texts that stand one behind the other, as shards have them.

    Where there are fewer tokens than a window has, it is all of them.
    """
    end = [] if text.end is None else [text.end]
    tokens = np.array([token for one in texts for token in [*text.encode(one), *end]])
    if len(tokens) < 2:
        raise ValueError("there is no text to read")
    length = min(settings.length, len(tokens))
    count = min(settings.windows, len(tokens) // length)
    step = (len(tokens) - length) // max(1, count - 1)
    return [tokens[place * step :][:length] for place in range(count)]


def look_at_heads(
    model: CausalLM,
    text: Text,
    windows: Mapping[str, Sequence[Tokens]],
    settings: HeadSettings,
    *,
    end: int | None,
    precision: str = "fp32",
) -> dict[str, Any]:
    """The lowest eigenvalue of A(x_t) in every head, on windows of text: plain JSON types.

    `end` is the token that ends a document, if there is one.

    The eigenvalue is that of DeltaNet's key, 1 - β; of other layers it is the one with the smallest
    real part. Shares are of tokens. The pieces shown are the same for every model: they begin
    behind the first newline in the middle of the first windows. A layer with more than `MOST_HEADS`
    heads counts in the shares and has no head of its own to tell of; a model without transitions
    has neither.
    """
    device = model.embedding.weight.device
    with evaluating(model), autocast(device, precision):
        by_layer = lowest_on(
            model, [torch.from_numpy(row) for rows in windows.values() for row in rows]
        )
    sizes = {name: sum(map(len, rows)) for name, rows in windows.items()}
    told = {
        "settings": vars(settings),
        "tokens": sizes,
    }
    if not by_layer:
        return told | {"heads": [], "examples": []}
    layers = [found.T.numpy() for found in by_layer.values()]  # [heads, tokens] each
    few = [(number, rows) for number, rows in enumerate(layers, 1) if len(rows) <= MOST_HEADS]
    places = [(number, head) for number, rows in few for head in range(len(rows))]
    values = [row for _, rows in few for row in rows]
    tokens = np.concatenate([row for rows in windows.values() for row in rows])
    kinds = _kinds(tokens, windows, token_classes(text), end)
    domains = np.repeat(list(sizes), list(sizes.values()))
    edges = np.linspace(-1, 1, settings.bins + 1)
    heads = [
        {"layer": layer, "head": head}
        | _numbers([row])
        | {
            "histogram": np.histogram(row, edges)[0].tolist(),
            "by_domain": {name: _numbers([row[domains == name]]) for name in windows},
            "by_class": {
                name: _numbers([row[kinds == place]])
                for place, name in enumerate([*CLASSES, FIRST])
                if (kinds == place).any()
            },
            "tokens": _lowest_tokens(row, tokens, text, settings),
        }
        for (layer, head), row in zip(places, values, strict=True)
    ]
    order = sorted(heads, key=lambda one: (-one["below_half"], -one["below_0"], one["mean"]))
    shown = [(one["layer"], one["head"]) for one in order[: settings.shown]]
    return told | {
        "edges": [round(float(edge), 6) for edge in edges],
        "all": _numbers(layers),
        "by_class": {
            name: {"tokens": int((kinds == place).sum())}
            | _numbers(rows[:, kinds == place] for rows in layers)
            for place, name in enumerate([*CLASSES, FIRST])
            if (kinds == place).any()
        },
        "by_domain": {
            name: _numbers(rows[:, domains == name] for rows in layers) for name in windows
        },
        "heads": heads,
        "examples": _examples(windows, text, values, places, shown, settings) if shown else [],
    }


def _kinds(
    tokens: Tokens,
    windows: Mapping[str, Sequence[Tokens]],
    classes: Sequence[str],
    end: int | None,
) -> Tokens:
    """The number of every token's class."""
    number = {name: place for place, name in enumerate([*CLASSES, FIRST])}
    table = np.array([number[name] for name in classes])
    kinds: Tokens = table[tokens]
    if end is None:
        return kinds
    kinds[tokens == end] = number["end of document"]
    follows = [
        np.concatenate([[False], row[:-1] == end]) for rows in windows.values() for row in rows
    ]
    kinds[np.concatenate(follows)] = number[FIRST]
    return kinds


def _numbers(parts: Iterable[Values]) -> dict[str, Any]:
    """Of all eigenvalues: their number, mean and least, and the shares below 0 and -0.5."""
    count, total, below, below_half, lowest = 0, 0.0, 0, 0, math.inf
    for values in parts:
        count += values.size
        total += float(values.sum(dtype=np.float64))
        below += int((values < -ROUNDING).sum())
        below_half += int((values < -0.5).sum())
        lowest = min(lowest, float(values.min()))
    return {
        "count": count,
        "mean": round(total / count, 4),
        "lowest": round(lowest, 4),
        "below_0": round(below / count, 5),
        "below_half": round(below_half / count, 5),
    }


def _lowest_tokens(
    row: Values, tokens: Tokens, text: Text, settings: HeadSettings
) -> list[dict[str, Any]]:
    counts = np.bincount(tokens)
    sums = np.bincount(tokens, weights=row)
    often = np.flatnonzero(counts >= settings.least)
    means = sums[often] / counts[often]
    return [
        {
            "token": text.decode([int(often[place])]),
            "count": int(counts[often[place]]),
            "mean": round(float(means[place]), 4),
        }
        for place in np.argsort(means, kind="stable")[: settings.tokens]
    ]


def _examples(
    windows: Mapping[str, Sequence[Tokens]],
    text: Text,
    values: Sequence[Values],
    places: Sequence[tuple[int, int]],
    shown: Sequence[tuple[int, int]],
    settings: HeadSettings,
) -> list[dict[str, Any]]:
    found = []
    before = 0
    for domain, rows in windows.items():
        for number, row in enumerate(rows):
            if number < settings.pieces:
                first = _begin(row, text, settings)
                part = slice(first, first + settings.piece)
                found.append(
                    {
                        "domain": domain,
                        "tokens": [text.decode([token]) for token in row[part].tolist()],
                        "heads": [
                            {
                                "layer": layer,
                                "head": head,
                                "values": [
                                    round(float(value), 3)
                                    for value in values[places.index((layer, head))][
                                        before + part.start : before + part.stop
                                    ]
                                ],
                            }
                            for layer, head in shown
                        ],
                    }
                )
            before += len(row)
    return found


def _begin(row: Tokens, text: Text, settings: HeadSettings) -> int:
    """Behind the first newline from the middle on, or the middle."""
    middle = max(0, min(len(row) // 2, len(row) - settings.piece))
    last = len(row) - settings.piece
    for place in range(middle, last):
        if text.decode([int(row[place])]).endswith("\n"):
            return place + 1
    return middle
