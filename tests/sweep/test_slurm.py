"""SLURM through submitit: jobs may be lost, the numbers may not change."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Run
from statetrack.runs.files import write_json
from statetrack.runs.folder import config_file
from statetrack.sweep import run_many
from statetrack.sweep.slurm import Submitit
from statetrack.training import run
from tests.lm import corpus
from tests.sweep import cluster
from tests.sweep.cases import (
    LONG,
    SHORT,
    Once,
    Whole,
    expect_the_same,
    needs_proc,
    outcome,
    wait_until,
)
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


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """A real cluster of one machine."""
    reason = cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with cluster.running() as folder:
        yield folder


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def jobs(states: str = "all") -> list[str]:
    """The numbers of the jobs in the queue."""
    command = ["squeue", "--noheader", "--array", "--format=%i"]
    if states != "all":
        command.append(f"--states={states}")
    return said(*command).split()


@pytest.mark.slow
def test_slurm_gets_one_array_of_small_jobs(
    submitit: Any, slurm: Path, tmp_path: Path, whole: Whole
) -> None:
    other = tiny.config(seed=2)
    sweep = run_many([SHORT, other], tmp_path / "runs", launcher="submitit", workers=2)
    assert [one.error for one in sweep.runs] == [None, None]
    assert outcome(sweep.runs[0].folder) == whole[SHORT.fingerprint]
    (text,) = {path.read_text() for path in (tmp_path / "runs/submitit").glob("*.sh")}
    for line in ("--array=0-1%2", "--job-name=statetrack", "--time=60", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in text
    assert "gpus" not in text


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("harm", ["killed", "requeued", "out of time"])
def test_slurm_loses_a_job(
    submitit: Any, slurm: Path, harm: str, tmp_path: Path, whole: Whole
) -> None:
    """The same numbers after a dead process, an operator's requeue, and SLURM's last warning."""

    def act(process: int) -> None:
        if harm == "killed":
            os.kill(process, signal.SIGKILL)
            return
        (job,) = jobs("running")
        if harm == "requeued":
            os.kill(process, signal.SIGSTOP)  # or it might finish before SLURM ends it
            said("scontrol", "requeue", job)
        else:  # what SLURM sends when the time is nearly up
            said("scancel", "--signal=USR2", job)

    config = LONG
    if harm == "requeued":  # SLURM lets it go on for seconds, and asks politely, which it ignores
        config = dataclasses.replace(LONG, steps=6000)
        whole = {config.fingerprint: outcome(run(config, tmp_path / "alone").folder)}
    killer = Once(tmp_path / "runs" / config.fingerprint, act)
    killer.start()
    sweep = run_many([config], tmp_path / "runs", launcher="submitit")
    assert killer.done
    expect_the_same(sweep, whole, [config])
    assert sweep.runs[0].info["resumed_at"] >= 40


SCRIPT = """#!/bin/bash
#SBATCH --job-name=pretrain --ntasks=1 --cpus-per-task=2 --requeue --open-mode=append
#SBATCH --output={out}/log.txt --time=30
export OMP_NUM_THREADS=1 PYTHONPATH={source}
srun --cpus-per-task=2 {python} -m torch.distributed.run --standalone --nproc-per-node 2 \\
    -m statetrack lm pretrain --config {config} --out {out}/runs --device cpu
"""


@pytest.mark.slow
def test_two_processes_of_one_job_pretrain_and_survive_a_requeue(
    slurm: Path, tmp_path: Path
) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    manifest = corpus.shards(tmp_path)
    config = corpus.config(manifest, steps=200, log_every=4, checkpoint_every=20)
    folder = tmp_path / "runs" / config.fingerprint
    path = tmp_path / "config.json"
    write_json(path, config_file(config))
    script = tmp_path / "job.sh"
    source = Path(__file__).parents[2] / "src"
    script.write_text(
        SCRIPT.format(out=tmp_path, source=source, python=sys.executable, config=path)
    )
    job = said("sbatch", "--parsable", str(script))

    def log() -> str:
        return (tmp_path / "log.txt").read_text() if (tmp_path / "log.txt").exists() else ""

    wait_until(lambda: (folder / "checkpoints/step-00000040").exists(), within=300)
    said("scontrol", "requeue", job)
    wait_until(lambda: Run(folder).finished or not jobs(), within=400)
    assert Run(folder).finished, log()
    assert Run(folder).info["resumed_at"] >= 40 and Run(folder).info["processes"] == 2


def test_no_slurm_is_an_error(
    submitit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="slurm"):
        run_many([SHORT], tmp_path, launcher="submitit")
