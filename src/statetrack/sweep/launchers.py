"""Many runs on a cluster: the list of configs that local processes train, through Ray or SLURM.

The run folders are all that the machines share, and all that matters. They live where every machine
sees them; whoever trains a run writes its records and checkpoints there, and so a run whose worker
is lost goes on, from its last checkpoint, on another. Nothing travels back but the fact that a job
has ended: what became of the run is in its folder.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from statetrack.runs.files import exclusive
from statetrack.runs.folder import ERROR, Run
from statetrack.sweep.processes import Tail, attempt, keep_error
from statetrack.training.config import RunConfig
from statetrack.training.stacked import MOST_RUNS, stacks

__all__ = ["Engine", "Ray", "Submitit", "launch"]

POLL_S = 0.5
LOSSES = 3
"""So many workers lost in a row, without a new checkpoint in between, and the run has failed."""
PATIENCE_S = 600.0
"""How long a job waits for a run folder that another process holds."""
TIME_LIMIT_MIN = 60
"""Of a SLURM job, unless SBATCH_TIMELIMIT is set. A run that takes longer is queued again."""
REQUEUES = 100
CONNECT_S = 10.0


Group = Sequence[RunConfig]
"""Runs that train together, in one job: on the CPU one, on a GPU those that can be stacked."""


@runtime_checkable
class Engine(Protocol):
    """A cluster that calls `train_group` somewhere."""

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        """Queues a job for each group; a hashable handle for each."""
        ...

    def ended(self, jobs: Sequence[Any]) -> list[Any]:
        """Those of `jobs` that have ended, well or not. Does not wait for them."""
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


def launch(
    configs: Sequence[RunConfig],
    root: Path,
    launcher: str | Engine,
    *,
    workers: int | None = None,
    device: str = "cpu",
    watch: Any,
) -> None:
    """Trains `configs` on a cluster; see `run_many`, which has looked after everything else."""
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers} must be at least 1 on a cluster, or None for no limit")
    if isinstance(launcher, str) and launcher not in NAMED:
        known = ", ".join(map(repr, ("processes", *NAMED)))
        raise ValueError(f"launcher={launcher!r} must be one of {known}")
    if not configs:
        return
    root = root.resolve()  # the workers start in another folder
    engine = NAMED[launcher](root, workers, device) if isinstance(launcher, str) else launcher
    most = 1 if device == "cpu" else MOST_RUNS
    waiting = [_Attempts(group, root) for group in stacks(configs, most=most)]
    running: dict[Any, _Attempts] = {}
    try:
        while waiting or running:
            free = len(waiting) if workers is None else workers - len(running)
            batch, waiting = waiting[:free], waiting[free:]
            if batch:
                for one in batch:
                    one.begin()
                jobs = engine.submit([one.group for one in batch], root, device)
                running |= dict(zip(jobs, batch, strict=True))
            for job in engine.ended(list(running)):
                one = running.pop(job)
                for config in one.close(engine, job):
                    watch.finished(config)
                if one.group:
                    waiting.append(one)
            for one in running.values():
                for config, tail in one.tails:
                    watch(config, tail.rows())
            if running:
                time.sleep(POLL_S)
    finally:
        for job in running:
            engine.cancel(job)
        engine.close()


@dataclass
class _Attempts:
    """The runs of one job, and how often their worker was lost since their last new checkpoint."""

    group: list[RunConfig]
    root: Path
    losses: int = 0
    reached: str = ""
    tails: list[tuple[RunConfig, Tail]] = field(default_factory=list)

    def begin(self) -> None:
        """Forgets errors of the past: one that is there afterwards is of this attempt."""
        self.tails = []
        for config in self.group:
            folder = self.root / config.fingerprint
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ERROR).unlink(missing_ok=True)
            self.tails.append((config, Tail(folder)))

    def close(self, engine: Engine, job: Any) -> list[RunConfig]:
        """Takes out and returns the runs that are over; what is left is for another worker."""
        lost = [config for config in self.group if not self._is_over(config)]
        if lost:
            newest = max(self._newest_checkpoint(config) for config in lost)
            self.losses = 1 if newest > self.reached else self.losses + 1
            self.reached = max(newest, self.reached)
        if lost and self.losses == LOSSES:
            times = f"its worker was lost {LOSSES} times without a new checkpoint in between"
            for config in lost:
                keep_error(config, self.root, f"{times}; the last time:\n{engine.reason(job)}\n")
            lost = []
        over = [config for config in self.group if config not in lost]
        self.group = lost
        return over

    def _is_over(self, config: RunConfig) -> bool:
        run = Run(self.root / config.fingerprint)
        return run.finished or run.error is not None

    def _newest_checkpoint(self, config: RunConfig) -> str:
        kept = (self.root / config.fingerprint / "checkpoints").glob("step-*")
        return max((path.name for path in kept), default="")


def train_group(texts: Sequence[str], root: str, device: str) -> None:
    """What a worker does: the runs of one job, on one core or one GPU.

    A failure stays in its folder. `texts` are configs as JSON; several train together.
    """
    torch.set_num_threads(1)  # part of what the last bits of the numbers depend on
    group = [RunConfig.from_json(text) for text in texts]
    for config in group:
        _wait_until_free(Path(root) / config.fingerprint)
    attempt(group, Path(root), device)


def _wait_until_free(folder: Path) -> None:
    """Waits until nobody holds `folder`, or `PATIENCE_S` are over.

    A lost worker may take a moment to die; one that was only cut off from the cluster may even go
    on and finish the run.
    """
    deadline = time.monotonic() + PATIENCE_S
    folder.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < deadline:
        try:
            with exclusive(folder / "lock"):
                return
        except ValueError:
            time.sleep(POLL_S)


class Ray:
    """A Ray cluster: the one this process is connected to, or the one that `ray.init` finds.

    `ray.init` takes the cluster that RAY_ADDRESS names, else one that runs on this machine, else it
    starts one here. Each job takes one CPU of it, and one GPU if it trains on GPUs.
    """

    def __init__(self) -> None:
        self._ray = _needed("ray", "ray", "Ray")
        self._connected_here = False

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        if not self._ray.is_initialized():
            _refuse_silence(os.environ.get("RAY_ADDRESS", ""))
            self._ray.init(logging_level="warning", log_to_driver=False)
            self._connected_here = True
        gpus = 0 if device == "cpu" else 1
        # Ray would start a lost job again without asking whether that leads anywhere.
        job = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(train_group)
        return [job.remote(_texts(group), str(root), device) for group in groups]

    def ended(self, jobs: Sequence[Any]) -> list[Any]:
        return self._ray.wait(list(jobs), num_returns=len(jobs), timeout=0)[0] if jobs else []

    def reason(self, job: Any) -> str:
        try:
            self._ray.get(job)
        except self._ray.exceptions.RayError as error:
            return str(error)
        return "the job returned"

    def cancel(self, job: Any) -> None:
        self._ray.cancel(job, force=True)

    def close(self) -> None:
        if self._connected_here:
            self._ray.shutdown()
            self._connected_here = False


def _refuse_silence(address: str) -> None:
    """Raises if nobody listens at `host:port`, where Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # "auto", or an address for Ray to understand
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster at RAY_ADDRESS={address}: {error}") from None


