"""The README's job."""

from statetrack.experiments.demo import demo


def test_the_demo_recipe() -> None:
    runs = demo()
    assert len({c.fingerprint for c in runs}) == 4
    assert all(c.train_lengths == (3, 40) for c in runs)
    assert all(c.evaluation.lengths == (41, 256) for c in runs)
    assert {c.seed for c in demo(7)} == {7}
    # both ranges of a layer are trained alike
    assert (
        len(
            {
                (c.model.backbone.mixers[0].layer, c.steps, c.batch, c.optimizer, c.schedule)
                for c in runs
            }
        )
        == 2
    )
