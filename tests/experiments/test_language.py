"""The language study: pairs that differ in the range alone, and its script from end to end."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from statetrack.experiments import language
from statetrack.runs.identity import same_but_for
from tests.lm import corpus


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.shards(tmp_path_factory.mktemp("study")).folder


def test_a_pair_differs_in_the_range_alone(shards: Path) -> None:
    runs = language.configs(shards, seeds=(0, 1), tokens=1e6)
    assert len({run.fingerprint for run in runs}) == 4
    usual, extended = runs[0], runs[2]
    assert usual.data_seed == extended.data_seed and usual.steps == 8
    without = [same_but_for(run, ["model"]) for run in (usual, extended)]
    assert without[0] == without[1]
    options = [dict(run.model.backbone.mixers[0].options) for run in (usual, extended)]
    assert [one.pop("eigen_range") for one in options] == [(0.0, 1.0), (-1.0, 1.0)]
    assert options[0] == options[1]


def test_every_model_can_be_made(shards: Path) -> None:
    runs = language.configs(shards, models="more", seeds=(0,), tokens=1e6)
    assert len(runs) == 9
    assert {run.optimizer.lr for run in language.rates(shards)} == {5e-4, 1e-3, 2e-3, 4e-3}


def test_the_study(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = language.pretrain_config

    def small(*args: Any, **changes: Any) -> Any:
        found = original(*args, **changes)
        first = found.model.backbone.mixers[0]
        mixer = dataclasses.replace(first, options={**first.options, "num_heads": 2})
        backbone = dataclasses.replace(found.model.backbone, d_model=8, mlp_dim=8, mixers=(mixer,))
        model = dataclasses.replace(found.model, backbone=backbone)
        return dataclasses.replace(found, model=model, batch=2, length=16, precision="fp32")

    monkeypatch.setattr(language, "pretrain_config", small)
    words = f"study --shards {shards} --out {tmp_path} --tokens 640 --seeds 1 --windows 2"
    language.main([*words.split(), "--device", "cpu"])
    rows = json.loads((tmp_path / "language.json").read_text())
    assert [row["model"] for row in rows] == ["DeltaNet [0, 1]", "DeltaNet [-1, 1]"]
    for row in rows:
        assert row["tokens"] == 640 and row["domains"].keys() == {"code", "prose"}
        assert row["domains"]["code"]["ends"][-1] == 256
