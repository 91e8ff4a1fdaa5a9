"""Named sizes as runs."""

import pytest

from statetrack.lm import Manifest
from statetrack.lm.recipes import RECIPES, pretrain_config


@pytest.mark.parametrize("size", list(RECIPES))
def test_a_size_is_a_run(size: str, manifest: Manifest) -> None:
    config = pretrain_config(manifest.folder, size, mixer_options={"eigen_range": (0.0, 1.0)})
    assert config.model.vocab_size == manifest.vocab_size
    assert config.optimizer.lr == RECIPES[size]["lr"]
    assert config.schedule.warmup == RECIPES[size]["warmup"]
    first = {config.model.embedding_std, config.model.projection_std}
    assert first == {RECIPES[size]["std"]}
    assert config.model.backbone.mixers[0].options["eigen_range"] == (0.0, 1.0)


def test_what_is_given_counts(manifest: Manifest) -> None:
    config = pretrain_config(manifest.folder, "60M", lr=1e-4, warmup=0.2, std=0.5, batch=8, seed=3)
    assert (config.optimizer.lr, config.batch, config.seed) == (1e-4, 8, 3)
    assert (config.schedule.warmup, config.model.projection_std) == (0.2, 0.5)
    assert config.model.embedding_std == 0.5
    assert config.length == RECIPES["60M"]["length"]
    with pytest.raises(ValueError, match="there are 20M, 60M"):
        pretrain_config(manifest.folder, "61M")


def test_mamba_draws_its_projections_itself(manifest: Manifest) -> None:
    config = pretrain_config(manifest.folder, "60M", "Mamba", std=0.5)
    assert (config.model.embedding_std, config.model.projection_std) == (0.02, None)
