"""The paper's figures and tables, and a few beyond, as functions returning `list[RunConfig]`."""

from statetrack._suggest import did_you_mean
from statetrack.experiments._base import Experiment as Experiment
from statetrack.experiments._base import Scale as Scale
from statetrack.experiments._base import Version as Version
from statetrack.experiments.applied import APPLIED
from statetrack.experiments.arithmetic_far import ARITHMETIC_FAR
from statetrack.experiments.chomsky import CHOMSKY
from statetrack.experiments.parity_diagonal import PARITY_DIAGONAL
from statetrack.experiments.parity_far import PARITY_FAR
from statetrack.experiments.signed_gates import SIGNED_GATES
from statetrack.experiments.words import HOUSEHOLDERS, S5, Z60

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        PARITY_DIAGONAL,
        PARITY_FAR,
        CHOMSKY,
        ARITHMETIC_FAR,
        S5,
        Z60,
        SIGNED_GATES,
        HOUSEHOLDERS,
        *APPLIED,
    )
}
STATES = "states"
STATES_ALIASES = ("figure-2", "figure2")
STATES_SUMMARY = (
    "what the state does on 1111..., for eigenvalues of either sign; nothing is trained"
)


def get(name: str) -> Experiment:
    """The experiment of that name or alias; a miss suggests the nearest.

    >>> get("table-3").name
    'chomsky'
    """
    by_name = dict(EXPERIMENTS)
    for experiment in EXPERIMENTS.values():
        by_name |= {alias: experiment for alias in experiment.aliases}
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key in by_name:
        return by_name[key]
    hint = did_you_mean(key, [*by_name, STATES])
    raise ValueError(
        f"unknown experiment {name!r}; {hint}There are {', '.join([*EXPERIMENTS, STATES])}"
    )
