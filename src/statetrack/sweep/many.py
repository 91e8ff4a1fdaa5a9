"""Many runs: which are left to do, who trains them, and what became of them.

The run folders are all that matters. Whoever trains a run holds its lock and writes its records and
checkpoints there, so a run whose worker is lost goes on from its last checkpoint, and two sweeps in
one folder share the work: a run that another process holds is left to it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from statetrack.runs.errors import forget_error, keep_error
from statetrack.runs.folder import Run
from statetrack.runs.frames import Library, runs_frame
from statetrack.sweep.launcher import POLL_S, Launcher
from statetrack.sweep.local import Here, Processes, default_workers, refuse_inside_a_worker
from statetrack.sweep.progress import Silent, Watch
from statetrack.sweep.ray import Ray
from statetrack.sweep.slurm import slurm
from statetrack.sweep.tail import Tail
from statetrack.training.stacked import MOST_RUNS, stacks
from statetrack.training.start import awaited

__all__ = ["LAUNCHERS", "Sweep", "run_many"]

LAUNCHERS: dict[str, Callable[[Path, int | None, str], Launcher]] = {
    "processes": lambda root, workers, device: Processes(workers or default_workers(device)),
    "ray": lambda root, workers, device: Ray(),
    "submitit": slurm,
}
"""Name -> how it is made from the runs' folder, the jobs at a time and the device."""


@dataclass(frozen=True)
class Sweep:
    """What became of a list of configs, in its order."""

    runs: list[Run]

    @property
    def failed(self) -> list[Run]:
        """Runs that did not finish; `error` has the traceback."""
        return [one for one in self.runs if not one.finished]

    def to_frame(self, library: Library = "pandas") -> Any:
        """A data frame with a row for each run, see `runs.runs_frame`."""
        return runs_frame(self.runs, library)


def run_many(
    configs: Sequence[Any],
    root: Path | str = "runs",
    *,
    workers: int | None = None,
    device: str = "cpu",
    watch: Watch | None = None,
    launcher: str | Launcher = "processes",
) -> Sweep:
    """Trains every config in `root`, each in a folder named by its fingerprint.

    Finished runs are skipped and interrupted ones resumed. A run that fails, or whose process
    dies, keeps its traceback in error.txt and stops no other. Equal configs are trained once. A run
    that another process trains is waited for. Runs that start from others (`RunConfig.start`) train
    after those, and fail with them; one whose parent is neither here nor finished in `root` is
    refused.

    On a GPU, runs that differ only in seeds, rates and clipping train together, as in
    `run_together`; on the CPU each trains alone. `workers` processes work at a time, each with its
    share of the cores; by default one per core on the CPU and two on a GPU, where one compiles
    while the other trains. 0 trains in this process, one after the other. `watch` (a `Progress`,
    say) is told of new records.

    `launcher="ray"` or `"submitit"` (SLURM) trains on a cluster instead, `workers` jobs at a time
    or as many as it has room for; `root` must then be a folder that all its machines see. A run
    whose worker is lost goes on elsewhere. See docs/guide/sweeps.md.

    Worker processes import the calling script: it must call this under
    `if __name__ == "__main__":`.
    """
    refuse_inside_a_worker()
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    watch = watch or Silent()
    todo = list({config.fingerprint: config for config in configs}.values())
    pending = [config for config in todo if not Run(root / config.fingerprint).finished]
    most = 1 if device == "cpu" else MOST_RUNS
    generations = [stacks(configs, most) for configs in _generations(pending, root)]
    workers = _checked(workers, launcher, device)
    watch.begin(todo, root, finished=len(todo) - len(pending))
    if generations:
        at_once = workers if workers is None else min(workers, max(map(len, generations)))
        absolute = root.resolve()  # the workers may start in another folder
        if at_once == 0:
            launcher, at_once = Here(watch), 1
        elif isinstance(launcher, str):
            launcher = LAUNCHERS[launcher](absolute, at_once, device)
        _train(generations, absolute, launcher, at_once, device, watch)
    return Sweep([Run(root / config.fingerprint) for config in configs])


def _checked(workers: int | None, launcher: str | Launcher, device: str) -> int | None:
    """The jobs at a time, `None` for no limit."""
    if isinstance(launcher, str) and launcher not in LAUNCHERS:
        known = ", ".join(map(repr, LAUNCHERS))
        raise ValueError(f"launcher={launcher!r} must be one of {known}")
    if launcher == "processes":
        workers = default_workers(device) if workers is None else workers
        if workers < 0:
            raise ValueError(f"workers={workers} must be at least 0 (0: in this process)")
    elif workers is not None and workers < 1:
        raise ValueError(f"workers={workers} must be at least 1 on a cluster, or None for no limit")
    return workers


