"""Eigenvalues of the trained layers, on words of the evaluation set."""

from dataclasses import dataclass

from statetrack.analysis import read_audit
from statetrack.analysis.run_audit import look_at
from statetrack.analysis.spectra import Dot
from statetrack.report.tables import Group
from statetrack.runs.folder import MODEL

__all__ = ["Spectrum", "spectrum"]


@dataclass(frozen=True)
class Spectrum:
    """What A(x_t) of a trained model looks like; without dots, one of the last two says why.

    Attributes:
        label, model: the model, with and without its range.
        seed: of the run it is taken from, the best of its group.
        dots: by layer and place.
        lowest: the least real part.
        kept: whether there is anything to look at: an audit, or the weights.
        reason: what is wrong with what there is.
    """

    label: str
    model: str
    seed: int
    dots: tuple[Dot, ...] = ()
    lowest: float | None = None
    kept: bool = True
    reason: str | None = None


def spectrum(group: Group) -> Spectrum | None:
    """The spectrum of the group's best run; `None` if no run of it has finished.

    It is that of the run's audit, or else of its weights.
    """
    if not group.chosen:
        return None
    best = group.ranked[0]
    seed = best.config.seed
    found = read_audit(best)
    if found is None and not best.has_weights:
        return Spectrum(group.label, group.model, seed, kept=False)
    try:
        found = found or look_at(best, lengths=())
    except Exception as error:  # whatever is wrong with the weights, the rest of the page stands
        reason = f"{best.name}/{MODEL} cannot be read: {_first_line(error)}"
        return Spectrum(group.label, group.model, seed, reason=reason)
    return Spectrum(group.label, group.model, seed, found.spectrum, found.lowest, reason=found.note)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
