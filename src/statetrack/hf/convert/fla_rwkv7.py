"""flash-linear-attention's RWKV-7, both ways: the published layer with its own MLP and layer norms.

A layer of theirs is two blocks of ours, `RWKV7` and `ChannelMix`.
"""

from typing import Any

import torch
from torch import Tensor

from statetrack.hf.convert._weights import UNIT, Source, expect_for_fla
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, Mixer

__all__ = ["from_rwkv7", "to_rwkv7"]

MIXES = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")
# ours and theirs, in the mixer of a layer; those of the value residual are not in the first one
NAMES = {
    "r_proj.weight": "r_proj.weight",
    "k_proj.weight": "k_proj.weight",
    "v_proj.weight": "v_proj.weight",
    "out_proj.weight": "o_proj.weight",
    "w_down.weight": "w_lora.lora.0.weight",
    "w_up.weight": "w_lora.lora.2.weight",
    "w_up.bias": "w_lora.lora.2.bias",
    "a_down.weight": "a_lora.lora.0.weight",
    "a_up.weight": "a_lora.lora.2.weight",
    "a_up.bias": "a_lora.lora.2.bias",
    "g_down.weight": "g_lora.lora.0.weight",
    "g_up.weight": "g_lora.lora.2.weight",
    "k_scale": "k_k",
    "k_blend": "k_a",
    "bonus": "r_k",
    "norm.weight": "g_norm.weight",
    "norm.bias": "g_norm.bias",
}
VALUES = {
    "v_down.weight": "v_lora.lora.0.weight",
    "v_up.weight": "v_lora.lora.2.weight",
    "v_up.bias": "v_lora.lora.2.bias",
}
CHANNELS = {"mix": "x_k", "up_proj.weight": "key.weight", "down_proj.weight": "value.weight"}
EPS = 1e-5
"""Of all norms; that of the heads has it times the size of a head."""


def from_rwkv7(source: Source) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    width, layers = source.setting("hidden_size"), source.setting("num_hidden_layers")
    source.needs("hidden_act", "sqrelu", "the MLP of RWKV-7 has the square of a ReLU here")
    source.needs("norm_eps", EPS, f"RWKV-7 has {EPS:g} here")
    if source.setting("value_dim") not in (None, width, [width] * layers):
        source.needs("value_dim", width, "values here are as wide as the model")
    tied = bool(source.setting("tie_word_embeddings", False))
    bias = bool(source.setting("norm_bias", True))
    weights = source.head("lm_head.weight", "model.embeddings.weight", tied)

    def norm(ours: str, theirs: str) -> None:
        for part in ("weight", "bias") if bias else ("weight",):
            weights[f"{ours}.{part}"] = source.take(f"{theirs}.{part}")

    first = bool(source.setting("norm_first", True))
    if first:
        norm("backbone.first_norm", "model.layers.0.pre_norm")
    for i in range(layers):
        theirs = f"model.layers.{i}."
        time, channels = f"backbone.blocks.{2 * i}.", f"backbone.blocks.{2 * i + 1}."
        norm(time + "mixer_norm", theirs + "attn_norm")
        norm(channels + "mixer_norm", theirs + "ffn_norm")
        mixes = [source.take(f"{theirs}attn.{name}").flatten() for name in MIXES]
        weights[time + "mixer.mix"] = torch.stack(mixes)
        for ours, name in (NAMES | (VALUES if i else {})).items():
            weights[f"{time}mixer.{ours}"] = source.take(f"{theirs}attn.{name}")
        for ours, name in CHANNELS.items():
            weights[f"{channels}mixer.{ours}"] = source.take(f"{theirs}ffn.{name}")
    norm("backbone.norm", "model.norm")
    source.expect_empty()

    def rank(part: str, block: int = 0) -> int:
        return len(weights[f"backbone.blocks.{block}.mixer.{part}_down.weight"])

    options: dict[str, Any] = {
        "num_heads": len(weights["backbone.blocks.0.mixer.bonus"]),
        "eigen_range": None,
        "decay_rank": rank("w"),
        "removal_rank": rank("a"),
        "output_rank": rank("g"),
        "qk_eps": UNIT if source.setting("fuse_norm", True) else 0.0,
    }
    hidden = len(weights["backbone.blocks.1.mixer.up_proj.weight"])
    mixers = []
    for i in range(layers):
        own = {"value_rank": rank("v", 2 * i)} if i else {}
        mixers += [("RWKV7", options | own), ("ChannelMix", {"hidden_dim": hidden})]
    backbone = BackboneConfig(
        mixers=tuple(map(Mixer.of, mixers)),
        d_model=width,
        mlp="none",
        norm="layer",
        norm_eps=EPS,
        norm_bias=bias,
        first_norm=first,
    )
    config = CausalLMConfig(
        vocab_size=len(weights["embedding.weight"]), backbone=backbone, tie_embeddings=tied
    )
    return config, weights