def _generations(pending: Sequence[Any], root: Path) -> list[list[Any]]:
    """First the runs that can begin at once, then those that start from them, and so on."""
    waiting = {config.fingerprint: config for config in pending}
    parents = {name: awaited(root / name, config) for name, config in waiting.items()}
    for name, parent in parents.items():
        if parent is not None and parent not in waiting:
            raise ValueError(
                f"run {name} starts from run {parent}, which has not finished in {root}: train it "
                "there first, or in the same sweep"
            )
    found = []
    while waiting:
        ready = [config for name, config in waiting.items() if parents[name] not in waiting]
        found.append(ready)
        for config in ready:
            del waiting[config.fingerprint]
    return found


def _train(
    generations: Sequence[Sequence[list[Any]]],
    root: Path,
    launcher: Launcher,
    workers: int | None,
    device: str,
    watch: Watch,
) -> None:
    later = [[_Attempts(group, root) for group in groups] for groups in generations]
    waiting: list[_Attempts] = []
    running: dict[Any, _Attempts] = {}
    told = time.monotonic()
    try:
        while waiting or running or later:
            if not waiting and not running:
                waiting = later.pop(0)
            room = len(waiting) if workers is None else workers - len(running)
            batch, waiting = _begin(waiting, room, watch)
            if batch:
                jobs = launcher.submit([one.group for one in batch], root, device)
                running |= dict(zip(jobs, batch, strict=True))
            if running:
                for job in launcher.ended(list(running), POLL_S):
                    one = running.pop(job)
                    one.close(launcher, job, watch)
                    if one.group:
                        waiting.append(one)
            elif waiting:  # for other processes
                time.sleep(POLL_S)
            if time.monotonic() - told > POLL_S:
                told = time.monotonic()
                for one in running.values():
                    for config, tail in one.tails:
                        watch(config, tail.rows())
    finally:
        for job in running:
            launcher.cancel(job)
        launcher.close()


def _begin(
    waiting: Sequence["_Attempts"], room: int, watch: Watch
) -> tuple[list["_Attempts"], list["_Attempts"]]:
    """The first `room` groups that may begin now, and the others."""
    ready: list[_Attempts] = []
    rest: list[_Attempts] = []
    for one in waiting:
        if len(ready) == room:
            rest.append(one)
            continue
        free, held = one.begin(watch)
        ready += [free] if free.group else []
        rest += [held] if held.group else []
    return ready, rest


@dataclass
class _Attempts:
    """The runs of one job, and how often their worker was lost since their last new checkpoint."""

    group: list[Any]
    root: Path
    losses: int = 0
    reached: str = ""
    tails: list[tuple[Any, Tail]] = field(default_factory=list)

    def begin(self, watch: Watch) -> tuple["_Attempts", "_Attempts"]:
        """The runs that nobody holds, and those that another process does.

        An error of the past is forgotten: one that is there afterwards is of this attempt.
        """
        unheld = [config for config in self.group if forget_error(self._run(config).folder)]
        # Asked after that, so that one which ends in between is not begun once more.
        self._take_out([config for config in self.group if self._run(config).finished], watch)
        free = [config for config in self.group if config in unheld]
        held = [config for config in self.group if config not in unheld]
        for config in held:
            watch.held(config)
        tails = [(config, Tail(self._run(config).folder)) for config in free]
        return replace(self, group=free, tails=tails), replace(self, group=held)

    def close(self, launcher: Launcher, job: Any, watch: Watch) -> None:
        """Takes out the runs that are over; what is left is for another worker."""
        lost = [config for config in self.group if not self._is_over(config)]
        # Without an error to forget, this only asks whether another process has the run.
        if lost and all(forget_error(self._run(config).folder) for config in lost):
            newest = max(self._newest_checkpoint(config) for config in lost)
            self.losses = 1 if newest > self.reached else self.losses + 1
            self.reached = max(newest, self.reached)
            if self.losses >= launcher.losses:
                text = self._reason(launcher, job)
                lost = [one for one in lost if not keep_error(self._run(one).folder, text)]
        self._take_out([config for config in self.group if config not in lost], watch)

    def _take_out(self, over: list[Any], watch: Watch) -> None:
        self.group = [config for config in self.group if config not in over]
        for config in over:
            watch.ended(config, self._run(config))

    def _reason(self, launcher: Launcher, job: Any) -> str:
        if self.losses == 1:
            return f"{launcher.reason(job)}\n"
        times = f"its worker was lost {self.losses} times without a new checkpoint in between"
        return f"{times}; the last time:\n{launcher.reason(job)}\n"

    def _run(self, config: Any) -> Run:
        return Run(self.root / config.fingerprint)

    def _is_over(self, config: Any) -> bool:
        run = self._run(config)
        return run.finished or run.error is not None

    def _newest_checkpoint(self, config: Any) -> str:
        kept = (self.root / config.fingerprint / "checkpoints").glob("step-*")
        return max((path.name for path in kept), default="")
