"""The paper's models as configs."""

import math
from typing import Any

from statetrack.layers import registry
from statetrack.models.config import TaggerConfig

__all__ = ["paper_config"]


def paper_config(
    mixer: str,
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
    one-block model of figure 1, without residual. Layers the paper has not are built like DeltaNet.
    `num_classes` is the vocabulary unless given.

    >>> paper_config("DeltaNet", vocab_size=3, eigen_range=(0.0, 1.0)).mlp_dim
    512
    """
    name = registry.get(mixer).__name__
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "num_classes": vocab_size if num_classes is None else num_classes,
        "mixer": name,
        "mixer_options": mixer_options,
        "d_model": d_model,
        "num_layers": num_layers,
    }
    small = math.sqrt(2 / (5 * d_model))
    if name == "Mamba":
        return TaggerConfig(
            **common,
            mlp="none",
            norm_eps=1e-5,
            final_norm=False,
            embedding_std=1.0,
            head_std=None,
        )
    if name in ("MLSTM", "SLSTM"):
        return TaggerConfig(
            **common,
            mlp="none" if name == "MLSTM" else "geglu",
            mlp_dim=_round_up(1.3 * d_model, 64),
            norm="layer",
            norm_eps=1e-5,
            embedding_std=small,
            head_std=small,
            mlp_in_std=small,
            mlp_out_std=2 / math.sqrt(d_model) / num_layers,
        )
    if name == "Diagonal":
        return TaggerConfig(
            **common,
            mlp="none",
            norm="layer",
            norm_eps=1e-5,
            residual=False,
            embedding_std=1.0,
            head_std=None,
        )
    return TaggerConfig(
        **common,
        mlp_dim=_round_up(8 * d_model / 3, 256),
        mlp_out_std=0.02 / math.sqrt(2 * num_layers),
    )


def _round_up(size: float, multiple: int) -> int:
    return multiple * math.ceil(int(size) / multiple)
