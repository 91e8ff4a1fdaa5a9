"""From the first case each of the others differs in one thing, or two; all are judged alike."""

from statetrack.experiments.parity_far import CASES, FAR, parity_far


def test_what_is_changed() -> None:
    first, *others = CASES
    changed = [sum(a != b for a, b in zip(first, case, strict=True)) for case in others]
    assert sorted(changed) == [1, 1, 1, 1, 1, 2, 2]
    for scale in ("quick", "paper"):
        runs = parity_far(scale)
        assert len(runs) == 5 * len(CASES)
        assert {c.evaluation.lengths for c in runs} == {(FAR, FAR)}
        assert {c.optimizer.lr for c in runs} == {3e-3}
