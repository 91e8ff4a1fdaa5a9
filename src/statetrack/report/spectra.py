"""Eigenvalues of the trained layers, on words of the evaluation set."""

from dataclasses import dataclass

from statetrack.analysis.runs import look_at, read_audit
from statetrack.report.tables import Group

__all__ = ["Dot", "Spectrum", "spectrum"]


@dataclass(frozen=True)
class Dot:
    """Eigenvalues of one layer that are (nearly) alike: their place and their share of all."""

    layer: int
    real: float
    imag: float
    share: float


@dataclass(frozen=True)
class Spectrum:
    """What A(x_t) of a trained model looks like; without dots, `reason` says why.

    Attributes:
        label: the model.
        seed: of the run it is taken from, the best of its group.
        dots: by layer and place.
        lowest: the least real part.
    """

    label: str
    seed: int
    dots: tuple[Dot, ...] = ()
    lowest: float | None = None
    reason: str | None = None


def spectrum(group: Group) -> Spectrum | None:
    """The spectrum of the group's best run; `None` if no run of it has finished.

    It is that of the run's audit, or else of its weights.
    """
    if not group.chosen:
        return None
    best = group.ranked[0]
    seed = best.config.seed
    try:
        found = read_audit(best) or look_at(best)
    except Exception as error:  # whatever is wrong with the weights, the rest of the page stands
        reason = f"{best.folder.name}/model.safetensors cannot be read: {_first_line(error)}"
        return Spectrum(group.label, seed, reason=reason)
    if found["note"] is not None:
        return Spectrum(group.label, seed, reason=found["note"])
    dots = tuple(Dot(*dot) for dot in found["spectrum"])
    return Spectrum(group.label, seed, dots, min(layer["lowest"] for layer in found["layers"]))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
