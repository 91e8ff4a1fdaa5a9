"""Many runs: none stops another, none is trained twice, none is taken from another sweep."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Record, find_runs
from statetrack.runs.files import exclusive
from statetrack.sweep import many, run_many
from statetrack.sweep.launcher import train_group
from statetrack.training import Engine, RunConfig, run
from tests.sweep.cases import LONG, SHORT, Heard, outcome
from tests.training import tiny

CONFIGS = [tiny.config(seed=seed) for seed in range(3)]


def test_in_this_process_failures_stay_alone_and_finished_runs_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Engine._evaluate

    def fail_once(self: Engine, rows: dict[int, list[Record]]) -> None:
        if self.config.seed == 1:
            raise ZeroDivisionError("on purpose")
        original(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_evaluate", fail_once)
        sweep = run_many([*CONFIGS, CONFIGS[0]], tmp_path, workers=0)
    assert [one.finished for one in sweep.runs] == [True, False, True, True]
    assert [one.config.seed for one in sweep.failed] == [1]
    assert "ZeroDivisionError: on purpose" in (sweep.failed[0].error or "")
    heard = Heard()
    again = run_many(CONFIGS, tmp_path, workers=0, watch=heard)
    assert not again.failed
    assert set(heard.rows) == {CONFIGS[1].fingerprint}  # only the failed one was trained
    assert heard.begun == [(3, 2)] and heard.over == {CONFIGS[1].fingerprint: True}
    assert len(find_runs(tmp_path)) == 3


def test_two_sweeps_share_a_folder(tmp_path: Path) -> None:
    """Each trains what the other does not hold; both end with all runs, and no run has an error."""
    configs = [tiny.config(seed=seed, steps=40) for seed in range(4)]
    heard = [Heard(), Heard()]
    sweeps: list[Any] = [None, None]

    def sweep(index: int) -> None:
        sweeps[index] = run_many(configs, tmp_path, workers=0, watch=heard[index])

    threads = [threading.Thread(target=sweep, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, ears in zip(sweeps, heard, strict=True):
        assert not one.failed and [run.error for run in one.runs] == [None] * 4
        assert len(ears.over) + ears.begun[0][1] == 4
    assert not heard[0].rows.keys() & heard[1].rows.keys()  # nothing was trained twice


def test_a_run_in_other_hands_is_left_for_last(tmp_path: Path) -> None:
    """Not failed, not waited for while there is something else to do, and not trained again."""
    folder = tmp_path / CONFIGS[0].fingerprint
    folder.mkdir()
    heard, sweeps = Heard(), []
    others = {config.fingerprint for config in CONFIGS[1:]}
    sweep = threading.Thread(
        target=lambda: sweeps.append(run_many(CONFIGS, tmp_path, workers=0, watch=heard))
    )
    with exclusive(folder / "lock"):
        sweep.start()
        while heard.over.keys() != others:
            time.sleep(0.01)
        assert heard.waited == {CONFIGS[0].fingerprint}
        assert not (folder / "error.txt").exists()
        (folder / "DONE").write_text("{}")
    sweep.join()
    assert not sweeps[0].failed and heard.over[CONFIGS[0].fingerprint]
    assert heard.rows.keys() == others


def test_a_lost_worker_that_still_holds_its_run_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was only cut off: no other takes its place, and it may finish."""
    monkeypatch.setattr(many, "POLL_S", 0.01)
    folder = tmp_path / SHORT.fingerprint

    def hold() -> None:
        with exclusive(folder / "lock"):
            taken.set()
            time.sleep(0.3)
            (folder / "DONE").write_text("{}")

    taken, holder = threading.Event(), threading.Thread(target=hold)

    def work(config: RunConfig, root: Path) -> None:
        holder.start()
        taken.wait()

    cluster, heard = Pretend(work), Heard()
    sweep = run_many([SHORT], tmp_path, launcher=cluster, watch=heard)
    holder.join()
    assert not sweep.failed and cluster.sizes == [[1]] and heard.waited == {SHORT.fingerprint}