class Submitit:
    """Jobs of a submitit executor: SLURM's queue, or processes here with `LocalExecutor`.

    A job whose time is up or that is preempted is queued again and goes on from its checkpoint.
    """

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        with self._executor.batch():  # one array of jobs in SLURM
            return [
                self._executor.submit(_Requeued(), _texts(group), str(root), device)
                for group in groups
            ]

    def ended(self, jobs: Sequence[Any]) -> list[Any]:
        return [job for job in jobs if job.done()]

    def reason(self, job: Any) -> str:
        log = (job.stderr() or job.stdout() or "").strip().splitlines()
        return "\n".join([f"job {job.job_id}, state {job.state}", *log[-20:]])

    def cancel(self, job: Any) -> None:
        job.cancel(check=False)

    def close(self) -> None:
        pass


class _Requeued:
    """`train_group` as submitit likes it: `checkpoint` says what to queue when the time is up."""

    def __call__(self, texts: list[str], root: str, device: str) -> None:
        train_group(texts, root, device)

    def checkpoint(self, texts: list[str], root: str, device: str) -> Any:
        return import_module("submitit").helpers.DelayedSubmission(self, texts, root, device)


def _texts(group: Group) -> list[str]:
    return [config.to_json() for config in group]


def _slurm(root: Path, workers: int | None, device: str) -> Any:
    """SLURM as this machine has it set up; SBATCH_PARTITION and its like have the last word."""
    submitit = _needed("submitit", "slurm", "SLURM")
    executor = submitit.SlurmExecutor(folder=root / "submitit", max_num_timeout=REQUEUES)
    executor.update_parameters(
        job_name="statetrack",
        time=TIME_LIMIT_MIN,
        cpus_per_task=1,
        **({} if device == "cpu" else {"gpus_per_node": 1}),
        **({} if workers is None else {"array_parallelism": workers}),
    )
    return executor


def _needed(module: str, extra: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(
            f"runs on {what} need {module}: pip install 'statetrack[{extra}]'"
        ) from None


NAMED: dict[str, Callable[[Path, int | None, str], Engine]] = {
    "ray": lambda root, workers, device: Ray(),
    "submitit": lambda root, workers, device: Submitit(_slurm(root, workers, device)),
}
