"""fla's checkpoints: there and back, and what each option becomes.

fla runs on GPUs alone, so its logits are compared in tests/gpu/test_fla.py.
"""

from collections.abc import Mapping
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
    "KDA": ("KDA", DELTA | {"norm_eps": 1e-6, "value_dim": 8}),
    "KDA [0, 1], no conv": (
        "KDA",
        DELTA | {"norm_eps": 1e-6, "eigen_range": (0.0, 1.0), "conv_size": 0},
    ),
    "GLA": ("GLA", {"num_heads": 2, "eigen_range": (0.0, 1.0), "norm_eps": 1e-6}),
    "RWKV7": ("RWKV7", {"num_heads": 2, "eigen_range": None, "qk_eps": 1e-6}),
}


def build(layer: str, options: dict[str, Any], *, seed: int = 1, **changes: Any) -> CausalLM:
    """Two layers; those of RWKV-7 as it is published."""
    if layer == "RWKV7":
        later = (layer, {"value_rank": 5, **options})
        channels = ("ChannelMix", {"hidden_dim": 48})
        backbone = BackboneConfig(
            mixers=[(layer, options), channels, later, channels],
            d_model=32,
            mlp="none",
            norm="layer",
            norm_eps=1e-5,
            norm_bias=True,
            first_norm=True,
        )
    else:
        backbone = BackboneConfig(mixers=[(layer, options)] * 2, d_model=32, mlp_dim=48)
    config = CausalLMConfig(
        vocab_size=50, backbone=backbone, embedding_std=0.5, projection_std=0.2, **changes
    )
    model = CausalLM(config, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


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
        ("DeltaNet", DELTA | {"beta_stretch": 1.0}, "β is not stretched"),
        ("DeltaNet", DELTA | {"beta_start": 0.5}, "β begins in the middle"),
        ("GLA", {"num_heads": 2, "norm_eps": 1e-6}, r"gates in \[0, 1\]"),
        ("GLA", {"num_heads": 2, "eigen_range": (0.0, 1.0)}, "one norm_eps"),
        ("SLSTM", {"num_heads": 2}, "SLSTM has no counterpart"),
    ],
)
def test_what_fla_does_not_have(layer: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="cannot be written for fla exactly.*" + words):
        convert.to_fla(build(layer, options))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_v_heads": 4}, "num_v_heads=4"),
        ({"safe_gate": True, "lower_bound": -5.0}, "safe_gate=True"),
        ({"lower_bound": -5.0}, "lower_bound=-5.0"),
    ],
)
def test_options_of_kda_without_a_counterpart(change: dict[str, Any], words: str) -> None:
    config, weights = convert.to_fla(build(*CASES["KDA"]))
    with pytest.raises(ValueError, match=words):
        convert.from_fla(weights, config | change)


def test_another_library_is_named() -> None:
    with pytest.raises(ValueError, match="'rwkv6' cannot be converted; did you mean 'rwkv7'"):
        convert.from_fla({}, {"model_type": "rwkv6"})


def published_kda(W: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The logits from fla's names and the definition (arXiv:2510.26692), a token at a time."""
    heads, key, value = 2, 16, 8

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    def taken(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A causal convolution over the last four tokens, and SiLU."""
        past = torch.cat([x.new_zeros(3, x.shape[1]), x])
        width = weight.shape[-1]
        out = sum(weight[:, 0, i] * past[i : i + len(x)] for i in range(width))
        return torch.nn.functional.silu(out)

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

    x = W["model.embeddings.weight"][TOKENS[0]]
    for i in range(2):
        layer = {name.removeprefix(f"model.layers.{i}."): w for name, w in W.items()}
        h = norm(x, layer["attn_norm.weight"])
        q, k, v = (
            taken(h @ layer[f"attn.{p}_proj.weight"].T, layer[f"attn.{p}_conv1d.weight"])
            for p in "qkv"
        )
        q, k = unit(q.view(-1, heads, key)) / key**0.5, unit(k.view(-1, heads, key))
        v = v.view(-1, heads, value)
        f = h @ layer["attn.f_proj.0.weight"].T @ layer["attn.f_proj.1.weight"].T
        step = torch.nn.functional.softplus(f + layer["attn.dt_bias"]).view(-1, heads, key)
        decay = torch.exp(-layer["attn.A_log"].exp()[:, None] * step)
        beta = 2 * torch.sigmoid(h @ layer["attn.b_proj.weight"].T)
        S, outputs = x.new_zeros(heads, key, value), []
        for t in range(len(x)):
            S = decay[t][..., None] * S
            wrong = v[t] - torch.einsum("hkv,hk->hv", S, k[t])
            S = S + beta[t][:, None, None] * torch.einsum("hk,hv->hkv", k[t], wrong)
            outputs.append(torch.einsum("hkv,hk->hv", S, q[t]))
        g = h @ layer["attn.g_proj.0.weight"].T @ layer["attn.g_proj.1.weight"].T
        gate = torch.sigmoid(g + layer["attn.g_proj.1.bias"]).view(-1, heads, value)
        y = norm(torch.stack(outputs), layer["attn.o_norm.weight"]) * gate
        x = x + y.flatten(1) @ layer["attn.o_proj.weight"].T
        h = norm(x, layer["mlp_norm.weight"])
        inner = torch.nn.functional.silu(h @ layer["mlp.gate_proj.weight"].T)
        inner = inner * (h @ layer["mlp.up_proj.weight"].T)
        x = x + inner @ layer["mlp.down_proj.weight"].T
    return norm(x, W["model.norm.weight"]) @ W["lm_head.weight"].T


def test_kda_written_out() -> None:
    config, W = convert.to_fla(build(*CASES["KDA"]).double())
    assert config["allow_neg_eigval"]
    got = convert.from_fla(W, config)(TOKENS[:1])[0][0]
    assert relative_error(got, published_kda(W)) < 1e-10
