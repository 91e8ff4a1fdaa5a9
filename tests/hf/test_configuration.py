"""The config of transformers: one description, and what is read from it."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from statetrack.hf import StatetrackConfig
from tests.models.test_causal_lm import VOCAB, build

MODEL = build("DeltaNet", "Mamba", tied=True).config


def test_all_is_read_from_the_description() -> None:
    config = StatetrackConfig(MODEL, eos_token_id=2)
    assert config.description == MODEL
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCAB, 32, 2)
    assert config.tie_word_embeddings and config.eos_token_id == 2
    assert not {"vocab_size", "tie_word_embeddings", "hidden_size"} & config.to_dict().keys()
    assert StatetrackConfig(MODEL.to_dict()).description == MODEL
    assert StatetrackConfig(MODEL, tie_word_embeddings=False).description.tie_embeddings is False
    config.vocab_size = 40
    assert config.description.vocab_size == config.to_dict()["model"]["vocab_size"] == 40


def test_saved_equals_loaded(tmp_path: Path) -> None:
    config = StatetrackConfig(MODEL, pad_token_id=0, use_cache=False)
    config.save_pretrained(tmp_path)
    for again in (AutoConfig.from_pretrained(tmp_path), StatetrackConfig.from_pretrained(tmp_path)):
        assert isinstance(again, StatetrackConfig)
        assert again.description == MODEL
        assert again.pad_token_id == 0 and again.use_cache is False
        assert again.to_diff_dict() == config.to_diff_dict()
    assert json.loads((tmp_path / "config.json").read_text())["model"] == MODEL.to_dict()


def test_bad_configs_are_named() -> None:
    with pytest.raises(ValueError, match="vocab_sise.*did you mean 'vocab_size'"):
        StatetrackConfig({"vocab_sise": 3})
    with pytest.raises(ValueError, match="has no defaults.*lm_config"):
        StatetrackConfig()
