"""One function puts a tagging run together."""

import pytest

from statetrack.experiments.recipes import decay_rule, tagger, tagging_run
from statetrack.layers.registry import LAYERS
from statetrack.models import paper_config
from statetrack.training import OptimizerConfig, RunConfig


def test_its_defaults_are_those_of_the_configs() -> None:
    model = paper_config("DeltaNet", vocab_size=3)
    plain = RunConfig(task="parity", model=model, steps=10, batch=4)
    assert tagging_run("parity", "DeltaNet", steps=10, batch=4) == plain


@pytest.mark.parametrize("layer", LAYERS)
def test_xlstm_decays_matrices_alone(layer: str) -> None:
    config = tagging_run("parity", layer.lower(), steps=10, batch=4, weight_decay=0.1)
    rule = "matrices" if layer in ("MLSTM", "SLSTM") else "all_but_state"
    assert config.optimizer == OptimizerConfig(weight_decay=0.1, decay=rule)
    assert decay_rule(layer) == rule
    told = tagging_run("parity", layer, steps=10, batch=4, decay="all")
    assert told.optimizer.decay == "all"


def test_the_task_decides_vocabulary_and_classes() -> None:
    model = tagger("mod_arithmetic", "Mamba", num_layers=3, options={"conv_size": 1})
    assert (model.vocab_size, model.backbone.num_layers) != (3, 2)
    assert model.backbone.mixers[0].options["conv_size"] == 1 and model.backbone.mlp == "none"
    with pytest.raises(ValueError, match="did you mean 'parity'"):
        tagger("paritty", "Mamba")


def test_one_seed_for_weights_and_data() -> None:
    config = tagging_run("parity", "DeltaNet", steps=10, batch=4, seed=7)
    assert (config.seed, config.data_seed) == (7, 7)


def test_what_stands_around_the_layer_can_be_changed() -> None:
    plain = tagger("parity", "DeltaNet")
    bare = tagger("parity", "DeltaNet", block={"mlp": "none"})
    assert (plain.backbone.mlp, bare.backbone.mlp) == ("swiglu", "none")
    with pytest.raises(TypeError):
        tagger("parity", "DeltaNet", block={"mpl": "none"})
