"""Runs in SLURM's queue, through submitit."""

import subprocess
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from statetrack.sweep.launcher import Group, needed, train_group

__all__ = ["Submitit", "slurm"]

TIME_LIMIT_MIN = 60
"""Of a SLURM job, unless SBATCH_TIMELIMIT is set. A run that takes longer is queued again."""
REQUEUES = 100


class Submitit:
    """Jobs of a submitit executor: SLURM's queue, or processes here with `LocalExecutor`.

    A job whose time is up or that is preempted is queued again and goes on from its checkpoint.
    submitit hears of a job that was killed from SLURM's accounting, which not every cluster has, so
    that the queue is asked too.
    """

    losses = 3

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._asks_queue = type(executor).__name__ == "SlurmExecutor"
        self._missed: set[str] = set()

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        with self._executor.batch():  # one array of jobs in SLURM
            return [
                self._executor.submit(_Requeued(), list(group), str(root), device)
                for group in groups
            ]

    def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
        over = [job for job in jobs if job.done()]
        if not over and self._asks_queue:
            queued = _queued()
            # Twice in a row: a job is not listed for a moment while it is queued again.
            gone = [job for job in jobs if queued is not None and job.job_id not in queued]
            over = [job for job in gone if job.job_id in self._missed]
            self._missed = {job.job_id for job in gone}
        if not over:
            time.sleep(timeout)
        return over

    def reason(self, job: Any) -> str:
        log = (job.stderr() or job.stdout() or "").strip().splitlines()
        return "\n".join([f"job {job.job_id}, state {job.state}", *log[-20:]])

    def cancel(self, job: Any) -> None:
        job.cancel(check=False)

    def close(self) -> None:
        pass


def _queued() -> set[str] | None:
    """The jobs that wait or run, those of arrays one by one; None if SLURM does not say."""
    command = ["squeue", "--noheader", "--array", "--format=%i"]
    done = subprocess.run(command, capture_output=True, text=True)
    return set(done.stdout.split()) if done.returncode == 0 else None


class _Requeued:
    """`train_group` as submitit likes it: `checkpoint` says what to queue when the time is up."""

    def __call__(self, group: Group, root: str, device: str) -> None:
        train_group(group, root, device)

    def checkpoint(self, group: Group, root: str, device: str) -> Any:
        return import_module("submitit").helpers.DelayedSubmission(self, group, root, device)


def slurm(root: Path, workers: int | None, device: str) -> Submitit:
    """SLURM as this machine has it set up; SBATCH_PARTITION and its like have the last word."""
    submitit = needed("submitit", "slurm", "SLURM")
    executor = submitit.SlurmExecutor(folder=root / "submitit", max_num_timeout=REQUEUES)
    executor.update_parameters(
        job_name="statetrack",
        time=TIME_LIMIT_MIN,
        cpus_per_task=1,
        **({} if device == "cpu" else {"gpus_per_node": 1}),
        **({} if workers is None else {"array_parallelism": workers}),
    )
    return Submitit(executor)
