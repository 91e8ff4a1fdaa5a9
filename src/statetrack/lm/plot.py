"""Loss against position, several models in one picture."""

from collections.abc import Mapping
from typing import Any

from statetrack._extras import needs
from statetrack.lm.evaluation import CONFIDENCE, Evaluation

__all__ = ["plot"]


def plot(
    evaluations: Mapping[str, Evaluation],
    *,
    trained: int | None = None,
    running: bool = False,
    title: str = "",
) -> Any:
    """A matplotlib figure: loss in nats a token against the position, with 95 % bands.

    Args:
        trained: the training length, drawn as a line.
        running: the mean up to each position, whose exponential is the perplexity at a length.
    """
    with needs("a plot", "matplotlib", "plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, found in evaluations.items():
        middle = found.running if running else found.loss
        errors = found.running_error if running else found.loss_error
        (line,) = axes.plot(found.ends, middle, label=name)
        bands = [CONFIDENCE * (error or 0.0) for error in errors]
        axes.fill_between(
            found.ends,
            [value - band for value, band in zip(middle, bands, strict=True)],
            [value + band for value, band in zip(middle, bands, strict=True)],
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    if trained is not None:
        axes.axvline(trained, color="gray", linestyle="--", linewidth=1)
        axes.annotate(
            " trained to here", (trained, 0.99), xycoords=("data", "axes fraction"), va="top"
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("position in the sequence")
    axes.set_ylabel("mean loss so far (nats a token)" if running else "loss (nats a token)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=min(len(evaluations), 3))
    return figure
