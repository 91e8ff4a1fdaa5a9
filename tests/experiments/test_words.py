"""Word problems by the paper's numbers, and our own recipes."""

from statetrack.experiments.words import householders, s5, z60
from tests.experiments.cases import one


def test_word_problem_protocol() -> None:
    final, first = (
        [c for c in s5("paper", version) if c.model.backbone.mixers[0].layer != "DeltaProduct"]
        for version in ("iclr", "workshop")
    )
    assert {c.task for c in final} == {"s5", "s5_swaps", "s5_3perms", "s5_4tokens"}
    assert {c.steps for c in final} == {312_500}
    assert one(first, "s5_swaps", "DeltaNet").steps == 30 * 3125
    assert one(first, "s5", "DeltaNet").steps == 90 * 3125
    assert {c.seed for c in first} == {0} and {c.seed for c in final} == {0, 1, 2}
    config = one(final, "s5_4tokens", "DeltaNet")
    assert config.lengths == (64, 64) and config.evaluation.lengths == (500, 500)
    assert (config.batch, config.optimizer.lr, config.optimizer.weight_decay) == (512, 1e-4, 0.01)
    assert config.optimizer.clip_norm == 1.0 and config.evaluation.size == 40_000
    options = config.model.backbone.mixers[0].options
    assert (options["conv_size"], options["qk_silu"], options["num_heads"]) == (0, False, 4)
    assert {
        c.model.backbone.num_layers for c in final if c.model.backbone.mixers[0].layer == "DeltaNet"
    } == {1, 5}
    baseline = one(final, "s5", "FullMatrix").model.backbone
    assert baseline.num_layers == 1 and baseline.mixers[0].options["eigen_range"] is None
    assert baseline.mixers[0].options["state_dim"] == 32
    assert {c.task for c in z60("paper", "iclr")} == {"z60", "z60_2tokens"}


def test_the_recipe_for_all_of_s5() -> None:
    """Not the paper's, so the same in all its versions."""
    ours = [c for c in s5("paper", "iclr") if c.model.backbone.mixers[0].layer == "DeltaProduct"]
    assert ours == [
        c for c in s5("paper", "workshop") if c.model.backbone.mixers[0].layer == "DeltaProduct"
    ]
    assert {c.model.backbone.mixers[0].options["eigen_range"] for c in ours} == {
        (0.0, 1.0),
        (-1.0, 1.0),
    }
    for config in ours:
        assert config.task == "s5" and config.evaluation.lengths == (500, 500)
        assert (
            config.model.backbone.num_layers,
            config.model.backbone.mlp,
            config.model.backbone.d_model,
        ) == (1, "none", 64)
        assert config.model.backbone.mixers[0].options["num_householders"] == 4
        assert config.optimizer.weight_decay == 0.0 and config.schedule.final == 0.0


def test_householder_protocol() -> None:
    runs = householders("paper", "iclr")
    counts = {c.model.backbone.mixers[0].options["num_householders"] for c in runs}
    assert counts == {1, 2, 3, 4} and {c.task for c in runs} == {"s3", "s4", "a5", "s5"}
    assert all(
        (c.batch, c.lengths, c.model.backbone.num_layers) == (2048, (128, 128), 1) for c in runs
    )
