"""SLURM through submitit: jobs may be lost, the numbers may not change."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from statetrack.sweep import run_many
from statetrack.sweep.slurm import Submitit
from tests.sweep.cases import LONG, SHORT, Once, Whole, expect_the_same, needs_proc, outcome
from tests.training import tiny


@pytest.fixture
def submitit() -> Any:
    return pytest.importorskip(
        "submitit", reason="submitit is not installed: pip install 'statetrack[slurm]'"
    )


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("sign", ["SIGKILL", "SIGUSR2"])
def test_submitit_loses_a_job(submitit: Any, sign: str, tmp_path: Path, whole: Whole) -> None:
    """SIGKILL: a machine is gone. SIGUSR2: the time is up, and submitit queues the job again."""
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=5)
    killer = Once(
        tmp_path / LONG.fingerprint, lambda process: os.kill(process, getattr(signal, sign))
    )
    killer.start()
    sweep = run_many([LONG, SHORT], tmp_path, launcher=Submitit(executor))
    assert killer.done
    expect_the_same(sweep, whole, [LONG, SHORT])
    assert sweep.runs[0].info["resumed_at"] >= 40
    jobs = list((tmp_path / "jobs").glob("*_submitted.pkl"))
    assert len(jobs) == (3 if sign == "SIGKILL" else 2)


def test_submitit_tells_why_a_job_ended(submitit: Any, tmp_path: Path) -> None:
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    launcher = Submitit(executor)
    job = executor.submit(sys.exit, "no statetrack here")
    while not launcher.ended([job], 0.05):
        pass
    assert "no statetrack here" in launcher.reason(job)


SBATCH = """#!/bin/bash
# Keeps the script, and runs every task of its array, or its only one, at once.
cp "$1" "$FAKE_SLURM/$(date +%s%N).sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
export SLURM_JOB_ID=$$ SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
for task in $(seq 0 "${last:-0}"); do
    [ -n "$last" ] && export SLURM_ARRAY_JOB_ID=$$ SLURM_ARRAY_TASK_ID=$task
    # submitit moves the task's file to its place when it knows the number of the job
    (sleep 1; exec bash "$1") >/dev/null 2>&1 &
done
echo "Submitted batch job $$"
"""
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do
    case "$1" in --output|--error) shift 2 ;; *) shift ;; esac
done
exec "$@"
"""


def test_slurm_gets_one_array_of_small_jobs(
    submitit: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Whole,
) -> None:
    """submitit's real SLURM code, with commands in SLURM's place that run the jobs here."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", "#!/bin/bash\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    other = tiny.config(seed=2)
    sweep = run_many([SHORT, other], tmp_path / "runs", launcher="submitit", workers=2)
    assert not sweep.failed
    assert outcome(sweep.runs[0].folder) == whole[SHORT.fingerprint]
    (script,) = tmp_path.glob("*.sh")
    text = script.read_text()
    for line in ("--array=0-1%2", "--job-name=statetrack", "--time=60", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in text
    assert "gpus" not in text


def test_no_slurm_is_an_error(
    submitit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="slurm"):
        run_many([SHORT], tmp_path, launcher="submitit")
