"""Configs of pretraining: complete, refused where they do not fit, named by what they decide."""

import dataclasses
import json
from pathlib import Path

import pytest

from statetrack.config import frozen_defaults
from statetrack.lm import Manifest, PretrainConfig, PretrainEvaluationConfig
from statetrack.runs.folder import config_file, config_of
from statetrack.runs.stored import Place
from tests.lm import corpus


def test_there_and_back(manifest: Manifest) -> None:
    config = corpus.config(manifest, mixture={"code": 1, "prose": 3})
    assert PretrainConfig.from_json(config.to_json()) == config
    content = json.loads(json.dumps(config_file(config)))
    assert config_of(content, Place(Path("config.json"))) == config
    assert content["model_type"] == "statetrack"
    assert config.data_sha256 == manifest.sha256


def test_the_fingerprint_is_of_what_decides_numbers(manifest: Manifest) -> None:
    config = corpus.config(manifest)
    idle = {
        "data": "elsewhere",
        "micro_batch": 2,
        "recompute": True,
        "compile": "blocks",
        "log_every": 1,
        "checkpoint_every": None,
        "peak_tflops": 2.0,
        "evaluation": PretrainEvaluationConfig(every=8, windows=3, batch=1),
    }
    for name, value in idle.items():
        changed = dataclasses.replace(config, **{name: value})
        assert changed.fingerprint == config.fingerprint, name
    for name, value in {"data_sha256": "0", "carry_state": True, "z_loss": 0.1, "seed": 1}.items():
        changed = dataclasses.replace(config, **{name: value})
        assert changed.fingerprint != config.fingerprint, name


def test_defaults_are_frozen(manifest: Manifest) -> None:
    for cls in (PretrainConfig, PretrainEvaluationConfig):
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING:
                assert frozen_defaults()[cls.__name__][field.name] == field.default


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint_every": 3}, "checkpoint_every=3 must be a multiple of log_every=2"),
        ({"micro_batch": 3}, "batch=4 must be a multiple of micro_batch=3"),
        ({"carry_state": True, "mixture": {"code": 1.0}}, "leave out one"),
        ({"mixture": {"code": 0.0}}, "no share above 0"),
        ({"mixture": {"code": 1.0, "prose": -1.0}}, "must be a number at least 0"),
        ({"documents": "joint"}, "did you mean 'joined'"),
        ({"residual_precision": "bf16"}, "is for precision='bf16'"),
    ],
)
def test_what_does_not_fit(changes: dict[str, object], message: str, manifest: Manifest) -> None:
    with pytest.raises(ValueError, match=message):
        corpus.config(manifest, **changes)


def test_no_shards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="statetrack lm tokenize"):
        corpus.config(tmp_path)
