"""A config is the truth about a run."""

import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statetrack import tasks
from statetrack.automata import Machine
from statetrack.models import paper_config
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, ScheduleConfig
from tests.helpers import unhooked
from tests.training import tiny

CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "steps": st.integers(1, 10**6),
    "batch": st.integers(1, 4096),
    "seed": st.integers(0, 2**31),
    "data_seed": st.integers(0, 2**31),
    "precision": st.sampled_from(["fp32", "bf16"]),
    "stop_at": st.none() | st.floats(0.01, 1),
    "checkpoint_every": st.none() | st.sampled_from([2, 4, 100]),
    "optimizer": st.builds(
        OptimizerConfig,
        lr=st.floats(1e-12, 1e3),
        weight_decay=st.floats(0, 1),
        decay=st.sampled_from(["all_but_state", "matrices", "all"]),
        clip_norm=st.none() | st.floats(1e-3, 10),
        betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.9999)),
    ),
    "schedule": st.builds(ScheduleConfig, warmup=st.floats(0, 1), final=st.floats(0, 1)),
}


def make(kind: type, **fields: Any) -> Any:
    """`kind(**fields)` as users call it: the class, not the test run's hook, judges the types."""
    config = object.__new__(kind)
    unhooked(kind.__init__)(config, **fields)  # type: ignore[misc]
    return config


@settings(max_examples=20, deadline=None)
@given(st.fixed_dictionaries({}, optional=CHANGES))
def test_json_round_trip_is_exact(changes: dict[str, Any]) -> None:
    config = tiny.config(**changes)
    again = RunConfig.from_json(config.to_json())
    assert again == config
    assert again.to_json() == config.to_json()
    assert again.fingerprint == config.fingerprint
    assert hash(again) == hash(config)


def test_every_field_that_decides_numbers_changes_the_fingerprint() -> None:
    config = tiny.config()
    others: dict[str, Any] = {
        "task": "parity_dense",
        "model": tiny.model(eigen_range=(0.0, 1.0)),
        "steps": 14,
        "batch": 5,
        "lengths": (3, 9),
        "optimizer": OptimizerConfig(lr=2e-3),
        "schedule": ScheduleConfig(warmup=0.2),
        "evaluation": EvaluationConfig(every=4, size=17, lengths=(8, 12)),
        "precision": "bf16",
        "seed": 1,
        "data_seed": 1,
        "stop_at": 0.5,
        "start": "0" * 64,
        "window": 4,
    }
    assert set(others) | RunConfig.IDLE == {field.name for field in dataclasses.fields(RunConfig)}
    prints = {tiny.config(**{name: value}).fingerprint for name, value in others.items()}
    assert len(prints | {config.fingerprint}) == len(others) + 1


def test_how_often_one_looks_is_no_other_run() -> None:
    config = tiny.config()
    often = EvaluationConfig(every=2, size=16, lengths=(8, 12), batch=3)
    changed = tiny.config(log_every=1, checkpoint_every=4, evaluation=often)
    assert changed.fingerprint == config.fingerprint and changed != config
    # unless it decides when the run ends
    goal = {"stop_at": 0.5}
    assert tiny.config(**goal, evaluation=often).fingerprint != tiny.config(**goal).fingerprint


def test_the_backend_is_no_other_run() -> None:
    other = tiny.config(model=tiny.model(backend="torch"))
    assert other.fingerprint == tiny.config().fingerprint


def test_equal_ranges_are_equal_runs() -> None:
    prints = {
        tiny.config(model=tiny.model(eigen_range=between)).fingerprint
        for between in ((-1, 1), (-1.0, 1.0), [-1, 1.0])
    }
    assert prints == {tiny.config().fingerprint}


