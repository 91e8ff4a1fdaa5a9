"""A run killed at any moment ends with the same bytes as one never killed."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.models import paper_config
from statetrack.runs import Record, Run, problems
from statetrack.runs.checkpoints import KEPT
from statetrack.runs.environment import environment
from statetrack.runs.tensors import load_tensors, save_tensors
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, run, run_together
from statetrack.training.eager import Eager
from statetrack.training.engine import Engine
from statetrack.training.evaluation import held_out
from statetrack.training.stacked import Stacked
from tests.runs.folders import flip, forge, move
from tests.training import killing, tiny

CONFIG = tiny.config(
    model=tiny.model("Mamba", d_state=2, conv_size=2),
    optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1, clip_norm=1.0),
)


def outcome(folder: Path) -> tuple[bytes, bytes]:
    """What must not depend on kills."""
    return (folder / "records.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    return outcome(run(CONFIG, tmp_path_factory.mktemp("whole")).folder)


def die_at(points: int, root: Path, configs: tuple[RunConfig, ...] = (CONFIG,)) -> int:
    """Runs `configs` in a fork of this process that dies at a point; its exit code."""

    def work() -> None:
        run(CONFIG, root) if len(configs) == 1 else run_together(configs, root)

    return killing.die_at(points, root, work, (Eager, Stacked))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_points_ends_the_same(
    tmp_path: Path, expected: tuple[bytes, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    assert die_at(10**9, tmp_path) == 0
    total = int((tmp_path / "points").read_text())
    dice = random.Random(20)
    deaths = [[point] for point in (*range(5), *range(total - 9, total))]  # how it begins and ends
    deaths += [[dice.randrange(total) for _ in range(dice.randint(1, 3))] for _ in range(10)]
    kills = 0
    for attempt, points in enumerate(deaths):
        root = tmp_path / str(attempt)
        # Some deaths in a row, then one attempt that is left alone. Nobody warns: what a kill
        # leaves behind is never a damaged checkpoint.
        for point in points:
            kills += die_at(point, root) == 9
        finished = run(CONFIG, root)
        assert finished.finished and finished.error is None and problems(finished) == []
        assert not (finished.folder / "checkpoints").exists()
        assert outcome(finished.folder) == expected
        assert json.loads((finished.folder / "DONE").read_text())["step"] == CONFIG.steps
    assert kills >= 25
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_grid_killed_at_random_points_ends_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs that train together, one of them diverging at once; kills fall between their files.

    The same up to rounding: after a kill fewer runs may go on together, and a product of another
    size may add in another order.
    """
    torch.set_num_threads(1)
    faster = dataclasses.replace(CONFIG.optimizer, lr=3e-2)
    lost = dataclasses.replace(CONFIG.optimizer, lr=1e38)
    configs = tuple(
        dataclasses.replace(CONFIG, seed=seed, data_seed=seed, optimizer=optimizer)
        for seed, optimizer in ((0, CONFIG.optimizer), (1, faster), (2, lost))
    )
    whole = run_together(configs, tmp_path / "whole")
    assert [one.finished for one in whole] == [True, True, False]
    assert whole[2].error is not None and "NonFiniteLoss" in whole[2].error
    assert whole[0].info["runs_together"] == 3
    assert die_at(10**9, tmp_path, configs) == 0
    total = int((tmp_path / "points").read_text())
    dice = random.Random(21)
    for attempt in range(8):
        root = tmp_path / str(attempt)
        for _ in range(dice.randint(1, 2)):
            assert die_at(dice.randrange(total), root, configs) in (0, 9)
        ended = run_together(configs, root)
        assert capfd.readouterr().err == ""
        assert [one.finished for one in ended] == [True, True, False]
        assert [problems(one) for one in ended] == [[], [], []]
        for one, expected in zip(ended[:2], whole[:2], strict=True):
            assert len(one.records) == len(expected.records)
            for got, wanted in zip(one.records, expected.records, strict=True):
                assert dataclasses.replace(got, value=0.0) == dataclasses.replace(wanted, value=0.0)
                assert got.value == pytest.approx(wanted.value, rel=1e-3, abs=1e-5)
            weights = dict(expected.model().named_parameters())
            for name, parameter in one.model().named_parameters():
                torch.testing.assert_close(parameter, weights[name], rtol=1e-3, atol=1e-5)


