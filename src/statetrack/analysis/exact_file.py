"""exact.json: what became of a trained run on its way to an exact network, a row of a table.

    {"task", "model", "layers", "trained_to", "steps", "seed", "fingerprint",
     "config": config.json of the run, "made": versions, code and hardware,
     "letters", "states", "equal", "trusted_to", "breaks_after", "queries",
     "compiled": {"method", "layers", "householders", "parameters", "proved", "steps"} or null,
     "right": [[length, trained, compiled], ...]}

The classes below have the same names. A file that does not fit them is refused. `statetrack exact`
writes it, `statetrack archive` adds it to results/exact, and `statetrack report` shows it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from statetrack.analysis.extract import Extraction
from statetrack.compiler import CompiledRNN, Proof
from statetrack.config import Config
from statetrack.runs import StoredRun
from statetrack.runs.environment import environment
from statetrack.runs.files import read_json, write_atomically
from statetrack.runs.folder import config_file
from statetrack.runs.labels import model_label

__all__ = [
    "EXACT",
    "CompiledFacts",
    "ExactRecord",
    "Right",
    "exact_files",
    "exact_record",
    "read_exact",
    "store_exact",
    "write_exact",
]

EXACT = "exact.json"
ARCHIVE = "exact"
"""The folder of an archive that holds these files, each named by its run."""


class Right(NamedTuple):
    """The share of random sequences of one length without a mistake, of both networks."""

    length: int
    trained: float | None
    compiled: float | None


@dataclass(frozen=True, kw_only=True)
class CompiledFacts(Config):
    """The network that was compiled from the machine.

    Attributes:
        method, layers, householders, parameters: what `compile` took, and what it costs.
        proved: whether `prove` found it right after words of any length.
        steps: single steps of the proof.
    """

    method: str
    layers: int
    householders: int
    parameters: int
    proved: bool
    steps: int


@dataclass(frozen=True, kw_only=True)
class ExactRecord(Config):
    """A trained run, the machine that it has learnt, and the network compiled from that.

    Attributes:
        task, model, layers: what was trained, on what.
        trained_to: the longest example.
        steps, seed, fingerprint, config: of the run.
        made: versions, code and hardware.
        letters: of the machine, or else of the task's; None if there is neither.
        states: of the machine found; None if the run has learnt none.
        equal: whether it is the task's machine; None if one of them is not there.
        trusted_to, breaks_after: as `extract` found them, in letters.
        queries: words that the run was asked.
        compiled: the network; None without a machine.
        right: of random sequences.
    """

    task: str
    model: str
    layers: int
    trained_to: int
    steps: int
    seed: int
    fingerprint: str
    config: Mapping[str, Any]
    made: Mapping[str, Any]
    letters: int | None
    states: int | None
    equal: bool | None
    trusted_to: int | None
    breaks_after: int | None
    queries: int
    compiled: CompiledFacts | None
    right: tuple[Right, ...]

    @property
    def exact(self) -> bool:
        """Whether there is a network that is proved right for the task after words of any length.

        A network that follows another machine exactly is none, nor is one for a task whose machine
        is not known.
        """
        return self.compiled is not None and self.compiled.proved and self.equal is True


def exact_record(
    run: StoredRun,
    found: Extraction,
    compiled: tuple[CompiledRNN, Proof] | None,
    right: Iterable[Right],
) -> ExactRecord:
    """The row of a run whose machine was found, or not."""
    config, facts = run.config, None
    if compiled is not None:
        network, proof = compiled
        cost = network.plan.cost
        facts = CompiledFacts(
            method=network.plan.method,
            layers=cost.layers,
            householders=cost.householders,
            parameters=cost.parameters,
            proved=proof.wrong is None,
            steps=proof.steps,
        )
    known = found.machine is not None and found.target is not None
    learnt = found.target if found.machine is None else found.machine
    return ExactRecord(
        task=config.learns.name,
        model=model_label(config),
        layers=config.model.backbone.num_layers,
        trained_to=config.lengths[1],
        steps=config.steps,
        seed=config.seed,
        fingerprint=config.fingerprint,
        config=config_file(config),
        made=environment("cpu"),
        letters=None if learnt is None else learnt.num_letters,
        states=None if found.machine is None else found.machine.num_states,
        equal=found.difference is None if known else None,
        trusted_to=found.trusted_to,
        breaks_after=None if found.breaks is None else len(found.breaks.word),
        queries=found.queries,
        compiled=facts,
        right=tuple(right),
    )


def write_exact(record: ExactRecord, folder: Path | str) -> Path:
    """Writes exact.json into a folder."""
    path = Path(folder) / EXACT
    write_atomically(path, _content(record))
    return path


def read_exact(path: Path | str) -> ExactRecord:
    """What such a file says; a `ValueError` names one that is broken."""
    try:
        return ExactRecord.from_dict(read_json(Path(path)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is broken: {error}; `statetrack exact` writes it anew") from error


def exact_files(root: Path | str) -> list[Path]:
    """The files in a folder and below: those of `statetrack exact`, and those of an archive.

    Of several about one run the newest counts.
    """
    root = Path(root)
    kept = sorted((root / ARCHIVE).glob("*.json"), key=lambda path: path.stem)
    paths = [*root.rglob(EXACT), *kept]
    return list({read_exact(path).fingerprint: path for path in paths}.values())


def store_exact(path: Path | str, archive: Path | str, *, retest: date | None = None) -> bool:
    """Adds a file to an archive; whether it is new there. One with other content is refused."""
    record = read_exact(path)
    name = record.fingerprint + ("" if retest is None else f"-{retest.isoformat()}")
    to = Path(archive) / ARCHIVE / f"{name}.json"
    if to.exists():
        if to.read_bytes() == _content(record):
            return False
        raise ValueError(
            f"{to} has other content than {path}, and is never replaced; add it as a retest "
            "(--retest)"
        )
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, _content(record))
    return True


def _content(record: ExactRecord) -> bytes:
    return (json.dumps(record.to_dict(), allow_nan=False) + "\n").encode()
