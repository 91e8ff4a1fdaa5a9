"""The machine that a trained run has learnt."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.cli.options import choose_device
from statetrack.cli.show import LiveLine

if TYPE_CHECKING:
    from statetrack.automata import Machine

__all__ = ["extract"]


def extract(
    run: Path,
    *,
    against: str | None = None,
    out: Path | None = None,
    shortest: int = 8,
    longest: int = 1024,
    max_states: int = 256,
    epsilon: float = 1e-2,
    seconds: float = 60.0,
    device: str | None = None,
) -> int:
    """The finite machine that a trained run has learnt, found from its answers alone.

    Words of 8 letters are tried, then of 16, and so on. A machine counts once it is the same at two
    lengths in a row. Ctrl-C ends with what was found so far.

    Parameters
    ----------
    run
        A run folder.
    against
        The task or machine to compare with; by default the task the run was trained on.
    out
        Write the machine to this JSON file, which explain, compile and train --task take.
    shortest
        The first length.
    longest
        The last length, if the model does not break before.
    max_states
        A model that needs more states is said to have no machine.
    epsilon
        The share of wrong words that may go unseen; it sets how many words are tried.
    seconds
        When to stop.
    device
        Where the model runs: cpu or cuda; by default a GPU if there is one.
    """
    from statetrack.analysis import extractions

    if out is not None and out.suffix != ".json":
        raise ValueError(f"--out {out} must end in .json, by which a table is known")
    lengths = [shortest]
    while 0 < 2 * lengths[-1] <= longest:
        lengths.append(2 * lengths[-1])
    target = None if against is None else _machine(against)
    found = None
    stopped = False
    progress = LiveLine()
    print(f"words of {lengths[0]} to {lengths[-1]} letters, at most {seconds:g} s", flush=True)
    try:
        for found in extractions(
            str(run),
            lengths=lengths,
            max_states=max_states,
            epsilon=epsilon,
            seconds=seconds,
            device=choose_device(device),
            progress=progress,
        ):
            progress.clear()
            print(found.attempts[-1], flush=True)
    except KeyboardInterrupt:
        stopped = True
    progress.clear()
    if found is None:
        print("stopped before the first length was done: nothing was found", file=sys.stderr)
        return 130
    if stopped:
        print("stopped; this was found so far:")
    print(found if target is None else replace(found, target=target))
    if out is not None and found.machine is not None:
        print(f"Machine: {found.save(out)}")
    elif out is not None:
        print(f"nothing was written to {out}: there is no machine")
    if stopped:
        return 130
    return 0 if found.machine is not None else 1


def _machine(text: str) -> "Machine":
    """The machine of a task, or one by itself."""
    from statetrack import tasks

    found = tasks.get(text).machine
    if found is None:
        raise ValueError(f"task {text!r} has no machine to compare with")
    return found