def to_rwkv7(model: CausalLM) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """fla's config and weights for a model of `RWKV7` and `ChannelMix` by turns."""
    config, weights = model.config, dict(model.state_dict())
    backbone = config.backbone
    times, channels = backbone.mixers[::2], backbone.mixers[1::2]
    first, rest = times[0].options, {mixer.options["value_rank"] for mixer in times[1:]}
    hidden = {mixer.options.get("hidden_dim") for mixer in channels}
    for holds, why in (
        (
            [m.layer for m in backbone.mixers] == ["RWKV7", "ChannelMix"] * len(times),
            "fla's RWKV-7 has RWKV7 and ChannelMix by turns",
        ),
        (
            backbone.norm == "layer"
            and backbone.mlp == "none"
            and backbone.final_norm
            and backbone.norm_eps == EPS
            and all(mixer.norm == "before" for mixer in backbone.mixers),
            f"fla's RWKV-7 has layer norms with eps {EPS:g} before each part and at the end, and "
            "no other MLP",
        ),
        (first["eigen_range"] is None, "fla's RWKV-7 is the published one: eigen_range=None"),
        (first["qk_eps"] in (0.0, UNIT), f"fla's RWKV-7 has a qk_eps of 0 or {UNIT:g}"),
        (
            first["value_rank"] is None and None not in rest and len(rest) <= 1,
            "in fla's RWKV-7 every layer but the first has a value residual, of one rank",
        ),
        (
            len({tuple(sorted(_without_rank(m.options).items())) for m in times}) == 1
            and len(hidden) == 1,
            "in fla's RWKV-7 all layers have the same sizes",
        ),
    ):
        expect_for_fla(holds, why)
    layer: Any = model.backbone.blocks[0].mixer
    described: dict[str, Any] = {
        "model_type": "rwkv7",
        "architectures": ["RWKV7ForCausalLM"],
        "hidden_size": backbone.d_model,
        "num_hidden_layers": len(times),
        "intermediate_size": hidden.pop() or 4 * backbone.d_model,
        "hidden_act": "sqrelu",
        "head_dim": layer.head_dim,
        "num_heads": layer.num_heads,
        "decay_low_rank_dim": layer.decay_rank,
        "a_low_rank_dim": layer.removal_rank,
        "gate_low_rank_dim": layer.output_rank,
        "norm_first": backbone.first_norm,
        "norm_bias": backbone.norm_bias,
        "norm_eps": EPS,
        "fuse_norm": first["qk_eps"] == UNIT,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if rest:
        described["v_low_rank_dim"] = rest.pop()
    found = {"model.embeddings.weight": weights.pop("embedding.weight")}
    if not config.tie_embeddings:
        found["lm_head.weight"] = weights.pop("head.weight")

    def norm(ours: str, theirs: str) -> None:
        for part in ("weight", "bias") if backbone.norm_bias else ("weight",):
            found[f"{theirs}.{part}"] = weights.pop(f"{ours}.{part}")

    if backbone.first_norm:
        norm("backbone.first_norm", "model.layers.0.pre_norm")
    for i in range(len(times)):
        theirs = f"model.layers.{i}."
        time, channel = f"backbone.blocks.{2 * i}.", f"backbone.blocks.{2 * i + 1}."
        norm(time + "mixer_norm", theirs + "attn_norm")
        norm(channel + "mixer_norm", theirs + "ffn_norm")
        for name, mix in zip(MIXES, weights.pop(time + "mixer.mix"), strict=True):
            found[f"{theirs}attn.{name}"] = mix[None, None]
        for ours, name in (NAMES | (VALUES if i else {})).items():
            found[f"{theirs}attn.{name}"] = weights.pop(f"{time}mixer.{ours}")
        for ours, name in CHANNELS.items():
            found[f"{theirs}ffn.{name}"] = weights.pop(f"{channel}mixer.{ours}")
    norm("backbone.norm", "model.norm")
    assert not weights, f"not written: {sorted(weights)}"
    return described, {name: tensor.detach().clone() for name, tensor in found.items()}


def _without_rank(options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "value_rank"}
