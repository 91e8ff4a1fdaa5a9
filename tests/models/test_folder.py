"""A model on disk: whole, in pieces, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from statetrack.models import CausalLM, folder
from tests.helpers import relative_error
from tests.models.test_causal_lm import TOKENS, build

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LOADER = "modeling_statetrack.py"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("largest", [2**40, 10_000])
def test_saved_equals_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool, largest: int
) -> None:
    monkeypatch.setattr(folder, "LARGEST", largest)
    model = build("DeltaNet", "Attention", "Mamba", tied=tied)
    model.save(tmp_path)
    assert (tmp_path / INDEX).exists() == (largest == 10_000)
    again = CausalLM.load(tmp_path)
    assert again.config == model.config
    weights = again.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert relative_error(again(TOKENS)[0], model(TOKENS)[0]) < 1e-12
    assert CausalLM.load(tmp_path, dtype=torch.float32).embedding.weight.dtype == torch.float32


def test_saving_again_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("DeltaNet", "DeltaNet")
    with monkeypatch.context() as small:
        small.setattr(folder, "LARGEST", 10_000)
        model.save(tmp_path)
    build("Mamba").save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS, LOADER]
    assert CausalLM.load(tmp_path).config.backbone.mixers[0].layer == "Mamba"


def test_what_is_no_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(words: str) -> None:
        with pytest.raises(ValueError, match=words) as caught:
            CausalLM.load(tmp_path / "model")
        assert "\n" not in str(caught.value)

    refused("there is no such folder")
    (tmp_path / "model").mkdir()
    refused("has no config.json")
    config = tmp_path / "model" / CONFIG
    config.write_text("{")
    refused("is not JSON")
    config.write_text(json.dumps({"model_type": "mamba", "hidden_size": 3}))
    refused(r"another library \(mamba\).*statetrack lm convert")
    config.write_text(json.dumps({"d_model": 32, "ssm_cfg": {}}))
    refused(r"another library \(mamba-ssm\).*statetrack lm convert")
    config.write_text(json.dumps({"version": 1}))
    refused("does not describe a language model: it has no 'model_type'")
    config.write_text(json.dumps({"model_type": "statetrack"}))
    refused("no entry 'model'")
    config.write_text(json.dumps({"model_type": "statetrack", "model": {"vocab_sise": 3}}))
    refused("vocab_sise.*did you mean 'vocab_size'")

    monkeypatch.setattr(folder, "LARGEST", 10_000)
    model = build("DeltaNet")
    model.save(tmp_path / "model")
    pieces = sorted((tmp_path / "model").glob("*.safetensors"))
    piece = pieces[1].read_bytes()
    pieces[1].unlink()
    refused(f"1 of {len(pieces)} files of weights are missing, the first is {pieces[1].name}")
    pieces[1].write_bytes(piece[:-8])
    refused("not a whole safetensors file")
    pieces[1].write_bytes(piece)
    assert CausalLM.load(tmp_path / "model").config == model.config

    (tmp_path / "model" / INDEX).unlink()
    refused("has no weights")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"")
    refused("is a pickle")


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    build("DeltaNet").save(tmp_path)
    weights = (tmp_path / WEIGHTS).read_bytes()
    for mixers, tied, words in (
        (["DeltaNet", "DeltaNet"], False, "lacks the weights backbone.blocks.1"),
        (["Mamba"], False, "lacks the weights backbone.blocks.0.mixer"),
        (["DeltaNet"], True, "does not ask for: head.weight"),
    ):
        build(*mixers, tied=tied).save(tmp_path)
        (tmp_path / WEIGHTS).write_bytes(weights)
        with pytest.raises(ValueError, match=words):
            CausalLM.load(tmp_path)
    described = json.loads((tmp_path / CONFIG).read_text())
    described["model"]["tie_embeddings"] = False
    described["model"]["vocab_size"] = 24
    (tmp_path / CONFIG).write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"has shape \[23, 32\].*asks for \[24, 32\]"):
        CausalLM.load(tmp_path)


def test_folder_says_what_to_install(tmp_path: Path) -> None:
    """The file that transformers would run names the package, and config.json names the file."""
    build("DeltaNet").save(tmp_path)
    assert "pip install 'statetrack[hf]'" in (tmp_path / LOADER).read_text()
    named = json.loads((tmp_path / CONFIG).read_text())["auto_map"]
    assert {where.partition(".")[0] for where in named.values()} == {Path(LOADER).stem}
