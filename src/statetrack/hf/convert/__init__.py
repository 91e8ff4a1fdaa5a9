"""Checkpoints of other libraries as `CausalLM`, exactly or not at all, and the way back to fla.

    model = convert.from_transformers(AutoModelForCausalLM.from_pretrained(...))
    model = convert.from_folder("a folder with config.json and safetensors")
    config, weights = convert.to_fla(model)

What has no exact counterpart is refused with the reason. `open_range` makes a model with
eigenvalues in [0, 1] one that can learn to use [-1, 1].
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack._suggest import did_you_mean
from statetrack.hf.convert import fla
from statetrack.hf.convert._weights import Source
from statetrack.hf.convert.fla import to_fla as to_fla
from statetrack.hf.convert.hybrids import from_olmo_hybrid, from_qwen3_next
from statetrack.hf.convert.mamba import from_mamba, from_mamba2, in_words_of_transformers
from statetrack.hf.convert.opening import open_range as open_range
from statetrack.models import CausalLM, CausalLMConfig
from statetrack.models.folder import read_weights

Converter = Callable[[Source], tuple[CausalLMConfig, dict[str, Tensor]]]

TRANSFORMERS: dict[str, Converter] = {
    "mamba": from_mamba,
    "mamba2": from_mamba2,
    "olmo_hybrid": from_olmo_hybrid,
    "qwen3_next": from_qwen3_next,
}
"""What is known of transformers, by model type."""


def from_transformers(model: Any) -> CausalLM:
    """A model of transformers, in memory: Mamba, Mamba2, OLMo-Hybrid or Qwen3-Next."""
    config = model.config.to_dict()
    return from_weights(config, model.state_dict())


def from_fla(state_dict: Mapping[str, Tensor], config: Any) -> CausalLM:
    """A model of flash-linear-attention; `config` is its config, or that as a dict."""
    described = dict(config if isinstance(config, Mapping) else config.to_dict())
    if described.get("model_type") not in fla.MODEL_TYPES:
        raise ValueError(_unknown(described.get("model_type"), fla.MODEL_TYPES))
    return from_weights(described, state_dict)


def from_mamba_ssm(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> CausalLM:
    """A checkpoint of mamba-ssm; `config` is what its config.json holds."""
    kind, described, weights = in_words_of_transformers(dict(config), dict(state_dict))
    return _model(*TRANSFORMERS[kind](Source("mamba-ssm model", described, weights)), weights)


def from_folder(folder: str | Path) -> CausalLM:
    """A model on disk, as config.json and safetensors, of any library that is known here."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a model: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} does not describe a model")
    return from_weights(config, read_weights(Path(folder)))


def from_weights(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> CausalLM:
    """A model from the fields of its config.json and its weights by name."""
    kind = config.get("model_type")
    if kind is None and "ssm_cfg" in config:
        return from_mamba_ssm(weights, config)
    if kind in TRANSFORMERS:
        found = TRANSFORMERS[kind](Source(f"{kind} model", config, weights))
    elif kind in fla.MODEL_TYPES:
        found = fla.from_fla(Source(f"{kind} model", config, weights), kind)
    else:
        raise ValueError(_unknown(kind, [*TRANSFORMERS, *fla.MODEL_TYPES]))
    return _model(*found, weights)


def _model(
    config: CausalLMConfig, converted: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> CausalLM:
    """The model with copies of these weights, where and as precise as they are."""
    with torch.device("meta"):
        model = CausalLM(config)
    one = next(iter(weights.values()))
    own = {name: tensor.detach().clone() for name, tensor in converted.items()}
    model.load_state_dict(own, assign=True)
    return model.to(one.device)


def _unknown(kind: Any, known: Any) -> str:
    if kind is None:
        return f"its config has no model_type, so it is none of {', '.join(known)}"
    return (
        f"models of type {kind!r} cannot be converted; {did_you_mean(str(kind), known)}known are "
        f"{', '.join(known)}"
    )