CHILD = """
import sys, torch
torch.set_num_threads(1)
from statetrack.training import RunConfig, run
run(RunConfig.from_json(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_sigkill_of_a_process(tmp_path: Path) -> None:
    config = tiny.config(steps=300, checkpoint_every=20)
    whole = run(config, tmp_path / "whole")
    root = tmp_path / "killed"
    records = root / config.fingerprint / "records.jsonl"
    kills = 0
    for wanted in (2000, 9000):
        child = subprocess.Popen([sys.executable, "-c", CHILD, config.to_json(), str(root)])
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if records.exists() and records.stat().st_size > wanted:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += child.wait() == -signal.SIGKILL
    assert kills >= 1
    assert outcome(run(config, root).folder) == outcome(whole.folder)


def interrupted(root: Path, config: RunConfig = CONFIG, at: int = 10) -> Path:
    """A run folder that was left at step `at`."""

    class Stop(BaseException):
        pass

    def stop(_: RunConfig, rows: list[Any]) -> None:
        if rows and rows[0].step == at:
            raise Stop

    with pytest.raises(Stop):
        run(config, root, watcher=stop)
    return root / config.fingerprint


def change(checkpoint: Path, name: str, value: torch.Tensor | None) -> None:
    """Forges one tensor of a checkpoint, or drops it."""
    tensors = load_tensors((checkpoint / "state.safetensors").read_bytes()) | {name: value}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    forge(checkpoint, state=save_tensors(kept))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "one bit": lambda c: flip(c / "state.safetensors"),
    "a step that never ends": lambda c: move(c, step=10**6),
    "no such weights": lambda c: forge(c, state=save_tensors({"x": torch.ones(1)})),
    "weights of another shape": lambda c: change(c, "model.embedding.weight", torch.ones(1)),
    "no optimiser": lambda c: change(c, "optimizer.exp_avg.embedding.weight", None),
    "no stream": lambda c: change(c, "stream", None),
    "a stream that is none": lambda c: change(c, "stream", torch.ones(3, dtype=torch.uint8)),
    "no device": lambda c: move(c, device=None),
    "not known to be solved": lambda c: move(c, solved=None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_previous_used(
    damage: str,
    tmp_path: Path,
    expected: tuple[bytes, bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also where only the engine can tell."""
    folder = interrupted(tmp_path)
    kept = sorted((folder / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["step-00000006", "step-00000008"]
    DAMAGES[damage](kept[1])
    finished = run(CONFIG, tmp_path)
    assert finished.info["resumed_at"] == 6 and problems(finished) == []
    assert outcome(folder) == expected
    said = capfd.readouterr().err
    assert said.startswith(f"statetrack: checkpoint {kept[1]} is passed over: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("damage", ["one bit", "no optimiser"])
def test_runs_together_go_back_to_what_they_have_in_common(
    damage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configs = [CONFIG, dataclasses.replace(CONFIG, seed=1)]
    folder = [interrupted(tmp_path, config) for config in configs][0]
    DAMAGES[damage](folder / "checkpoints" / "step-00000008")
    for one in run_together(configs, tmp_path):
        assert (one.info["runs_together"], one.info["resumed_at"]) == (2, 6)
        assert problems(one) == [] and one.records[-1].step == CONFIG.steps
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("damage", ["one bit", "no stream"])
def test_all_damaged_starts_over(
    damage: str, tmp_path: Path, expected: tuple[bytes, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path)
    for checkpoint in (folder / "checkpoints").iterdir():
        DAMAGES[damage](checkpoint)
    assert run(CONFIG, tmp_path).info["resumed_at"] == 0
    assert capfd.readouterr().err.count("is passed over") == 2
    assert outcome(folder) == expected


@pytest.mark.parametrize("lost, start", [("all", 0), ("a digit", 0), ("the end", 6)])
def test_changed_records_are_made_again(
    lost: str,
    start: int,
    tmp_path: Path,
    expected: tuple[bytes, bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = interrupted(tmp_path)
    records = folder / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    if lost == "a digit":
        digit = lines[0].rstrip()[-2:-1]
        lines[0] = lines[0].replace(digit + b"}", b"%d}" % (9 - int(digit)))
    at = [json.loads(line)["step"] for line in lines]
    keep = {"all": 0, "a digit": len(lines), "the end": at.index(8)}[lost]
    records.write_bytes(b"".join(lines[:keep]))
    assert run(CONFIG, tmp_path).info["resumed_at"] == start
    assert capfd.readouterr().err.count(str(records)) == (1 if start else 2)
    assert outcome(folder) == expected


def test_a_finished_run_that_is_damaged_is_refused(tmp_path: Path) -> None:
    finished = run(CONFIG, tmp_path)
    flip(finished.folder / "model.safetensors")
    for train in (run, lambda config, root: run_together([config], root)):
        with pytest.raises(
            ValueError, match=r"model\.safetensors has changed.* Delete .* to train"
        ):
            train(CONFIG, tmp_path)
    assert finished.error is None


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_ctrl_c_saves_before_it_stops(
    together: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(CONFIG, checkpoint_every=None)
    configs = [config, dataclasses.replace(config, seed=1)] if together else [config]
    train: Any = run_together if together else lambda one, root, **more: run(one[0], root, **more)

    def press(one: RunConfig, rows: list[Any]) -> None:
        if rows and rows[0].step == 6 and one == configs[0]:
            signal.raise_signal(signal.SIGINT)

    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(configs, tmp_path / "cut", watcher=press)
    assert signal.getsignal(signal.SIGINT) is usual
    assert "press Ctrl-C again" in capfd.readouterr().err
    train(configs, tmp_path / "cut")
    train(configs, tmp_path / "whole")
    for one in configs:
        cut = Run(tmp_path / "cut" / one.fingerprint)
        assert cut.info["resumed_at"] == 6 and cut.error is None
        assert outcome(cut.folder) == outcome(tmp_path / "whole" / one.fingerprint)
    assert capfd.readouterr().err == ""


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    def press(_: RunConfig, rows: list[Any]) -> None:
        if rows:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, tmp_path, watcher=press)
    folder = tmp_path / CONFIG.fingerprint
    assert not (folder / "checkpoints").exists() and Run(folder).error is None


def test_ctrl_c_is_left_to_whoever_handles_it(tmp_path: Path) -> None:
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        seen: list[Any] = []
        run(CONFIG, tmp_path, watcher=lambda *_: seen.append(signal.getsignal(signal.SIGINT)))
        assert set(seen) == {signal.SIG_IGN}
    finally:
        signal.signal(signal.SIGINT, usual)
    thread = threading.Thread(target=run, args=(CONFIG, tmp_path / "thread"))
    thread.start()
    thread.join()
    assert Run(tmp_path / "thread" / CONFIG.fingerprint).finished


@pytest.mark.parametrize("mixer", ["DeltaNet", "Diagonal", "SLSTM", "Attention"])
def test_other_layers_resume_too(mixer: str, tmp_path: Path) -> None:
    options = {} if mixer in ("Diagonal", "DeltaNet") else {"num_heads": 2}
    config = tiny.config(model=tiny.model(mixer, **options), stop_at=0.99)
    folder = interrupted(tmp_path / "cut", config, at=6)
    run(config, tmp_path / "cut")
    assert outcome(folder) == outcome(run(config, tmp_path / "whole").folder)


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    first = run(CONFIG, tmp_path)
    before = (first.folder / "run.json").read_bytes()

    def never(*_: Any) -> None:
        raise AssertionError("it trained again")

    again = run(CONFIG, tmp_path, watcher=never)
    assert (again.folder / "run.json").read_bytes() == before
    assert not (first.folder / "checkpoints").exists()


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    def inside(config: RunConfig, rows: list[Any]) -> None:
        with pytest.raises(ValueError, match="in use"):
            run(config, tmp_path)

    run(CONFIG, tmp_path, watcher=inside)


def test_a_failure_keeps_its_traceback_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: tuple[bytes, bytes]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_evaluate", lambda self, rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(CONFIG, tmp_path)
    failed = Run(tmp_path / CONFIG.fingerprint)
    assert failed.error is not None and "ZeroDivisionError" in failed.error
    assert not failed.finished
    assert run(CONFIG, tmp_path).error is None
    assert outcome(failed.folder) == expected


def test_what_a_run_leaves(tmp_path: Path) -> None:
    finished = run(CONFIG, tmp_path)
    names = {path.name for path in finished.folder.iterdir()}
    wanted = {"config.json", "run.json", "records.jsonl", "model.safetensors", "DONE", "lock"}
    assert names == wanted
    assert finished.config == CONFIG
    info = finished.info
    assert info.keys() >= set(environment("cpu")) and info["device"] == "cpu"
    assert info["parameters"] == sum(p.numel() for p in finished.model().parameters())
    assert info["wall_s"] > 0 and info["state_size"] > 0 and info["runs_together"] == 1
    lines = (finished.folder / "records.jsonl").read_text().splitlines()
    for line in lines:
        assert {"step", "split", "length", "metric", "value"} <= set(json.loads(line))
    assert len(finished.records) == len(lines)
    accuracy = finished.last("accuracy", "test")
    curve, asked = finished.curve(), {r.length: r.count for r in finished.records if r.length}
    assert accuracy is not None and all(asked.values()) and len(curve) > 5
    # the stored weights are the ones the last numbers were measured with
    engine = Engine([CONFIG])
    engine.executor.model.load_state_dict(finished.model().state_dict())
    (counts,) = engine.executor.tally(held_out(CONFIG, "test", torch.device("cpu"))).counts()
    assert counts.accuracy == accuracy


def test_mirrors_get_every_record(tmp_path: Path) -> None:
    class Mirror:
        rows: list[Record] = []
        closed = 0

        def write(self, records: list[Record]) -> None:
            self.rows += records

        def close(self) -> None:
            self.closed += 1

    mirror = Mirror()
    assert run(CONFIG, tmp_path, mirrors=[mirror]).records == mirror.rows
    assert mirror.closed == 1


def test_a_run_of_another_device_is_no_damage(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    for checkpoint in (folder / "checkpoints").iterdir():
        move(checkpoint, device="cuda")
    with pytest.raises(ValueError, match="give device='cuda'"):
        run(CONFIG, tmp_path)
    assert len(list((folder / "checkpoints").iterdir())) == KEPT


def test_word_problems_have_whole_curves(tmp_path: Path) -> None:
    config = RunConfig(
        task="s3",
        model=paper_config("DeltaNet", vocab_size=13, d_model=8, num_layers=1, num_heads=2),
        steps=2,
        batch=2,
        lengths=(4, 4),
        evaluation=EvaluationConfig(every=2, size=8, lengths=(9, 9)),
        log_every=2,
        checkpoint_every=None,
    )
    finished = run(config, tmp_path)
    curve = finished.curve("sequence_accuracy")
    assert list(curve) == list(range(1, 11))  # [BOS] and nine elements
    assert all(a >= b for a, b in zip(curve.values(), list(curve.values())[1:], strict=False))
