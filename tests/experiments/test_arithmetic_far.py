"""Each case differs from the first in one thing; all are asked densely and judged as the paper."""

from statetrack import tasks
from statetrack.experiments.arithmetic_far import CASES, TASKS, WINDOW, arithmetic_far


def test_what_is_changed() -> None:
    _, positive, whole = CASES
    assert positive[1:] == CASES[0][1:]
    assert whole[0] == CASES[0][0] and whole[2] is None
    for scale in ("quick", "paper"):
        runs = arithmetic_far(scale)
        assert len(runs) == 5 * len(CASES) * len(TASKS)
        assert len({run.fingerprint for run in runs}) == len(runs)
        assert {run.window for run in runs} == {WINDOW, None}


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
