"""Draws the README's picture from the runs of the demo.

make demo && .venv/bin/python docs/pictures.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from statetrack.report.tables import trained_tokens
from statetrack.runs import Run, find_runs
from statetrack.runs.labels import eigen_range

ROOT = Path(__file__).parents[1]
BIN = 8  # lengths averaged for one point
STYLE = {
    (0.0, 1.0): ("tab:red", "eigenvalues in [0, 1]"),
    (-1.0, 1.0): ("tab:blue", "eigenvalues in [-1, 1]"),
}


def points(run: Run) -> tuple[list[float], list[float]]:
    """Accuracy over `BIN` neighbouring lengths, and their middle."""
    curve = sorted(run.curve("accuracy").items())
    groups = [curve[i : i + BIN] for i in range(0, len(curve), BIN)]
    middle = [sum(length for length, _ in group) / len(group) for group in groups]
    return middle, [sum(value for _, value in group) / len(group) for group in groups]


def main() -> None:
    runs = [run for run in find_runs(ROOT / "demo") if run.finished]
    if not runs:
        raise SystemExit("there are no finished runs in demo/: run `make demo` first")
    models = sorted({run.config.model.backbone.mixers[0].layer for run in runs})
    figure, axes = pyplot.subplots(
        1, len(models), figsize=(9, 3.2), sharey=True, layout="constrained"
    )
    for axis, model in zip(axes, models, strict=True):
        for run in runs:
            if run.config.model.backbone.mixers[0].layer == model:
                colour, label = STYLE[eigen_range(run.config)]
                axis.plot(*points(run), color=colour, label=label, linewidth=2)
        longest = trained_tokens(run.config)
        axis.axvspan(0, longest, color="0.93")
        axis.text(longest / 2, 0.28, "trained\nhere", ha="center", fontsize=8, color="0.4")
        axis.axhline(0.5, color="0.6", linestyle=":", linewidth=1)
        axis.text(251, 0.41, "a guess", ha="right", fontsize=8, color="0.4")
        axis.set(title=model, xlabel="number of bits", ylim=(0.2, 1.05), xlim=(0, 255))
    axes[0].set_ylabel("accuracy on parity")
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 0.62), frameon=False, fontsize=9)
    out = ROOT / "docs" / "images" / "parity.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(f"written to {out.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
