"""OLMo-Hybrid and Qwen3-Next: gated DeltaNet with attention in between."""

from typing import Any

import torch
from torch import Tensor

from statetrack.hf.convert._weights import Source
from statetrack.models import BackboneConfig, CausalLMConfig, Mixer

__all__ = ["from_olmo_hybrid", "from_qwen3_next"]

UNIT = 1e-6
"""Beneath the root where these models make keys and queries of unit length."""


def from_olmo_hybrid(source: Source) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    """transformers' `OlmoHybridForCausalLM`, eigenvalues in [-1, 1] included.

    Blocks of DeltaNet have their norms before, those of attention after mixer and MLP.
    """
    _expect_plain_blocks(source)
    low = -1.0 if source.setting("linear_allow_neg_eigval", False) else 0.0
    weights = source.head(
        "lm_head.weight", "model.embed_tokens.weight", bool(source.setting("tie_word_embeddings"))
    )
    mixers = []
    for i, kind in enumerate(source.setting("layer_types")):
        theirs, ours = f"model.layers.{i}.", f"backbone.blocks.{i}."
        if kind == "linear_attention":
            mixers.append(_delta(source, (low, 1.0), norm_eps=1e-5))
            here = theirs + "linear_attn."
            projections = (f"{here}{part}_proj.weight" for part in "qkv")
            weights[ours + "mixer.qkv_proj.weight"] = source.joined(*projections)
            for name, their_name in (
                ("beta_proj.weight", "b_proj.weight"),
                ("decay_proj.weight", "a_proj.weight"),
                ("gate_proj.weight", "g_proj.weight"),
                ("out_proj.weight", "o_proj.weight"),
                ("norm.weight", "o_norm.weight"),
                ("A_log", "A_log"),
                ("dt_bias", "dt_bias"),
            ):
                weights[f"{ours}mixer.{name}"] = source.take(here + their_name)
            one = here + "conv1d.weight"  # in memory; a folder has three
            parts = [one] if source.has(one) else [f"{here}{part}_conv1d.weight" for part in "qkv"]
            weights[ours + "mixer.conv.weight"] = source.convolution(*parts)
            norms = ("input_layernorm", "post_attention_layernorm")
            if not source.has(f"{theirs}{norms[0]}.weight"):
                norms = ("attention_layer_norm", "feedforward_layer_norm")  # in a folder
        else:
            options = _attention(source) | {"qk_norm": "all_heads"}
            mixers.append(Mixer(layer="Attention", options=options, norm="after"))
            here = theirs + "self_attn."
            projections = (f"{here}{part}_proj.weight" for part in "qkv")
            weights[ours + "mixer.qkv_proj.weight"] = source.joined(*projections)
            weights[ours + "mixer.out_proj.weight"] = source.take(here + "o_proj.weight")
            for part in ("q_norm.weight", "k_norm.weight"):
                weights[f"{ours}mixer.{part}"] = source.take(here + part)
            norms = ("post_attention_layernorm", "post_feedforward_layernorm")
            if not source.has(f"{theirs}{norms[0]}.weight"):
                norms = ("feedforward_layer_norm", norms[1])  # as transformers writes it
        weights[ours + "mixer_norm.weight"] = source.take(f"{theirs}{norms[0]}.weight")
        weights[ours + "mlp_norm.weight"] = source.take(f"{theirs}{norms[1]}.weight")
        _mlp(source, theirs, ours, weights)
    weights["backbone.norm.weight"] = source.take("model.norm.weight")
    return _whole(source, mixers, weights)


def from_qwen3_next(source: Source) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    """transformers' `Qwen3NextForCausalLM` without experts; its norms weigh by 1 + w."""
    _expect_plain_blocks(source)
    layers = source.setting("num_hidden_layers")
    dense = set(source.setting("mlp_only_layers", []))
    if source.setting("num_experts", 0) > 0 and not dense >= set(range(layers)):
        raise ValueError(
            f"this {source.name} cannot be converted exactly: num_experts="
            f"{source.setting('num_experts')}, and blocks here have no experts"
        )
    weights = source.head(
        "lm_head.weight", "model.embed_tokens.weight", bool(source.setting("tie_word_embeddings"))
    )
    mixers = []
    for i, kind in enumerate(source.setting("layer_types")):
        theirs, ours = f"model.layers.{i}.", f"backbone.blocks.{i}."
        if kind == "linear_attention":
            mixers.append(_delta(source, (0.0, 1.0), norm_eps=source.setting("rms_norm_eps")))
            weights |= _interleaved(source, theirs + "linear_attn.", ours + "mixer.")
        else:
            options = _attention(source) | {"qk_norm": "head", "output_gate": True}
            mixers.append(Mixer(layer="Attention", options=options))
            here = theirs + "self_attn."
            both = source.take(here + "q_proj.weight")
            queries, gate = both.unflatten(0, (options["num_heads"], 2, -1)).unbind(1)
            rest = source.joined(here + "k_proj.weight", here + "v_proj.weight")
            weights[ours + "mixer.qkv_proj.weight"] = torch.cat([queries.flatten(0, 1), rest])
            weights[ours + "mixer.gate_proj.weight"] = gate.flatten(0, 1).contiguous()
            weights[ours + "mixer.out_proj.weight"] = source.take(here + "o_proj.weight")
            for part in ("q_norm.weight", "k_norm.weight"):
                weights[f"{ours}mixer.{part}"] = 1 + source.take(here + part)
        weights[ours + "mixer_norm.weight"] = 1 + source.take(theirs + "input_layernorm.weight")
        norm = source.take(theirs + "post_attention_layernorm.weight")
        weights[ours + "mlp_norm.weight"] = 1 + norm
        _mlp(source, theirs, ours, weights)
    weights["backbone.norm.weight"] = 1 + source.take("model.norm.weight")
    return _whole(source, mixers, weights)