def test_a_run_that_ends_while_one_looks_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has it, and is done between the question for DONE and that for its lock."""
    folder = tmp_path / SHORT.fingerprint
    ask = many.forget_error

    def finish_first(asked: Path) -> bool:
        folder.mkdir(exist_ok=True)
        (folder / "DONE").write_text("{}")
        return ask(asked)

    monkeypatch.setattr(many, "forget_error", finish_first)
    cluster = Pretend(lambda config, root: None)
    sweep = run_many([SHORT], tmp_path, launcher=cluster)
    assert not sweep.failed and cluster.sizes == []


def test_an_unwritable_folder_is_an_error_and_not_silence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        run_many(CONFIGS, tmp_path / "file", workers=0)


class Pretend:
    """A cluster made of nothing: ends every job at once, and does to a run what `work` says."""

    losses = 3

    def __init__(self, work: Callable[[RunConfig, Path], None]) -> None:
        self.work, self.sizes, self.cancelled, self.closed = work, [], [], 0

    def submit(self, groups: Sequence[Sequence[RunConfig]], root: Path, device: str) -> list[Any]:
        self.sizes.append([len(group) for group in groups])
        for group in groups:
            for config in group:
                self.work(config, root)
        return [object() for _ in groups]

    def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
        return list(jobs)

    def reason(self, job: Any) -> str:
        return "the lights went out"

    def cancel(self, job: Any) -> None:
        self.cancelled.append(job)

    def close(self) -> None:
        self.closed += 1


def test_a_worker_that_is_lost_again_and_again_ends_the_run(tmp_path: Path) -> None:
    cluster, heard = Pretend(lambda config, root: None), Heard()
    sweep = run_many([SHORT], tmp_path, launcher=cluster, watch=heard)
    assert cluster.sizes == [[1]] * Pretend.losses and cluster.closed == 1
    assert "lost 3 times without a new checkpoint" in (sweep.runs[0].error or "")
    assert "the lights went out" in (sweep.runs[0].error or "")
    assert heard.over == {SHORT.fingerprint: False}


def test_losses_with_progress_in_between_do_not_count(tmp_path: Path) -> None:
    steps = iter(range(0, 100, 2))

    def work(config: RunConfig, root: Path) -> None:
        step = next(steps)
        (root / config.fingerprint / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        if step == 20:
            (root / config.fingerprint / "DONE").write_text("{}")

    cluster = Pretend(work)
    assert not run_many([SHORT], tmp_path, launcher=cluster).failed
    assert len(cluster.sizes) == 11


def test_workers_bound_the_jobs_and_equal_and_finished_runs_take_none(tmp_path: Path) -> None:
    configs = [tiny.config(seed=seed) for seed in range(5)]
    run(configs[4], tmp_path)
    cluster = Pretend(lambda config, root: train_group([config], str(root), "cpu"))
    sweep = run_many([*configs, configs[0]], tmp_path, launcher=cluster, workers=3)
    assert cluster.sizes == [[1, 1, 1], [1]] and not sweep.failed and len(sweep.runs) == 6
    assert run_many(configs, tmp_path, launcher=cluster).failed == []
    assert len(cluster.sizes) == 2


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

    cluster, heard = Pretend(work), Heard()
    sweep = run_many(configs, tmp_path, launcher=cluster, device="cuda", watch=heard)
    assert cluster.sizes == [[2, 1], [1]] and begun[-1] == configs[1]
    assert [one.finished for one in sweep.runs] == [True, True, False]
    assert sorted(heard.over) == sorted(config.fingerprint for config in configs)


def test_a_failure_is_final_and_an_old_one_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / SHORT.fingerprint
    folder.mkdir()
    (folder / "error.txt").write_text("of yesterday")
    lost = Pretend(lambda config, root: None)
    assert "of yesterday" not in (run_many([SHORT], tmp_path, launcher=lost).runs[0].error or "")
    failing = Pretend(lambda config, root: (folder / "error.txt").write_text("of today") and None)
    assert run_many([SHORT], tmp_path, launcher=failing).runs[0].error == "of today"
    assert failing.sizes == [[1]]


def after(parent: RunConfig, **changes: Any) -> RunConfig:
    return tiny.config(start=parent.fingerprint, data_seed=1, **changes)


def by_generations(parents: Sequence[RunConfig]) -> list[RunConfig]:
    """Grandchildren first."""
    children = [after(config) for config in parents]
    return [*(after(config) for config in children), *children, *parents]


def test_runs_train_after_those_they_start_from(tmp_path: Path) -> None:
    configs = by_generations([SHORT, tiny.config(seed=2)])
    cluster = Pretend(lambda config, root: train_group([config], str(root), "cpu"))
    heard = Heard()
    sweep = run_many([*configs, configs[0]], tmp_path, launcher=cluster, watch=heard)
    assert not sweep.failed and len(sweep.runs) == 7
    assert cluster.sizes == [[1, 1], [1, 1], [1, 1]] and cluster.closed == 1
    assert heard.begun == [(6, 0)] and len(heard.over) == 6
    again = tmp_path / "again"
    run_many(configs[2:], again, workers=0)
    run_many(configs, again, workers=0)  # what they start from has finished there
    assert outcome(again / configs[0].fingerprint) == outcome(sweep.runs[0].folder)


def test_in_processes_too(tmp_path: Path) -> None:
    assert not run_many(by_generations([SHORT]), tmp_path, workers=2).failed


def test_without_its_parent_a_run_is_refused_before_anything_trains(tmp_path: Path) -> None:
    heard = Heard()
    told = f"{after(LONG).fingerprint} starts from run {LONG.fingerprint}, which has not finished"
    with pytest.raises(ValueError, match=told) as refused:
        run_many([SHORT, after(LONG)], tmp_path, workers=0, watch=heard)
    assert "\n" not in str(refused.value) and not heard.begun and not find_runs(tmp_path)
    run(SHORT, tmp_path)
    child = run(after(SHORT), tmp_path)
    (child.folder / "DONE").unlink()  # interrupted: it has the weights
    shutil.rmtree(tmp_path / SHORT.fingerprint)
    assert not run_many([child.config], tmp_path, workers=0).failed


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_children_fail_with_their_parent_and_stop_no_other(device: str, tmp_path: Path) -> None:
    bad, good = tiny.config(seed=1), tiny.config(seed=2)

    def work(config: RunConfig, root: Path) -> None:
        if config == bad:
            (root / config.fingerprint / "error.txt").write_text("ValueError: on purpose\n")
        else:
            train_group([config], str(root), "cpu")

    heard = Heard()
    configs = by_generations([bad, good])
    sweep = run_many(configs, tmp_path, launcher=Pretend(work), device=device, watch=heard)
    assert [one.finished for one in sweep.runs] == [False, True] * 3
    grandchild, child, _ = sweep.failed
    assert f"starts from run {bad.fingerprint}" in (child.error or "")
    assert "failed: ValueError: on purpose; train that one first" in (child.error or "")
    assert f"starts from run {child.name}" in (grandchild.error or "")
    assert (grandchild.config.parent, child.config.parent) == (child.name, bad.fingerprint)
    assert heard.begun == [(6, 0)] and sum(heard.over.values()) == 3
    assert not run_many(configs, tmp_path, workers=0).failed  # forgotten, and all trained


def test_jobs_are_cancelled_when_the_caller_stops(tmp_path: Path) -> None:
    class Endless(Pretend):
        def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
            return []

    class Stop(Heard):
        def __call__(self, config: RunConfig, rows: list[Record]) -> None:
            raise KeyboardInterrupt

    cluster = Endless(lambda config, root: None)
    with pytest.raises(KeyboardInterrupt):
        run_many([SHORT, LONG], tmp_path, launcher=cluster, watch=Stop())
    assert len(cluster.cancelled) == 2 and cluster.closed == 1


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
