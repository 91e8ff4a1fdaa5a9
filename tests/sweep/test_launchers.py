"""Runs on a cluster: workers may be lost, the numbers may not change."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_sweep import Heard

from statetrack.runs import Run
from statetrack.runs.files import exclusive
from statetrack.sweep import launchers, run_many
from statetrack.sweep.launchers import LOSSES, Submitit, train_group
from statetrack.training import RunConfig, run
from tests.training import tiny

LONG = tiny.config(seed=0, steps=400, log_every=4, checkpoint_every=20)
SHORT = tiny.config(seed=1)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "records.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    """What the runs end with when nobody disturbs them."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("whole")
    return {config.fingerprint: outcome(run(config, root).folder) for config in (LONG, SHORT)}


def writer_of(path: Path) -> int | None:
    """The process, not this one, that has `path` open."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                files = [os.readlink(link) for link in (entry / "fd").iterdir()]
            except OSError:
                continue
            if str(path) in files:
                return int(entry.name)
    return None


class Once(threading.Thread):
    """Does something to the worker of a run, once that run has written two checkpoints."""

    def __init__(self, folder: Path, act: Callable[[int], Any]) -> None:
        super().__init__(daemon=True)
        self.folder, self.act, self.done = folder, act, False

    def run(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if len(list((self.folder / "checkpoints").glob("step-*"))) >= 2:
                worker = writer_of(self.folder / "records.jsonl")
                if worker is not None:
                    self.act(worker)
                    self.done = True
                    return
            time.sleep(0.005)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def expect_the_same(
    sweep: Any, whole: dict[str, tuple[bytes, bytes]], configs: Sequence[RunConfig]
) -> None:
    assert [one.error for one in sweep.runs] == [None] * len(configs)
    assert not sweep.failed
    for one, config in zip(sweep.runs, configs, strict=True):
        assert outcome(one.folder) == whole[config.fingerprint]


# --- the rules, on a cluster made of nothing ---------------------------------------------------


class Pretend:
    """Ends every job at once; what it does to a run is up to `work`."""

    def __init__(self, work: Callable[[RunConfig, Path], None]) -> None:
        self.work, self.sizes, self.cancelled, self.closed = work, [], [], 0

    def submit(self, groups: Sequence[Sequence[RunConfig]], root: Path, device: str) -> list[Any]:
        self.sizes.append([len(group) for group in groups])
        for group in groups:
            for config in group:
                self.work(config, root)
        return [object() for _ in groups]

    def ended(self, jobs: Sequence[Any]) -> list[Any]:
        return list(jobs)

    def reason(self, job: Any) -> str:
        return "the lights went out"

    def cancel(self, job: Any) -> None:
        self.cancelled.append(job)

    def close(self) -> None:
        self.closed += 1


def test_a_worker_that_is_lost_again_and_again_ends_the_run(tmp_path: Path) -> None:
    engine, heard = Pretend(lambda config, root: None), Heard()
    sweep = run_many([SHORT], tmp_path, launcher=engine, watch=heard)
    assert engine.sizes == [[1]] * LOSSES and engine.closed == 1
    assert "lost 3 times without a new checkpoint" in (sweep.runs[0].error or "")
    assert "the lights went out" in (sweep.runs[0].error or "")
    assert heard.ended == [SHORT.fingerprint]


def test_losses_with_progress_in_between_do_not_count(tmp_path: Path) -> None:
    steps = iter(range(0, 100, 2))

    def work(config: RunConfig, root: Path) -> None:
        step = next(steps)
        (root / config.fingerprint / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        if step == 20:
            (root / config.fingerprint / "DONE").write_text("{}")

    engine = Pretend(work)
    assert not run_many([SHORT], tmp_path, launcher=engine).failed
    assert len(engine.sizes) == 11


def test_workers_bound_the_jobs_and_equal_and_finished_runs_take_none(tmp_path: Path) -> None:
    configs = [tiny.config(seed=seed) for seed in range(5)]
    run(configs[4], tmp_path)
    engine = Pretend(lambda config, root: train_group([config.to_json()], str(root), "cpu"))
    sweep = run_many([*configs, configs[0]], tmp_path, launcher=engine, workers=3)
    assert engine.sizes == [[1, 1, 1], [1]] and not sweep.failed and len(sweep.runs) == 6
    assert run_many(configs, tmp_path, launcher=engine).failed == []
    assert len(engine.sizes) == 2


def test_on_gpus_a_job_trains_what_fits_together_and_only_the_lost_go_on(tmp_path: Path) -> None:
    configs = [tiny.config(seed=0), tiny.config(seed=1), tiny.config(seed=0, batch=2)]
    begun = []

    def work(config: RunConfig, root: Path) -> None:
        begun.append(config)
        folder = root / config.fingerprint
        if config == configs[0] or begun.count(config) == 2:
            (folder / "DONE").write_text("{}")
        if config == configs[2]:
            (folder / "error.txt").write_text("diverged")

    engine, heard = Pretend(work), Heard()
    sweep = run_many(configs, tmp_path, launcher=engine, device="cuda", watch=heard)
    assert engine.sizes == [[2, 1], [1]] and begun[-1] == configs[1]
    assert [one.finished for one in sweep.runs] == [True, True, False]
    assert sorted(heard.ended) == sorted(config.fingerprint for config in configs)


def test_a_failure_is_final_and_an_old_one_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / SHORT.fingerprint
    folder.mkdir()
    (folder / "error.txt").write_text("of yesterday")
    lost = Pretend(lambda config, root: None)
    assert "of yesterday" not in (run_many([SHORT], tmp_path, launcher=lost).runs[0].error or "")
    failing = Pretend(lambda config, root: (folder / "error.txt").write_text("of today") and None)
    assert run_many([SHORT], tmp_path, launcher=failing).runs[0].error == "of today"
    assert failing.sizes == [[1]]


def test_jobs_are_cancelled_when_the_caller_stops(tmp_path: Path) -> None:
    class Endless(Pretend):
        def ended(self, jobs: Sequence[Any]) -> list[Any]:
            return []

    def stop(config: RunConfig, rows: Any) -> None:
        raise KeyboardInterrupt

    engine = Endless(lambda config, root: None)
    with pytest.raises(KeyboardInterrupt):
        run_many([SHORT, LONG], tmp_path, launcher=engine, watch=stop)
    assert len(engine.cancelled) == 2 and engine.closed == 1


def test_a_job_waits_for_whoever_holds_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "POLL_S", 0.01)
    folder = tmp_path / SHORT.fingerprint
    folder.mkdir()
    job = threading.Thread(target=train_group, args=([SHORT.to_json()], str(tmp_path), "cpu"))
    with exclusive(folder / "lock"):
        job.start()
        time.sleep(0.1)
        assert [path.name for path in folder.iterdir()] == ["lock"]
    job.join()
    assert Run(folder).finished


@pytest.mark.parametrize(("name", "extra"), [("ray", "ray"), ("submitit", "slurm")])
def test_a_missing_package_names_its_extra(
    name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'statetrack\[{extra}\]'"):
        run_many([SHORT], tmp_path, launcher=name)


def test_what_cannot_be_launched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of 'processes', 'ray', 'submitit'"):
        run_many([SHORT], tmp_path, launcher="slurm")
    with pytest.raises(ValueError, match="workers=0 must be at least 1"):
        run_many([SHORT], tmp_path, launcher="ray", workers=0)
    with pytest.raises(ValueError, match="workers=-1 must be at least 0"):
        run_many([SHORT], tmp_path, workers=-1)


# --- Ray ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine; the head takes no work."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'statetrack[ray]'")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"object_store_memory": 80 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
    )
    cluster.nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = cluster.address
    yield cluster
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()
    cluster.shutdown()


def test_no_ray_cluster_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'statetrack[ray]'")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:  # bound, and nobody listens
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ValueError, match=f"no Ray cluster at RAY_ADDRESS={address}"):
            run_many([SHORT], tmp_path, launcher="ray")


@needs_proc
def test_ray_loses_a_worker(
    cluster: Any, tmp_path: Path, whole: dict[str, tuple[bytes, bytes]]
) -> None:
    killer = Once(tmp_path / LONG.fingerprint, kill)
    killer.start()
    heard = Heard()
    sweep = run_many([LONG, SHORT], tmp_path, launcher="ray", watch=heard)
    assert killer.done
    expect_the_same(sweep, whole, [LONG, SHORT])
    assert sweep.runs[0].info["resumed_at"] >= 40  # it was lost, and went on from a checkpoint
    assert sorted(heard.ended) == sorted([LONG.fingerprint, SHORT.fingerprint])
    assert heard.rows[LONG.fingerprint]


@needs_proc
def test_ray_loses_a_node(
    cluster: Any, tmp_path: Path, whole: dict[str, tuple[bytes, bytes]]
) -> None:
    def remove_its_node(worker: int) -> None:
        raylet = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")")[-1].split()[1])
        (node,) = [node for node in cluster.nodes if raylet == raylet_of(node)]
        cluster.remove_node(node, allow_graceful=False)

    killer = Once(tmp_path / LONG.fingerprint, remove_its_node)
    killer.start()
    sweep = run_many([LONG], tmp_path, launcher="ray")
    assert killer.done
    expect_the_same(sweep, whole, [LONG])
    assert sweep.runs[0].info["resumed_at"] >= 40


def raylet_of(node: Any) -> int:
    (info,) = node.all_processes["raylet"]
    return info.process.pid


# --- submitit ----------------------------------------------------------------------------------


@pytest.fixture
def submitit() -> Any:
    return pytest.importorskip(
        "submitit", reason="submitit is not installed: pip install 'statetrack[slurm]'"
    )


@needs_proc
@pytest.mark.parametrize("sign", ["SIGKILL", "SIGUSR2"])
def test_submitit_loses_a_job(
    submitit: Any, sign: str, tmp_path: Path, whole: dict[str, tuple[bytes, bytes]]
) -> None:
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
    engine = Submitit(executor)
    job = executor.submit(sys.exit, "no statetrack here")
    while not engine.ended([job]):
        time.sleep(0.05)
    assert "no statetrack here" in engine.reason(job)


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
    whole: dict[str, tuple[bytes, bytes]],
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
