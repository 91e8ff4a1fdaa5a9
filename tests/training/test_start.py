"""Runs that start from given weights: the same numbers, another run, killed and resumed."""

import dataclasses
from pathlib import Path

import pytest
import torch

from statetrack import tasks
from statetrack.automata import Machine
from statetrack.compiler import compile
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


def test_killed_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    """Before the first checkpoint and after it, and without being given the weights again."""
    config, weights = tiny.config(checkpoint_every=4), drawn(tiny.config(seed=5))
    whole = run(config, tmp_path / "whole", start=weights)

    class Killed(Exception):
        pass

    for rows in (1, 3):
        root, seen = tmp_path / f"killed {rows}", []

        def watcher(
            config: RunConfig, new: list[object], rows: int = rows, seen: list[object] = seen
        ) -> None:
            seen += [1] if new else []
            if len(seen) == rows:
                raise Killed

        with pytest.raises(Killed):
            run(config, root, start=weights, watcher=watcher)
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
