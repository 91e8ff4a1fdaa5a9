"""A model with eigenvalues in [0, 1] as one that can learn to use [-1, 1]."""

import dataclasses

import torch

from statetrack.layers import registry
from statetrack.models import CausalLM, Mixer

__all__ = ["open_range"]


def open_range(model: CausalLM) -> CausalLM:
    """A copy that says the same, whose heads may open their range from [0, 1] to [-1, 1].

    β = 2σ(x') = σ(x) has no solution x' that is linear in x, so weights alone cannot express the
    old function in the new range. Each head gets one number more, `range_gate`, which begins at 0:
    its range is [-tanh(gate), 1]. The function is kept exactly, the gradient of the gate is not
    zero, and nothing but training decides how far a head opens.

    Layers without a range (`Attention`) stay as they are.
    """
    backbone = model.config.backbone
    mixers = tuple(_opened(mixer) for mixer in backbone.mixers)
    if mixers == backbone.mixers:
        raise ValueError("no layer of this model has a range to open")
    config = dataclasses.replace(
        model.config, backbone=dataclasses.replace(backbone, mixers=mixers)
    )
    with torch.device("meta"):
        opened = CausalLM(config)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, gate in opened.state_dict().items():
        if name.endswith(".range_gate"):
            weights[name] = torch.zeros(gate.shape, device=model.embedding.weight.device)
    opened.load_state_dict(weights, assign=True)
    return opened.train(model.training)


def _opened(mixer: Mixer) -> Mixer:
    options = mixer.options
    if options.get("eigen_range") is None:
        return mixer
    if options["eigen_range"] != (0.0, 1.0):
        raise ValueError(
            f"{mixer.layer} has the range {options['eigen_range']}: only [0, 1] is opened"
        )
    if "learn_range" not in registry.options(registry.get(mixer.layer), {}):
        raise ValueError(
            f"the range of {mixer.layer} cannot be learnt: its op takes one range for all heads. "
            "DeltaNet, GatedDeltaNet, DeltaProduct, GLA and Mamba2 can be opened"
        )
    changed = {**options, "eigen_range": (-1.0, 1.0), "learn_range": True}
    return dataclasses.replace(mixer, options=changed)
