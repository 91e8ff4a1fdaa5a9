"""What every launcher has in common: its interface, and what a worker does with a job."""

import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from statetrack._extras import needs
from statetrack.runs.errors import keep_error
from statetrack.runs.files import InUse
from statetrack.training.run import Watcher, run, run_together

__all__ = ["Group", "Launcher", "attempt", "train_group"]

POLL_S = 0.5
PATIENCE_S = 600.0
"""How long a worker waits for a run that another process holds."""

Group = Sequence[Any]
"""Configs of runs that train together, in one job: on a GPU those that can be stacked."""


@runtime_checkable
class Launcher(Protocol):
    """Something that trains groups of runs somewhere.

    All that is shared with its workers is the folder of the runs. Nothing travels back but the fact
    that a job has ended: what became of a run is in its folder.
    """

    losses: int
    """So many workers lost in a row, without a new checkpoint in between: the run has failed."""

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        """Starts or queues a job for each group; a hashable handle for each."""
        ...

    def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
        """Those of `jobs` that have ended, well or not. Waits at most `timeout` seconds for one."""
        ...

    def reason(self, job: Any) -> str:
        """Why a job ended that left a run with neither a result nor an error."""
        ...

    def cancel(self, job: Any) -> None:
        """Ends a job that is of no use any more."""
        ...

    def close(self) -> None:
        """Lets go of what it has taken; it may be used again."""
        ...


def train_group(group: Group, root: str, device: str, threads: int = 1) -> None:
    """What a worker does with a job: trains the runs of one group, on `threads` cores or a GPU."""
    torch.set_num_threads(threads)  # part of what the last bits of the numbers depend on
    attempt(group, Path(root), device)


def attempt(group: Group, root: Path, device: str, watcher: Watcher | None = None) -> None:
    """Trains one run, or several together. A failure stays in the folder of its run.

    A run that another process holds is waited for: a lost worker may take a moment to die, and one
    that was only cut off, or belongs to another sweep, may go on and finish the run.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if len(group) == 1:
                run(group[0], root, device=device, watcher=watcher)
            else:
                run_together(group, root, device=device, watcher=watcher)
            return
        except InUse:
            time.sleep(POLL_S)
        except Exception:
            for config in group:
                keep_error(root / config.fingerprint, traceback.format_exc())
            return


def needed(module: str, extra: str, what: str) -> Any:
    """An optional package, or an error that names the extra it comes with."""
    with needs(f"a run on {what}", module, extra):
        return import_module(module)
