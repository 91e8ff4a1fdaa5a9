"""Runs that start from given weights or from a run: the same numbers, killed and resumed."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from statetrack import tasks
from statetrack.automata import Machine
from statetrack.compiler import compile
from statetrack.runs.folder import START
from statetrack.runs.labels import label
from statetrack.training import (
    Engine,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    run,
    run_together,
    train,
)
from statetrack.training.executor import Executor
from statetrack.training.stacked import Stacked
from statetrack.training.start import weights_digest
from tests.training import tiny


def drawn(config: RunConfig) -> dict[str, torch.Tensor]:
    return config.build(torch.Generator().manual_seed(config.seed)).state_dict()


@pytest.mark.parametrize("executor", [None, Stacked])
def test_the_weights_it_would_draw_give_the_numbers_it_would_have(
    executor: type[Executor] | None,
) -> None:
    config = tiny.config()
    weights = drawn(config)
    same = dataclasses.replace(config, start=weights_digest(weights))
    plain = [row for rows in Engine([config], executor=executor) for row in rows[0]]
    begun = [row for rows in Engine([same], executor=executor, starts=[weights]) for row in rows[0]]
    assert [row.value for row in begun] == [row.value for row in plain]


def test_other_weights_are_another_run(tmp_path: Path) -> None:
    config = tiny.config()
    weights = drawn(tiny.config(seed=5))
    started = run(config, tmp_path, start=weights)
    assert started.config.start == weights_digest(weights)
    assert started.folder.name != config.fingerprint
    assert (started.folder / "start.safetensors").exists()
    assert label(started.config) == f"{label(config)}, from weights {started.config.start[:8]}"
    again = run(started.config, tmp_path)  # finished: nothing is needed
    assert again.records == started.records
    told = [row.value for row in train(config, start=weights)]
    assert told == [row.value for row in started.records]


class Killed(Exception):
    """A run that was cut."""


def killing(rows: int) -> Callable[[RunConfig, list[object]], None]:
    """Cuts a run at its `rows`-th news."""
    seen: list[int] = []

    def watcher(config: RunConfig, new: list[object]) -> None:
        seen.extend([1] if new else [])
        if len(seen) == rows:
            raise Killed

    return watcher


def test_killed_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    """Before the first checkpoint and after it, and without being given the weights again."""
    config, weights = tiny.config(checkpoint_every=4), drawn(tiny.config(seed=5))
    whole = run(config, tmp_path / "whole", start=weights)

    for rows in (1, 3):
        root = tmp_path / f"killed {rows}"
        with pytest.raises(Killed):
            run(config, root, start=weights, watcher=killing(rows))
        assert run(whole.config, root).records == whole.records
    two = [whole.config, dataclasses.replace(whole.config, data_seed=1)]
    with pytest.raises(ValueError, match="give them as start="):
        run_together(two, tmp_path / "together")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    config, weights = tiny.config(), drawn(tiny.config(seed=5))
    with pytest.raises(ValueError, match="of another model: backbone"):
        run(tiny.config(model=tiny.model(num_layers=2)), tmp_path, start=weights)
    other = dataclasses.replace(config, start="0" * 64)
    with pytest.raises(ValueError, match="starts from weights with the digest 000"):
        run(other, tmp_path, start=weights)
    with pytest.raises(ValueError, match="give them as well"):
        Engine([other])


# -- from another run -----------------------------------------------------------------------------


def after(first: RunConfig, **changes: object) -> RunConfig:
    """Goes on from `first`, in windows."""
    fields = {"start": first.fingerprint, "data_seed": 1} | changes
    return dataclasses.replace(tiny.in_windows(seed=first.seed), **fields)


def test_it_is_known_before_its_parent_is_trained() -> None:
    first, other = tiny.config(), tiny.config(seed=1)
    child = after(first)
    assert child.parent == first.fingerprint and first.parent is None
    assert len({child.fingerprint, after(other).fingerprint, after(child).fingerprint}) == 3
    assert RunConfig.from_dict(child.to_dict()) == child
    given = dataclasses.replace(first, start="0123456789abcdef" * 4)
    assert given.parent is None
    for garbage in (
        "",
        "0" * 15,
        "0" * 63,
        "0" * 17,
        "G" * 16,
        f"{first.fingerprint}\n",
        "ABCDEF01" * 2,
    ):
        with pytest.raises(ValueError, match="must be the fingerprint of a run"):
            dataclasses.replace(first, start=garbage)


def test_it_starts_from_what_its_parent_ended_with(tmp_path: Path) -> None:
    first = run(tiny.config(), tmp_path)
    child = run(after(first.config), tmp_path)
    given = run(dataclasses.replace(child.config, start=None), tmp_path, start=first.weights())
    assert child.folder != given.folder and child.records == given.records
    for name, value in child.weights().items():
        assert torch.equal(value, given.weights()[name])
    digest = weights_digest(first.weights())
    assert child.info["start"] == given.info["start"] == given.config.start == digest
    assert "start" not in first.info


def test_killed_it_goes_on_without_its_parent(tmp_path: Path) -> None:
    first = run(tiny.config(), tmp_path / "whole")
    whole = run(after(first.config, checkpoint_every=4), tmp_path / "whole")

    for rows in (1, 3):  # before the first checkpoint and after it
        root = tmp_path / f"killed {rows}"
        shutil.copytree(first.folder, root / first.name)

        with pytest.raises(Killed):
            run(whole.config, root, watcher=killing(rows))
        shutil.rmtree(root / first.name)
        again = run(whole.config, root)
        assert again.records == whole.records and again.info["start"] == whole.info["start"]


def test_a_parent_it_cannot_start_from_is_named(tmp_path: Path) -> None:
    first = tiny.config()
    folder = tmp_path / first.fingerprint
    told = f"starts from run {first.fingerprint}, which in {folder} "
    with pytest.raises(ValueError, match=re.escape(f"{told}is not there; train that one first")):
        run(after(first), tmp_path)
    folder.mkdir()
    with pytest.raises(ValueError, match=re.escape(f"{told}has not finished; train that one")):
        run(after(first), tmp_path)
    (folder / "error.txt").write_text("Traceback\nValueError: on purpose\n")
    with pytest.raises(ValueError, match=re.escape(f"{told}failed: ValueError: on purpose; train")):
        run(after(first), tmp_path)
    done = run(first, tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="is damaged: .*model.safetensors.*; delete it and train"):
        run(after(first), tmp_path)
    assert done.finished and not (tmp_path / after(first).fingerprint / START).exists()


def test_a_parent_of_another_model_is_refused(tmp_path: Path) -> None:
    first = run(tiny.config(model=tiny.model(num_layers=2)), tmp_path)
    with pytest.raises(ValueError, match="of another model: backbone"):
        run(after(first.config), tmp_path)


def test_either_a_parent_or_weights(tmp_path: Path) -> None:
    child, weights = after(tiny.config()), drawn(tiny.config())
    for start in (
        lambda: run(child, tmp_path, start=weights),
        lambda: [*train(child, start=weights)],
    ):
        with pytest.raises(ValueError, match="and weights are given as well"):
            start()
    with pytest.raises(ValueError, match="train it with `run`, in the folder that has that one"):
        Engine([child])
    Engine([child], starts=[weights])  # what `run` does


def test_a_compiled_machine_learns_a_changed_one(tmp_path: Path) -> None:
    """Whether there are 0 or 1 more letters than a multiple of 4; then 0 counts no more."""
    delta = [[(state + letter) % 4 for letter in range(2)] for state in range(4)]
    machine, changed = (Machine.from_table(delta, 0, accepting=states) for states in ([0, 1], [1]))
    tagger = compile(machine).to_tagger(100)
    lengths = tasks.LengthRange(3, 20)
    config = RunConfig(
        task=tasks.from_machine(changed, train_lengths=lengths, eval_lengths=lengths),
        model=tagger.config,
        steps=100,
        batch=32,
        optimizer=OptimizerConfig(lr=0.01),
        evaluation=EvaluationConfig(every=100, size=64),
        log_every=50,
        checkpoint_every=None,
    )
    tuned = run(config, tmp_path, start=tagger.state_dict())
    assert (tuned.last("sequence_accuracy", "test") or 0) == 1.0
