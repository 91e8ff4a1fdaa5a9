"""flash-linear-attention's DeltaNet, GatedDeltaNet, GatedDeltaProduct, KDA and GLA, both ways.

Its RWKV-7 has a file of its own.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from statetrack.hf.convert._weights import UNIT, Source
from statetrack.hf.convert._weights import expect_for_fla as _expect
from statetrack.hf.convert.fla_rwkv7 import from_rwkv7, to_rwkv7
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, Mixer

__all__ = ["MODEL_TYPES", "from_fla", "to_fla"]

MODEL_TYPES = {
    "delta_net": "DeltaNet",
    "gated_deltanet": "GatedDeltaNet",
    "gated_deltaproduct": "DeltaProduct",
    "kda": "KDA",
    "gla": "GLA",
    "rwkv7": "RWKV7",
}
ARCHITECTURES = {
    "delta_net": "DeltaNetForCausalLM",
    "gated_deltanet": "GatedDeltaNetForCausalLM",
    "gated_deltaproduct": "GatedDeltaProductForCausalLM",
    "kda": "KDAForCausalLM",
    "gla": "GLAForCausalLM",
}
# ours and theirs; a name may be missing where an option leaves it out
DELTA = {
    "beta_proj.weight": "b_proj.weight",
    "decay_proj.weight": "a_proj.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "gate_proj.weight": "g_proj.weight",
    "norm.weight": "o_norm.weight",
    "out_proj.weight": "o_proj.weight",
}
KDA = {
    "beta_proj.weight": "b_proj.weight",
    "decay_down.weight": "f_proj.0.weight",
    "decay_up.weight": "f_proj.1.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "gate_down.weight": "g_proj.0.weight",
    "gate_up.weight": "g_proj.1.weight",
    "gate_up.bias": "g_proj.1.bias",
    "norm.weight": "o_norm.weight",
    "out_proj.weight": "o_proj.weight",
}
GLA = {
    "q_proj.weight": "q_proj.weight",
    "k_proj.weight": "k_proj.weight",
    "v_proj.weight": "v_proj.weight",
    "decay_down.weight": "gk_proj.0.weight",
    "decay_up.weight": "gk_proj.1.weight",
    "decay_up.bias": "gk_proj.1.bias",
    "gate_proj.weight": "g_proj.weight",
    "norm.weight": "g_norm_swish_gate.weight",
    "out_proj.weight": "o_proj.weight",
}


def from_fla(source: Source, kind: str) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    """A model of fla; `kind` is its model type."""
    for name in ("attn", "attnres_block_size"):
        if source.setting(name) is not None:
            raise ValueError(
                f"this {source.name} cannot be converted exactly: it has {name}, which is not "
                "known here"
            )
    if kind == "rwkv7":
        return from_rwkv7(source)
    source.needs("hidden_act", "swish", "the activation here is SiLU")
    mixer = _gla_options(source) if kind == "gla" else _delta_options(source, kind)
    tied = bool(source.setting("tie_word_embeddings", False))
    weights = source.head("lm_head.weight", "model.embeddings.weight", tied)
    layers = source.setting("num_hidden_layers")
    for i in range(layers):
        theirs, ours = f"model.layers.{i}.", f"backbone.blocks.{i}."
        weights[ours + "mixer_norm.weight"] = source.take(theirs + "attn_norm.weight")
        weights[ours + "mlp_norm.weight"] = source.take(theirs + "mlp_norm.weight")
        halves = (theirs + "mlp.gate_proj.weight", theirs + "mlp.up_proj.weight")
        weights[ours + "mlp.up_proj.weight"] = source.joined(*halves)
        weights[ours + "mlp.down_proj.weight"] = source.take(theirs + "mlp.down_proj.weight")
        here, there = theirs + "attn.", ours + "mixer."
        if kind != "gla":
            parts = [f"{here}{part}_proj.weight" for part in "qkv"]
            weights[there + "qkv_proj.weight"] = source.joined(*parts)
            if mixer.options["conv_size"]:
                parts = [f"{here}{part}_conv1d.weight" for part in "qkv"]
                weights[there + "conv.weight"] = source.convolution(*parts)
        for our_name, their_name in _names(kind).items():
            found = source.maybe(here + their_name)
            if found is not None:
                weights[there + our_name] = found
    weights["backbone.norm.weight"] = source.take("model.norm.weight")
    source.expect_empty()
    backbone = BackboneConfig(
        mixers=(mixer,) * layers,
        d_model=source.setting("hidden_size"),
        mlp_dim=weights["backbone.blocks.0.mlp.down_proj.weight"].shape[1],
        norm_eps=source.setting("norm_eps", 1e-6),
    )
    config = CausalLMConfig(
        vocab_size=len(weights["embedding.weight"]), backbone=backbone, tie_embeddings=tied
    )
    return config, weights


def to_fla(model: CausalLM) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """fla's config, with its `model_type`, and its weights, for a model of one kind of layer.

    `RWKV7` and `ChannelMix` by turns are one kind: RWKV-7.
    """
    if model.config.backbone.mixers[0].layer == "RWKV7":
        return to_rwkv7(model)
    config, weights = model.config, dict(model.state_dict())
    backbone, mixer = config.backbone, config.backbone.mixers[0]
    kinds = {layer: kind for kind, layer in MODEL_TYPES.items()}
    _expect(len(set(backbone.mixers)) == 1, "fla has one kind of layer in a model")
    _expect(mixer.layer in kinds, f"fla's {mixer.layer} has no counterpart, or not a known one")
    _expect(mixer.norm == "before", "fla has its norms before mixer and MLP")
    _expect(
        backbone.mlp == "swiglu" and backbone.norm == "rms" and backbone.final_norm,
        "fla has RMS norms, a last one too, and a SwiGLU MLP",
    )
    kind, options = kinds[mixer.layer], mixer.options
    _expect(options["norm_eps"] == backbone.norm_eps, "fla has one norm_eps for all norms")
    described: dict[str, Any] = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "hidden_size": backbone.d_model,
        "num_hidden_layers": backbone.num_layers,
        "intermediate_size": backbone.mlp_dim,
        "hidden_act": "swish",
        "norm_eps": backbone.norm_eps,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
    }
    sizes: list[int] = []
    if kind == "gla":
        described |= _described_gla(options, backbone.d_model)
    else:
        described |= _described_delta(kind, options, backbone.d_model)
        layer: Any = model.backbone.blocks[0].mixer
        sizes = list(layer.sizes) if kind == "kda" else layer._channels()
    found = {"model.embeddings.weight": weights.pop("embedding.weight")}
    if not config.tie_embeddings:
        found["lm_head.weight"] = weights.pop("head.weight")
    for i in range(backbone.num_layers):
        theirs, ours = f"model.layers.{i}.", f"backbone.blocks.{i}."
        found[theirs + "attn_norm.weight"] = weights.pop(ours + "mixer_norm.weight")
        found[theirs + "mlp_norm.weight"] = weights.pop(ours + "mlp_norm.weight")
        gate, up = weights.pop(ours + "mlp.up_proj.weight").chunk(2)
        found[theirs + "mlp.gate_proj.weight"] = gate.contiguous()
        found[theirs + "mlp.up_proj.weight"] = up.contiguous()
        found[theirs + "mlp.down_proj.weight"] = weights.pop(ours + "mlp.down_proj.weight")
        here, there = theirs + "attn.", ours + "mixer."
        if kind != "gla":
            n = options.get("num_householders", 1)
            cuts = [sizes[0], sum(sizes[1 : 1 + n]), sum(sizes[1 + n :])]
            for part, tensor in zip(
                "qkv", weights.pop(there + "qkv_proj.weight").split(cuts), strict=True
            ):
                found[f"{here}{part}_proj.weight"] = tensor.contiguous()
            if options["conv_size"]:
                parts = weights.pop(there + "conv.weight").split(cuts)
                for part, tensor in zip("qkv", parts, strict=True):
                    found[f"{here}{part}_conv1d.weight"] = tensor[:, None].contiguous()
        for our_name, their_name in _names(kind).items():
            if there + our_name in weights:
                found[here + their_name] = weights.pop(there + our_name)
    found["model.norm.weight"] = weights.pop("backbone.norm.weight")
    assert not weights, f"not written: {sorted(weights)}"
    return described, {name: tensor.detach().clone() for name, tensor in found.items()}


def _names(kind: str) -> dict[str, str]:
    return {"gla": GLA, "kda": KDA}.get(kind, DELTA)


def _delta_options(source: Source, kind: str) -> Mixer:
    heads, width = source.setting("num_heads"), source.setting("hidden_size")
    source.needs("use_beta", True, "β is learnt here")
    source.needs("qk_norm", "l2", "keys here have unit length")
    source.needs("use_output_norm", True, "outputs here are normalised")
    negative = source.setting("allow_neg_eigval", False)
    options: dict[str, Any] = {
        "num_heads": heads,
        "eigen_range": (-1.0 if negative else 0.0, 1.0),
        "conv_size": source.setting("conv_size", 4)
        if source.setting("use_short_conv", True)
        else 0,
        "qk_eps": UNIT,
        "norm_eps": source.setting("norm_eps", 1e-6),
    }
    if kind == "delta_net":
        activation = source.setting("qk_activation", "silu")
        if activation not in ("silu", "identity"):
            raise ValueError(
                f"this {source.name} cannot be converted exactly: qk_activation={activation!r}, "
                "and it is 'silu' or 'identity' here"
            )
        options |= {
            "qk_silu": activation == "silu",
            "head_dim": int(width * source.setting("expand_k", 1.0)) // heads,
            "value_dim": int(width * source.setting("expand_v", 1.0)) // heads,
            "output_gate": source.setting("use_gate", False),
        }
        return Mixer(layer="DeltaNet", options=options)
    if kind == "kda":
        source.needs("num_v_heads", heads, "KDA has one kind of head here")
        source.needs("safe_gate", False, "the gates of KDA have no limit here")
        source.needs("lower_bound", None, "the gates of KDA have no limit here")
        dim = source.setting("head_dim", 128)
        options |= {
            "head_dim": dim,
            "value_dim": int(dim * source.setting("expand_v", 1.0)),
        }
        return Mixer(layer="KDA", options=options)
    dim = source.setting("head_dim", 256)
    options |= {
        "head_dim": dim,
        "value_dim": int(dim * source.setting("expand_v", 2.0)),
        "num_value_heads": source.setting("num_v_heads", heads),
    }
    if kind == "gated_deltanet":
        options["output_gate"] = source.setting("use_gate", True)
        return Mixer(layer="GatedDeltaNet", options=options)
    options |= {
        "output_gate": source.setting("use_output_gate", True),
        "forget_gate": source.setting("use_forget_gate", False),
        "num_householders": source.setting("num_householder", 1),
    }
    return Mixer(layer="DeltaProduct", options=options)


def _gla_options(source: Source) -> Mixer:
    heads = source.setting("num_heads")
    for name, wanted, why in (
        ("expand_v", 1.0, "values here are as wide as the model"),
        ("num_kv_heads", heads, "each head here has keys of its own"),
        ("use_short_conv", False, "GLA has no convolution here"),
        ("use_output_gate", True, "GLA has an output gate here"),
        ("use_gk", True, "GLA has a gate per key here"),
        ("use_gv", False, "GLA has no gate per value here"),
        ("elementwise_affine", True, "norms here have weights"),
        ("gate_logit_normalizer", 16, "the gates here are 16th roots"),
    ):
        source.needs(name, wanted, why)
    for name in ("feature_map", "clamp_min"):
        if source.setting(name) is not None:
            raise ValueError(
                f"this {source.name} cannot be converted exactly: it has {name}, which is not "
                "known here"
            )
    options = {
        "num_heads": heads,
        "eigen_range": (0.0, 1.0),
        "expand_k": source.setting("expand_k", 0.5),
        "gate_rank": source.setting("gate_low_rank_dim", 16),
        "norm_eps": source.setting("norm_eps", 1e-6),
    }
    return Mixer(layer="GLA", options=options)


def _described_delta(kind: str, options: Mapping[str, Any], width: int) -> dict[str, Any]:
    _expect(
        options["qk_eps"] == UNIT, f"fla has qk_eps={UNIT:g} and this model {options['qk_eps']:g}"
    )
    _expect(options["eigen_range"][0] in (-1.0, 0.0), "fla's range is [0, 1] or [-1, 1]")
    _expect(not options.get("beta_stretch"), "fla's β is not stretched")
    _expect(options.get("beta_start") is None, "fla's β begins in the middle of its range")
    heads = options["num_heads"]
    key = options["head_dim"] or width // heads
    value = options["value_dim"] or key
    described: dict[str, Any] = {
        "num_heads": heads,
        "allow_neg_eigval": options["eigen_range"][0] == -1.0,
        "use_short_conv": options["conv_size"] > 0,
        "conv_size": options["conv_size"] or 4,
    }
    if kind == "delta_net":
        _expect(options["num_value_heads"] in (None, heads), "fla's DeltaNet has one kind of head")
        return described | {
            "expand_k": heads * key / width,
            "expand_v": heads * value / width,
            "use_gate": options["output_gate"],
            "qk_activation": "silu" if options["qk_silu"] else "identity",
        }
    described |= {"head_dim": key, "expand_v": value / key}
    if kind == "kda":
        _expect(options["gate_rank"] in (None, value), "fla's gates have the rank of a value")
        return described
    described["num_v_heads"] = options["num_value_heads"] or heads
    if kind == "gated_deltanet":
        return described | {"use_gate": options["output_gate"]}
    _expect(options["qk_silu"], "fla's DeltaProduct has SiLU on keys and queries")
    return described | {
        "use_output_gate": options["output_gate"],
        "use_forget_gate": options["forget_gate"],
        "num_householder": options["num_householders"],
    }


def _described_gla(options: Mapping[str, Any], width: int) -> dict[str, Any]:
    _expect(options["eigen_range"] == (0.0, 1.0), "fla's GLA has gates in [0, 1]")
    _expect(options["gate_rank"] == 16, "fla's models have gates of rank 16")
    return {"num_heads": options["num_heads"], "expand_k": options["expand_k"], "expand_v": 1.0}
