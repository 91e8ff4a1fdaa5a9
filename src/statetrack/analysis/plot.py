"""Pictures of an audit and of a machine; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from statetrack.automata import Machine

if TYPE_CHECKING:
    from statetrack.analysis.audit import Audit


def spectrum_figure(audit: Audit) -> Any:
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


def machine_figure(machine: Machine) -> Any:
    """The state diagram of a small machine, states on a circle."""
    figure = _figure_class()(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    n = machine.num_states
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    accepting = machine.outputs if machine.outputs.dtype == np.bool_ else np.zeros(n, dtype=bool)
    for q, (x, y) in enumerate(place):
        axes.scatter(x, y, s=900, facecolor="white", edgecolor="black", zorder=3)
        if accepting[q]:
            axes.scatter(x, y, s=650, facecolor="white", edgecolor="black", zorder=3)
        axes.text(x, y, str(q), ha="center", va="center", zorder=4)
        for target in sorted(set(machine.delta[q].tolist())):
            letters = [
                str(a)
                for a, to in zip(machine.alphabet, machine.delta[q], strict=True)
                if to == target
            ]
            _arrow(axes, place[q], place[target], ",".join(letters))
    axes.annotate(
        "", place[0] + (-0.19, 0.08), place[0] + (-0.55, 0.25), arrowprops={"arrowstyle": "->"}
    )
    axes.set_xlim(-1.7, 1.7)
    axes.set_ylim(-1.6, 1.7)
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


def _arrow(axes: Any, start: Any, end: Any, label: str) -> None:
    if (start == end).all():
        turn = np.linspace(0, 2 * np.pi, 60)
        axes.plot(
            *(1.2 * start[:, None] + 0.15 * np.stack([np.cos(turn), np.sin(turn)])),
            color="black",
            linewidth=1,
        )
        axes.text(*(1.47 * start), label, ha="center", va="center")
        return
    style = {"arrowstyle": "->", "connectionstyle": "arc3,rad=0.2", "shrinkA": 16, "shrinkB": 16}
    axes.annotate("", end, start, arrowprops=style)
    across = end - start
    side = np.array([-across[1], across[0]]) / np.linalg.norm(across)
    axes.text(*((start + end) / 2 - 0.22 * side), label, ha="center", va="center")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install 'statetrack[plot]'") from None
    return Figure
