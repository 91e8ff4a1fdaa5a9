"""A length up to which every word is right, and a trained run made exact."""

from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.cli.show import LiveLine

if TYPE_CHECKING:
    from statetrack.automata import Machine

__all__ = ["certify", "polish"]


def certify(model: Path, *, against: str | None = None) -> int:
    """The length up to which every word, not a sample, is answered rightly.

    Of a run with one layer of the delta rule: rounding of its weights' dtype included, letter by
    letter and in chunks. Of a network that `statetrack compile` wrote: a proof for words of any
    length, by every single step of its layers. A model without such a bound is refused with the
    reason.

    Parameters
    ----------
    model
        A run folder, or a folder that `statetrack compile` wrote.
    against
        The machine or the task that a run is held to, as `statetrack extract --out` writes one; by
        default that of the task it was trained on.
    """
    from statetrack import analysis, compiler

    if (model / "compiled.json").exists():
        if against is not None:
            raise ValueError("--against is about runs; a compiled network has its own machine")
        proof = compiler.prove(compiler.CompiledRNN.load(model))
        print(proof)
        return 0 if proof.wrong is None else 1
    print(analysis.certify(model, _machine(model, against)))
    return 0


def polish(run: Path, *, out: Path, against: str | None = None, seconds: float = 300.0) -> int:
    """Repair a trained run, so that it follows its machine exactly.

    Keys, values, β, queries and head of its one layer are moved until every letter leads from state
    to state. The repaired model is accepted only if residual, margins and words say so. Then it is
    written to a folder that certify, extract and train --start take. The run stays as it is.

    Parameters
    ----------
    run
        A run folder.
    out
        The folder to write.
    against
        The machine or the task to follow, as `statetrack extract --out` writes one; by default that
        of the task the run was trained on.
    seconds
        When to stop looking.
    """
    from statetrack import analysis
    from statetrack.runs.files import write_atomically
    from statetrack.runs.folder import CONFIG, MODEL
    from statetrack.runs.tensors import save_tensors

    machine = _machine(run, against)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; give a folder that is new")
    print(f"{run} is repaired within {seconds:g} s", flush=True)
    line = LiveLine()
    found = analysis.polish(run, machine, seconds=seconds, progress=line)
    line.clear()
    print(found)
    if found.model is None:
        return 1
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / CONFIG, (run / CONFIG).read_bytes())
    write_atomically(out / MODEL, save_tensors(found.model.state_dict()))
    print(f"Model: {out}/")
    return 0


def _machine(run: Path, against: str | None) -> "Machine":
    """What is named, or what the run should have learnt."""
    from statetrack import tasks
    from statetrack.runs.folder import run_at

    config = run_at(run).config
    if config.KIND != "tagger":
        raise ValueError(f"{run} is a run of the kind {config.KIND!r}, which learns no task")
    task = tasks.get(against) if against is not None else config.learns
    if task.machine is None:
        raise ValueError(f"task {task.name!r} has no machine; name one with --against")
    return task.machine
