"""The paper's models as configs."""

import math
from typing import Any

from statetrack.config import coerced
from statetrack.layers import Layer
from statetrack.models.config import BackboneConfig, Mixer, Size, TaggerConfig

__all__ = ["paper_config"]


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


def _round_up(size: float, multiple: int) -> int:
    return multiple * math.ceil(int(size) / multiple)
