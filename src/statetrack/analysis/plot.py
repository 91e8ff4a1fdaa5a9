"""The picture of an audit; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from statetrack._extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from statetrack.analysis.audit import Audit


def spectrum_figure(audit: Audit) -> Figure:
    """Left the eigenvalues of all layers in the complex plane, right β or a for each token."""
    figure_class = _figure_class()
    count = len(audit.layers)
    figure = figure_class(figsize=(9.5, 0.6 + 2.4 * max(count, 1.4)), layout="constrained")
    grid = figure.add_gridspec(count, 2, width_ratios=(1, 1.6))
    for row, layer in enumerate(audit.layers):
        plane = figure.add_subplot(grid[row, 0])
        turn = np.linspace(0, 2 * np.pi, 200)
        plane.plot(np.cos(turn), np.sin(turn), color="0.8", linewidth=1)
        plane.axhline(0, color="0.9", linewidth=0.8)
        plane.axvline(0, color="0.9", linewidth=0.8)
        for values, marker, name in (
            (layer.products, "x", f"products of {layer.window}"),
            (layer.eigenvalues, "o", "A(x)"),
        ):
            if marker == "x" and layer.window == 1:
                continue
            flat = values.ravel()
            plane.scatter(flat.real, flat.imag, s=14, marker=marker, alpha=0.5, label=name)
        plane.set_aspect("equal")
        plane.set_title(f"{layer.name}: eigenvalues", fontsize=9)
        plane.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
        plane.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        tokens = figure.add_subplot(grid[row, 1])
        time = np.repeat(np.arange(len(layer.gates)), layer.gates.shape[1])
        tokens.scatter(time, layer.gates.ravel(), s=6, alpha=0.6)
        tokens.set_ylim((-0.1, 2.1) if layer.gate_name == "beta" else (-1.1, 1.1))
        tokens.set_title(f"{layer.name}: {layer.gate_name} for each token", fontsize=9)
        if len(audit.tokens) <= 40:
            tokens.set_xticks(range(len(audit.tokens)), audit.tokens, fontsize=7)
        tokens.set_xlabel("token", fontsize=8)
    return figure


def _figure_class() -> type[Figure]:
    with needs("a picture", "matplotlib", "plot"):
        from matplotlib.figure import Figure
    return Figure