def _delta(source: Source, eigen_range: tuple[float, float], norm_eps: float) -> Mixer:
    options = {
        "num_heads": source.setting("linear_num_key_heads"),
        "num_value_heads": source.setting("linear_num_value_heads"),
        "head_dim": source.setting("linear_key_head_dim"),
        "value_dim": source.setting("linear_value_head_dim"),
        "conv_size": source.setting("linear_conv_kernel_dim"),
        "eigen_range": eigen_range,
        "qk_eps": UNIT,
        "norm_eps": norm_eps,
    }
    return Mixer(layer="GatedDeltaNet", options=options)


def _interleaved(source: Source, theirs: str, ours: str) -> dict[str, Tensor]:
    """Qwen3-Next lays q, k, v, z and b, a out by key head; here each stands alone."""
    keys, values = source.setting("linear_num_key_heads"), source.setting("linear_num_value_heads")
    key, value = source.setting("linear_key_head_dim"), source.setting("linear_value_head_dim")
    each = values // keys
    qkvz = source.take(theirs + "in_proj_qkvz.weight").unflatten(0, (keys, -1))
    q, k, v, z = qkvz.split([key, key, each * value, each * value], dim=1)
    b, a = source.take(theirs + "in_proj_ba.weight").unflatten(0, (keys, -1)).split(each, dim=1)
    return {
        ours + "qkv_proj.weight": torch.cat([part.flatten(0, 1) for part in (q, k, v)]),
        ours + "gate_proj.weight": z.flatten(0, 1).contiguous(),
        ours + "beta_proj.weight": b.flatten(0, 1).contiguous(),
        ours + "decay_proj.weight": a.flatten(0, 1).contiguous(),
        ours + "conv.weight": source.convolution(theirs + "conv1d.weight"),
        ours + "out_proj.weight": source.take(theirs + "out_proj.weight"),
        ours + "norm.weight": source.take(theirs + "norm.weight"),
        ours + "A_log": source.take(theirs + "A_log"),
        ours + "dt_bias": source.take(theirs + "dt_bias"),
    }


def _attention(source: Source) -> dict[str, Any]:
    rope = source.setting("rope_parameters", {})
    theta = rope.get("rope_theta")
    if theta is not None and rope.get("rope_type", "default") != "default":
        raise ValueError(
            f"this {source.name} cannot be converted exactly: rope_type={rope['rope_type']!r}, and "
            "rotary positions here are not scaled"
        )
    heads = source.setting("num_attention_heads")
    dim = source.setting("head_dim", source.setting("hidden_size") // heads)
    turned = int(dim * rope.get("partial_rotary_factor", 1.0))
    positions = {} if theta is None else {"rotary_base": float(theta), "rotary_dim": turned}
    return {
        "num_heads": heads,
        "num_kv_heads": source.setting("num_key_value_heads", heads),
        "head_dim": dim,
        "norm_eps": source.setting("rms_norm_eps"),
        "rotary": theta is not None,
        **positions,
    }


def _expect_plain_blocks(source: Source) -> None:
    source.needs("hidden_act", "silu", "the activation here is SiLU")
    source.needs("attention_bias", False, "the projections here have no bias")


def _mlp(source: Source, theirs: str, ours: str, weights: dict[str, Tensor]) -> None:
    gate_and_up = source.joined(theirs + "mlp.gate_proj.weight", theirs + "mlp.up_proj.weight")
    weights[ours + "mlp.up_proj.weight"] = gate_and_up
    weights[ours + "mlp.down_proj.weight"] = source.take(theirs + "mlp.down_proj.weight")


def _whole(
    source: Source, mixers: list[Mixer], weights: dict[str, Tensor]
) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    source.expect_empty(".inv_freq")
    backbone = BackboneConfig(
        mixers=tuple(mixers),
        d_model=source.setting("hidden_size"),
        mlp_dim=source.setting("intermediate_size"),
        norm_eps=source.setting("rms_norm_eps"),
    )
    tied = "head.weight" not in weights
    config = CausalLMConfig(
        vocab_size=len(weights["embedding.weight"]), backbone=backbone, tie_embeddings=tied
    )
    return config, weights
