"""Checkpoints of transformers: the same logits, on random weights."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OlmoHybridConfig,
    OlmoHybridForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from statetrack.hf import convert
from statetrack.models import CausalLM
from tests.helpers import relative_error

TOKENS = torch.randint(50, (2, 70), generator=torch.Generator().manual_seed(0))
HYBRID: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "pad_token_id": None,
    "eos_token_id": 0,
}
ROPE = {"rope_type": "default", "rope_theta": 500.0}


def stirred(kind: Any, config: Any, seed: int = 1) -> Any:
    """A model whose every weight is away from its initial value, gates included."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn(parameter.shape)
    return model.eval()


def mamba(*, seed: int = 1, **changes: Any) -> Any:
    sizes = {"vocab_size": 50, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
    return stirred(MambaForCausalLM, MambaConfig(**(sizes | changes)), seed)


def mamba2(*, seed: int = 1, **changes: Any) -> Any:
    sizes = {"vocab_size": 50, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}
    sizes |= {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16}
    return stirred(Mamba2ForCausalLM, Mamba2Config(**(sizes | changes)), seed)


def olmo(*, seed: int = 1, **changes: Any) -> Any:
    return stirred(OlmoHybridForCausalLM, OlmoHybridConfig(**(HYBRID | changes)), seed)


def qwen(*, seed: int = 1, **changes: Any) -> Any:
    settings = HYBRID | {"head_dim": 16, "num_experts": 0, "mlp_only_layers": []} | changes
    return stirred(Qwen3NextForCausalLM, Qwen3NextConfig(**settings), seed)


MODELS: dict[str, Any] = {
    "mamba": mamba,
    "mamba, untied": partial(mamba, tie_word_embeddings=False, time_step_rank=3, conv_kernel=3),
    "mamba2": mamba2,
    "mamba2, groups, tied": partial(mamba2, n_groups=2, tie_word_embeddings=True),
    "olmo-hybrid": olmo,
    "olmo-hybrid [0, 1]": partial(olmo, linear_allow_neg_eigval=False),
    "olmo-hybrid, rope": partial(olmo, rope_parameters=ROPE),
    "olmo-hybrid, tied": partial(olmo, tie_word_embeddings=True),
    "qwen3-next": qwen,
    "qwen3-next, no groups": partial(qwen, linear_num_value_heads=2, num_key_value_heads=4),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_theirs(name: str) -> None:
    theirs = MODELS[name]()
    ours = convert.from_transformers(theirs)
    with torch.no_grad():
        wanted, got = theirs(TOKENS).logits, ours(TOKENS)[0]
    assert relative_error(got, wanted) < 2e-5
    assert wanted.std() > 0.1, "nearly constant logits would show nothing"


def test_olmo_hybrid_keeps_its_negative_eigenvalues() -> None:
    low = [convert.from_transformers(olmo(linear_allow_neg_eigval=b)) for b in (False, True)]
    ranges = [one.config.backbone.mixers[0].options["eigen_range"] for one in low]
    assert ranges == [(0.0, 1.0), (-1.0, 1.0)]


@pytest.mark.parametrize("name", ["mamba", "olmo-hybrid"])
def test_folders(name: str, tmp_path: Path) -> None:
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path)
    ours = convert.from_folder(tmp_path)
    with torch.no_grad():
        assert relative_error(ours(TOKENS)[0], theirs(TOKENS).logits) < 2e-5
    with pytest.raises(ValueError, match="another library"):
        CausalLM.load(tmp_path)


def test_the_copy_is_a_copy() -> None:
    theirs = mamba()
    ours = convert.from_transformers(theirs)
    before = ours(TOKENS)[0].detach()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert torch.equal(ours(TOKENS)[0].detach(), before)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: mamba(use_bias=True), "use_bias=True.*no bias"),
        (lambda: mamba(hidden_act="relu"), "hidden_act='relu'"),
        (lambda: mamba2(time_step_limit=(0.0, 1.0)), "time_step_limit"),
        (lambda: olmo(attention_bias=True), "attention_bias=True"),
        (
            lambda: olmo(rope_parameters=ROPE | {"rope_type": "linear", "factor": 2.0}),
            "rope_type='linear'",
        ),
        (lambda: qwen(num_experts=4, num_experts_per_tok=2), "num_experts=4"),
    ],
)
def test_what_has_no_counterpart_is_refused(model: Any, words: str) -> None:
    with pytest.raises(ValueError, match="cannot be converted exactly.*" + words):
        convert.from_transformers(model())


def test_incomplete_and_unknown_models_are_named(tmp_path: Path) -> None:
    theirs = mamba()
    weights = dict(theirs.state_dict())
    del weights["backbone.layers.1.mixer.D"]
    with pytest.raises(ValueError, match=r"no weights backbone.layers.1.mixer.D: is it a whole"):
        convert.from_weights(theirs.config.to_dict(), weights)
    more = theirs.state_dict() | {"surplus": torch.zeros(1)}
    with pytest.raises(ValueError, match="surplus has no counterpart"):
        convert.from_weights(theirs.config.to_dict(), more)
    with pytest.raises(ValueError, match="'lama' cannot be converted.*known are mamba, mamba2"):
        convert.from_weights({"model_type": "lama"}, {})
    with pytest.raises(ValueError, match="no model_type, so it is none of mamba, mamba2"):
        convert.from_weights({}, {})
    with pytest.raises(ValueError, match="no config.json"):
        convert.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ValueError, match="is not JSON"):
        convert.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(theirs.config.to_dict()))
    with pytest.raises(ValueError, match="has no weights"):
        convert.from_folder(tmp_path)


def test_mamba_ssm_names() -> None:
    """The same weights under mamba-ssm's names and config."""
    theirs = mamba()
    weights = {
        name.replace("backbone.embeddings.", "backbone.embedding."): tensor
        for name, tensor in theirs.state_dict().items()
    }
    config = {"d_model": 32, "n_layer": 2, "ssm_cfg": {"d_state": 4}, "tie_embeddings": True}
    ours = convert.from_mamba_ssm(weights, config)
    with torch.no_grad():
        assert relative_error(ours(TOKENS)[0], theirs(TOKENS).logits) < 2e-5
    for change, words in (
        ({"attn_layer_idx": [1]}, "attention layers"),
        ({"d_intermediate": 64}, "MLPs"),
        ({"rms_norm": False}, "rms_norm=False"),
        ({"ssm_cfg": {"d_state": 4, "bimamba": True}}, "bimamba"),
    ):
        with pytest.raises(ValueError, match=words):
            convert.from_mamba_ssm(weights, config | change)