def test_tasks_of_ones_own() -> None:
    """A machine, a regex over a wider alphabet, a task as an object: stored to last."""
    flip = Machine.from_table([[1, 0], [0, 1]], outputs=[0, 1], alphabet="ab")
    wide = tasks.from_regex("(aa)*", "ab")
    own = dataclasses.replace(tasks.get("parity"), name="my_parity")
    for task in (flip, wide, own, tasks.from_machine(flip, dense=False)):
        learns = tasks.get(task)
        model = paper_config("DeltaNet", vocab_size=learns.vocab_size, num_classes=2, d_model=8)
        if task is own:
            model = tiny.model()
        config = RunConfig(task=task, model=model, steps=1, batch=1)
        again = RunConfig.from_json(config.to_json())
        assert again == config and hash(again) == hash(config)
        assert again.fingerprint == config.fingerprint
        assert again.learns.name == learns.name
        assert pickle.loads(pickle.dumps(config)) == config


def test_equal_numbers_are_equal_configs() -> None:
    whole, real = make(OptimizerConfig, lr=1), OptimizerConfig(lr=1.0)
    assert json.dumps(whole.to_dict()) == json.dumps(real.to_dict())


def test_what_the_task_decides_is_filled_in() -> None:
    config = RunConfig(task="parity", model=tiny.model(), steps=1, batch=1)
    assert config.lengths == (3, 40)
    assert config.evaluation.task == "parity"
    assert config.evaluation.lengths == (40, 256)
    assert config.evaluation.test_lengths == (3, 256)
    words = RunConfig(task="s3", model=paper_config("DeltaNet", vocab_size=13), steps=1, batch=1)
    assert words.evaluation.test_lengths == (500, 500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "paritty"}, "did you mean 'parity'"),
        ({"steps": 0}, "steps=0 must be a whole number at least 1"),
        ({"steps": True}, "steps=True"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"precision": "bf61"}, "did you mean 'bf16'"),
        ({"lengths": (9, 3)}, "out of range"),
        ({"lengths": (1, 3)}, "2 <= min_length"),
        ({"lengths": (3,)}, "must be 2 values"),
        ({"stop_at": 1.5}, "at most 1"),
        ({"checkpoint_every": 3}, "must be a multiple of log_every=2"),
        ({"evaluation": EvaluationConfig(every=3)}, "evaluation.every=3"),
        ({"evaluation": EvaluationConfig(every=2, task="s5")}, "another alphabet"),
        ({"evaluation": 2}, "must be a EvaluationConfig"),
        ({"seed": -1}, "seed=-1 must be a whole number at least 0"),
        ({"task": "mod_arithmetic"}, "needs 10 and 10"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(RunConfig, **(vars(tiny.config()) | change))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make(OptimizerConfig, lr=0), "lr=0 must be a number above 0"),
        (lambda: OptimizerConfig(lr=float("nan")), "lr=nan"),
        (lambda: OptimizerConfig(betas=(0.9, 1.0)), "betas"),
        (lambda: make(OptimizerConfig, decay="matrixes"), "did you mean 'matrices'"),
        (lambda: make(OptimizerConfig, clip_norm=-1), "clip_norm=-1"),
        (lambda: make(ScheduleConfig, warmup=2), "at least 0 and at most 1"),
        (lambda: EvaluationConfig(size=0), "size=0"),
        (lambda: RunConfig.from_dict({"step": 3}), "no field 'step'; did you mean 'steps'"),
        (lambda: RunConfig.from_dict({"task": "parity"}), "needs model, steps, batch"),
        (lambda: OptimizerConfig.from_dict({"learning_rate": 1}), "there are lr, weight_decay"),
        (
            lambda: RunConfig.from_dict({**tiny.config().to_dict(), "schedule": {"warmpu": 0.1}}),
            "ScheduleConfig has no field 'warmpu'; did you mean 'warmup'",
        ),
    ],
)
def test_bad_parts_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_schedule_of_the_paper() -> None:
    """From 0 at the first step, peak after a tenth, 1e-3 of the peak at the last."""
    schedule, steps = ScheduleConfig(), 1000
    factors = [schedule.factor(step, steps) for step in range(steps)]
    assert factors[0] == 0
    assert factors[50] == 0.5
    assert max(factors) == factors[100] == 1
    assert factors[-1] == pytest.approx(1e-3, abs=1e-12)
    assert all(a >= b for a, b in zip(factors[100:], factors[101:], strict=False))
    assert ScheduleConfig(shape="constant", warmup=0.0).factor(999, 1000) == 1
    assert ScheduleConfig().factor(0, 1) == 1
