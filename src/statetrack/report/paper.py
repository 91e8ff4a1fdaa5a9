"""The paper's own numbers, to stand beside ours. What is not here is not known."""

from statetrack.training import RunConfig
from statetrack.training.progress import model_label

__all__ = ["best_in_paper"]

TABLE_3: dict[str, tuple[float, float, float]] = {
    "MLSTM [0, 1]": (0.087, 0.122, 0.120),
    "SLSTM": (1.000, 0.135, 0.133),
    "Mamba [0, 1]": (0.000, 0.003, 0.018),
    "Mamba [-1, 1]": (1.000, 0.111, 0.036),
    "DeltaNet [0, 1]": (0.017, 0.187, 0.182),
    "DeltaNet [-1, 1]": (1.000, 0.612, 0.339),
}
"""Scaled accuracy on lengths 40 to 256, the best of three seeds, for each of `TASKS`: table 3 of
"Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues"."""

TASKS = ("parity", "mod_arithmetic", "mod_arithmetic_brackets")
LENGTHS = (40, 256)


def best_in_paper(config: RunConfig) -> float | None:
    """Table 3's number for this task, model and range; `None` if it has none.

    The run must be trained on the table's task and judged on the table's lengths. Its size, steps
    and rates may be others: they are in the config, for the reader to judge.
    """
    judged = config.evaluation
    numbers = TABLE_3.get(model_label(config))
    if numbers is None or config.task not in TASKS:
        return None
    if (judged.task, judged.lengths) != (config.task, LENGTHS):
        return None
    return numbers[TASKS.index(config.task)]
