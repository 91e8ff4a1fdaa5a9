"""The paper's and the field's models as configs."""

import math
from typing import Any

from statetrack._suggest import did_you_mean
from statetrack.config import coerced
from statetrack.layers import Layer
from statetrack.models.config import BackboneConfig, CausalLMConfig, Mixer, Size, TaggerConfig

__all__ = ["lm_config", "paper_config"]


def paper_config(
    mixer: str | type[Layer],
    *,
    vocab_size: int,
    num_classes: int | None = None,
    d_model: int = 128,
    num_layers: int = 2,
    **mixer_options: Any,
) -> TaggerConfig:
    """The model around `mixer` as the paper trained it; `mixer_options` reach the layer.

    DeltaNet and its kin sit in pre-RMSNorm blocks with a SwiGLU MLP; Mamba has neither MLP nor last
    norm; the xLSTM layers have LayerNorm, and the sLSTM a small GELU MLP; `Diagonal` is the
    one-block model of figure 1, without residual. Layers that are not in the paper are built like
    DeltaNet. `num_classes` is the vocabulary unless given.

    >>> paper_config("DeltaNet", vocab_size=3, eigen_range=(0.0, 1.0)).backbone.mlp_dim
    512
    """
    d_model = coerced("paper_config", "d_model", Size, d_model)
    num_layers = coerced("paper_config", "num_layers", Size, num_layers)
    one = Mixer.of((mixer, mixer_options))
    name = one.layer
    small = math.sqrt(2 / (5 * d_model))
    body: dict[str, Any] = {"mixers": [one] * num_layers, "d_model": d_model}
    ends: dict[str, Any] = {
        "vocab_size": vocab_size,
        "num_classes": vocab_size if num_classes is None else num_classes,
    }
    if name == "Mamba":
        body |= {"mlp": "none", "norm_eps": 1e-5, "final_norm": False}
        ends |= {"embedding_std": 1.0, "head_std": None}
    elif name in ("MLSTM", "SLSTM"):
        body |= {
            "mlp": "none" if name == "MLSTM" else "geglu",
            "mlp_dim": _round_up(1.3 * d_model, 64),
            "norm": "layer",
            "norm_eps": 1e-5,
            "mlp_in_std": small,
            "mlp_out_std": 2 / math.sqrt(d_model) / num_layers,
        }
        ends |= {"embedding_std": small, "head_std": small}
    elif name == "Diagonal":
        body |= {"mlp": "none", "norm": "layer", "norm_eps": 1e-5, "residual": False}
        ends |= {"embedding_std": 1.0, "head_std": None}
    else:
        body |= {
            "mlp_dim": _round_up(8 * d_model / 3, 256),
            "mlp_out_std": 0.02 / math.sqrt(2 * num_layers),
        }
    return TaggerConfig(**ends, backbone=BackboneConfig(**body))


WIDTHS = {"20M": (384, 8), "60M": (512, 12), "340M": (1024, 24), "1.3B": (2048, 24)}
"""d_model and blocks of a model with MLPs, by size; Mamba and Mamba2 have twice the blocks."""


def lm_config(
    mixer: str | type[Layer],
    size: str,
    *,
    vocab_size: int = 32_000,
    tie_embeddings: bool = False,
    **mixer_options: Any,
) -> CausalLMConfig:
    """A language model of a size the field compares at; `mixer_options` reach the layer.

    The sizes are 20M, 60M, 340M and 1.3B. They are names: an untied DeltaNet of 340M has 374
    million parameters with 32,000 tokens. Of 340M and 1.3B, DeltaNet, GLA, Mamba2 and the
    Transformer (`Attention`) are as in the flame recipes, and Mamba is as in its release (370M).
    Gated DeltaNet has keys of 3/4 d_model and values of twice that in 7/8 of the blocks, as in its
    paper, in heads of 256 where these are three or more, and else in three; DeltaProduct has heads
    of 128, as in its own. Blocks have pre-RMSNorm and a SwiGLU MLP; Mamba and Mamba2 have no MLP.
    Layers of your own are built like DeltaNet.

    >>> config = lm_config("DeltaNet", "340M", eigen_range=(-1.0, 1.0))
    >>> config.backbone.d_model, config.backbone.num_layers, config.backbone.mlp_dim
    (1024, 24, 2816)
    """
    if size not in WIDTHS:
        raise ValueError(
            f"size={size!r} is unknown; {did_you_mean(size, WIDTHS)}there are {', '.join(WIDTHS)}"
        )
    d_model, blocks = WIDTHS[size]
    name = Mixer.of((mixer, mixer_options)).layer
    of_head = {"Attention": 64, "RWKV7": 64, "Mamba2": 64}
    of_head |= {"GLA": 256, "CappedGLA": 256, "MLSTM": 256}
    options: dict[str, Any] = {"num_heads": d_model // of_head.get(name, 128)}
    if name in ("GatedDeltaNet", "CappedGatedDeltaNet"):
        size_of_head = min(256, d_model // 4)  # three heads at least
        options = {
            "num_heads": d_model * 3 // 4 // size_of_head,
            "head_dim": size_of_head,
            "value_dim": 2 * size_of_head,
        }
        blocks -= blocks // 8
    elif name == "Mamba":
        options = {"d_state": 16}
    elif name == "Mamba2":
        options = {"d_state": 128, "head_dim": 64}
    one = Mixer.of((mixer, options | mixer_options))
    no_mlp = name in ("Mamba", "Mamba2")
    backbone = BackboneConfig(
        mixers=(one,) * (2 * blocks if no_mlp else blocks),
        d_model=d_model,
        mlp="none" if no_mlp else "swiglu",
        mlp_dim=_round_up(8 * d_model / 3, 256),
        norm_eps=1e-5 if no_mlp else 1e-6,
    )
    draws: dict[str, Any] = {"embedding_std": 0.02, "projection_std": None} if no_mlp else {}
    return CausalLMConfig(
        vocab_size=vocab_size, backbone=backbone, tie_embeddings=tie_embeddings, **draws
    )


def _round_up(size: float, multiple: int) -> int:
    return multiple * math.ceil(int(size) / multiple)
