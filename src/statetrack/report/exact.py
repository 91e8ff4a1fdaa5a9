"""From examples to exact networks: runs whose machine was extracted and compiled, as rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from statetrack.analysis.exact_file import ExactRecord, read_exact
from statetrack.runs.stored import Place

__all__ = ["ExactRow", "exact_rows"]


@dataclass(frozen=True, eq=False)
class ExactRow:
    """What `statetrack exact` found of a run, and the file that says so."""

    record: ExactRecord
    place: Place

    @property
    def cells(self) -> dict[str, str]:
        """Its line by the names of the columns; what is not known is empty."""
        found = self.record
        network = found.compiled
        kind, proved = "", "no network"
        if network is not None:
            factors = f", {_count(network.householders, 'Householder')}"
            kind = (
                f"{network.method}: {_count(network.layers, 'layer')}"
                f"{factors if network.householders else ''}, {network.parameters:,} weights"
            )
            proved = f"yes, proved with {network.steps:,} single steps" if found.exact else "no"
        if network is not None and network.proved and found.equal is False:
            proved = "of another machine than the task's"
        same = {True: "yes", False: "no", None: ""}[found.equal]
        return {
            "task": found.task,
            "model": found.model + (f" x{found.layers}" if found.layers > 1 else ""),
            "trained to": str(found.trained_to),
            "states": "none" if found.states is None else str(found.states),
            "the task's machine": same,
            "trusted to": "" if found.trusted_to is None else str(found.trusted_to),
            "breaks after": "" if found.breaks_after is None else str(found.breaks_after),
            "right at " + " / ".join(str(one.length) for one in found.right): " / ".join(
                "-" if one.trained is None else f"{one.trained:.2f}" for one in found.right
            ),
            "compiled": kind,
            "exact at every length": proved,
        }


def exact_rows(files: Iterable[Path]) -> list[ExactRow]:
    """By task and model; of several files about one run the last counts."""
    rows = [ExactRow(read_exact(path), Place(path)) for path in files]
    found = {row.record.fingerprint: row for row in rows}
    return sorted(
        found.values(),
        key=lambda row: (row.record.task, row.record.model, row.record.steps, row.record.seed),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
