"""Mamba and Mamba2, as transformers and as mamba-ssm name their weights."""

from typing import Any

from torch import Tensor

from statetrack.hf.convert._weights import Source
from statetrack.models import BackboneConfig, CausalLMConfig, Mixer

__all__ = ["from_mamba", "from_mamba2", "in_words_of_transformers"]

SILU = "the activation here is SiLU"
NO_BIAS = "the projections here have no bias"


def from_mamba(source: Source) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    """transformers' `MambaForCausalLM`."""
    source.needs("hidden_act", "silu", SILU)
    source.needs("use_bias", False, NO_BIAS)
    source.needs("use_conv_bias", True, "the convolution here has a bias")
    width, rank = source.setting("hidden_size"), source.setting("time_step_rank", "auto")
    options = {
        "eigen_range": (0.0, 1.0),
        "d_state": source.setting("state_size"),
        "expand": source.setting("expand"),
        "dt_rank": -(-width // 16) if rank == "auto" else rank,
        "conv_size": source.setting("conv_kernel"),
    }
    names = ("in_proj.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D")
    return _blocks(source, Mixer(layer="Mamba", options=options), (*names, "out_proj.weight"))


def from_mamba2(source: Source) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    """transformers' `Mamba2ForCausalLM`."""
    source.needs("hidden_act", "silu", SILU)
    source.needs("use_bias", False, NO_BIAS)
    source.needs("use_conv_bias", True, "the convolution here has a bias")
    low, high = source.setting("time_step_limit", (0.0, float("inf")))
    if low > 0 or high != float("inf"):
        raise ValueError(
            f"this {source.name} cannot be converted exactly: time_step_limit={[low, high]}, and "
            "the step size here has no limits"
        )
    options = {
        "eigen_range": (0.0, 1.0),
        "d_state": source.setting("state_size"),
        "expand": source.setting("expand"),
        "head_dim": source.setting("head_dim"),
        "num_groups": source.setting("n_groups", 1),
        "norm_by_group": source.setting("norm_by_group", False),  # transformers norms all channels
        "conv_size": source.setting("conv_kernel"),
        "norm_eps": source.setting("layer_norm_epsilon"),
    }
    names = ("in_proj.weight", "dt_bias", "A_log", "D", "norm.weight", "out_proj.weight")
    return _blocks(source, Mixer(layer="Mamba2", options=options), names)


def _blocks(
    source: Source, mixer: Mixer, names: tuple[str, ...]
) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    tied = bool(source.setting("tie_word_embeddings", False))
    weights = source.head("lm_head.weight", "backbone.embeddings.weight", tied)
    layers = source.setting("num_hidden_layers")
    for i in range(layers):
        theirs, ours = f"backbone.layers.{i}.", f"backbone.blocks.{i}."
        weights[ours + "mixer_norm.weight"] = source.take(theirs + "norm.weight")
        for name in names:
            weights[f"{ours}mixer.{name}"] = source.take(f"{theirs}mixer.{name}")
        weights[ours + "mixer.conv.weight"] = source.convolution(theirs + "mixer.conv1d.weight")
        weights[ours + "mixer.conv.bias"] = source.take(theirs + "mixer.conv1d.bias")
    weights["backbone.norm.weight"] = source.take("backbone.norm_f.weight")
    source.expect_empty()
    backbone = BackboneConfig(
        mixers=(mixer,) * layers,
        d_model=source.setting("hidden_size"),
        mlp="none",
        norm_eps=source.setting("layer_norm_epsilon"),
    )
    config = CausalLMConfig(
        vocab_size=len(weights["embedding.weight"]), backbone=backbone, tie_embeddings=tied
    )
    return config, weights


def in_words_of_transformers(
    config: dict[str, Any], weights: dict[str, Tensor]
) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """A checkpoint of mamba-ssm (its config.json and weights) under transformers' names.

    The first result is the model type, "mamba" or "mamba2".
    """
    cell = dict(config.get("ssm_cfg") or {})
    kind = str(cell.pop("layer", "Mamba1"))
    for name, why in (
        ("attn_layer_idx", "attention layers of mamba-ssm are not known here"),
        ("d_intermediate", "MLPs of mamba-ssm are not known here"),
    ):
        if config.get(name):
            raise ValueError(
                f"this mamba-ssm model cannot be converted exactly: {name}={config[name]!r}, and "
                f"{why}"
            )
    if not config.get("rms_norm", True):
        raise ValueError(
            "this mamba-ssm model cannot be converted exactly: rms_norm=False, and its norms have "
            "biases"
        )
    known = {
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layer"],
        "state_size": cell.pop("d_state", 16 if kind == "Mamba1" else 128),
        "expand": cell.pop("expand", 2),
        "conv_kernel": cell.pop("d_conv", 4),
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": config.get("tie_embeddings", True),
    }
    if kind == "Mamba1":
        known["time_step_rank"] = cell.pop("dt_rank", "auto")
    else:
        known["head_dim"] = cell.pop("headdim", 64)
        known["n_groups"] = cell.pop("ngroups", 1)
        known["norm_by_group"] = True  # as mamba-ssm does
    if cell:
        raise ValueError(
            f"this mamba-ssm model cannot be converted exactly: ssm_cfg has {sorted(cell)[0]}, "
            "which is not known here"
        )
    renamed = {
        name.replace("backbone.embedding.", "backbone.embeddings."): tensor
        for name, tensor in weights.items()
    }
    return ("mamba" if kind == "Mamba1" else "mamba2"), known, renamed
