"""What is changed from case to case; all are asked densely and judged as the paper."""

import dataclasses

from statetrack import tasks
from statetrack.experiments.arithmetic_far import (
    CASES,
    FACTORS,
    SEEDS,
    THEN,
    WINDOW,
    arithmetic_far,
)

TASKS = ("mod_arithmetic", "mod_arithmetic_brackets")


def test_what_is_changed() -> None:
    _, positive, whole = CASES
    assert positive[1:] == CASES[0][1:]
    assert whole[0] == CASES[0][0] and whole[2] is None
    for scale in ("quick", "paper"):
        runs = arithmetic_far(scale)
        assert len(runs) == len(SEEDS) * (len(CASES) + len(FACTORS) * (1 + len(THEN)))
        assert len({run.fingerprint for run in runs}) == len(runs)
        assert {run.window for run in runs} == {WINDOW, 2 * WINDOW, None}


def test_with_brackets_every_model_goes_on_from_its_own_first_part() -> None:
    for scale in ("smoke", "quick", "paper"):
        runs = {run.fingerprint: run for run in arithmetic_far(scale)}
        second = [run for run in runs.values() if run.start is not None]
        assert len(second) == len(THEN) * len(FACTORS) * (1 if scale == "smoke" else len(SEEDS))
        for run in second:
            first = runs[run.start or ""]
            assert (first.task, first.seed, first.model) == (run.task, run.seed, run.model)
            assert first.data_seed != run.data_seed and first.window is None
            assert run.train_lengths[1] > first.train_lengths[1]
            assert run.train_lengths[1] <= run.evaluation.lengths[1]  # type: ignore[index]
            same = dataclasses.replace(run, start=None, window=None, lengths=first.lengths)
            assert same.optimizer == first.optimizer and same.evaluation == first.evaluation


def test_judged_by_one_answer_a_word_at_the_lengths_of_the_paper() -> None:
    for scale in ("smoke", "quick"):
        for run in arithmetic_far(scale):
            assert run.learns.dense and not run.judge.dense
            assert run.learns.name == f"{run.judge.name}_dense"
            assert run.judge.name in TASKS
            assert run.evaluation.lengths == (
                tasks.get(run.judge.name).eval_lengths.min,
                tasks.get(run.judge.name).eval_lengths.max,
            )
