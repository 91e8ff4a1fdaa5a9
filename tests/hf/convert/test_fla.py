"""fla's checkpoints: there and back, and what each option becomes.

fla runs on GPUs alone, so its logits are compared in tests/gpu/test_fla.py.
"""

from typing import Any

import pytest
import torch

from statetrack.hf import convert
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
from tests.helpers import relative_error

TOKENS = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))
DELTA = {"qk_eps": 1e-6, "num_heads": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "DeltaNet": ("DeltaNet", DELTA),
    "DeltaNet [0, 1], gate, no conv": (
        "DeltaNet",
        DELTA | {"eigen_range": (0.0, 1.0), "output_gate": True, "conv_size": 0},
    ),
    "DeltaNet, identity, wide": ("DeltaNet", DELTA | {"qk_silu": False, "value_dim": 8}),
    "GatedDeltaNet": ("GatedDeltaNet", DELTA | {"head_dim": 12, "value_dim": 24}),
    "GatedDeltaNet, value heads": (
        "GatedDeltaNet",
        DELTA | {"num_value_heads": 4, "output_gate": False},
    ),
    "DeltaProduct": ("DeltaProduct", DELTA | {"num_householders": 3}),
    "DeltaProduct, gates": (
        "DeltaProduct",
        DELTA | {"forget_gate": True, "output_gate": True, "value_dim": 8},
    ),
    "GLA": ("GLA", {"num_heads": 2, "eigen_range": (0.0, 1.0), "norm_eps": 1e-6}),
}


def build(layer: str, options: dict[str, Any], **changes: Any) -> CausalLM:
    backbone = BackboneConfig(mixers=[(layer, options)] * 2, d_model=32, mlp_dim=48)
    config = CausalLMConfig(
        vocab_size=50, backbone=backbone, embedding_std=0.5, projection_std=0.2, **changes
    )
    return CausalLM(config, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str, tied: bool) -> None:
    model = build(*CASES[name], tie_embeddings=tied)
    config, weights = convert.to_fla(model)
    assert all(key.startswith(("model.", "lm_head.")) for key in weights)
    again = convert.from_fla(weights, config)
    assert relative_error(again(TOKENS)[0], model(TOKENS)[0]) < 1e-6
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (
        again.config.backbone.mixers[0].options["eigen_range"]
        == (model.config.backbone.mixers[0].options["eigen_range"])
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qk_norm": "sum"}, "qk_norm='sum'"),
        ({"qk_activation": "elu"}, "qk_activation='elu'"),
        ({"use_beta": False}, "use_beta=False"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"attn": {"layers": [1]}}, "it has attn"),
    ],
)
def test_options_without_a_counterpart_are_refused(change: dict[str, Any], words: str) -> None:
    config, weights = convert.to_fla(build(*CASES["DeltaNet"]))
    with pytest.raises(ValueError, match="cannot be converted exactly.*" + words):
        convert.from_fla(weights, config | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature_map": "relu"}, "feature_map"),
        ({"clamp_min": -1.0}, "clamp_min"),
        ({"use_short_conv": True}, "use_short_conv=True"),
        ({"num_kv_heads": 1}, "num_kv_heads=1"),
    ],
)
def test_options_of_gla_without_a_counterpart(change: dict[str, Any], words: str) -> None:
    config, weights = convert.to_fla(build(*CASES["GLA"]))
    with pytest.raises(ValueError, match=words):
        convert.from_fla(weights, config | change)


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        ("DeltaNet", {"num_heads": 2}, "fla has qk_eps=1e-06 and this model 0"),
        ("DeltaNet", DELTA | {"eigen_range": (-0.5, 1.0)}, r"\[0, 1\] or \[-1, 1\]"),
        ("GLA", {"num_heads": 2, "norm_eps": 1e-6}, r"gates in \[0, 1\]"),
        ("GLA", {"num_heads": 2, "eigen_range": (0.0, 1.0)}, "one norm_eps"),
        ("SLSTM", {"num_heads": 2}, "SLSTM has no counterpart"),
    ],
)
def test_what_fla_does_not_have(layer: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="cannot be written for fla exactly.*" + words):
        convert.to_fla(build(layer, options))


def test_another_library_is_named() -> None:
    with pytest.raises(ValueError, match="'rwkv7' cannot be converted"):
        convert.from_fla({}, {"model_type": "rwkv7"})
