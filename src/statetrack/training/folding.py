"""Norms whose weights go into the products behind them.

W (w ∘ x) = (W diag(w)) x: with the weight of a norm inside of the projections that read it, its
gradient comes from theirs. As a factor of its own it would need a sum over all tokens, which reads
the whole batch once more.
"""

import torch
from torch import Tensor

from statetrack.models import Tagger
from statetrack.models.backbone import Block

__all__ = ["folded", "norms_before_projections"]


def norms_before_projections(model: Tagger) -> dict[str, list[str]]:
    """For the weight of every norm that only projections read, their weights; all by name."""
    found = {}
    names = {name for name, _ in model.named_parameters()}
    for index, block in enumerate(model.backbone.blocks):
        assert isinstance(block, Block)
        readers = {"mlp_norm": ["mlp.up_proj"]}
        for read, maps in block.mixer.projected.items():
            norm = "mixer_norm" if read == "x" else f"mixer.{read}"
            readers[norm] = [f"mixer.{name}" for name in maps]
        for norm, projections in readers.items():
            prefix = f"backbone.blocks.{index}"
            weights = [f"{prefix}.{name}.weight" for name in projections]
            if f"{prefix}.{norm}.weight" in names:
                found[f"{prefix}.{norm}.weight"] = [name for name in weights if name in names]
    return found


def folded(weights: dict[str, Tensor], norms: dict[str, list[str]]) -> dict[str, Tensor]:
    """Weights of the same function in which the `norms` have none, of one run or of a stack.

    A norm of single heads is read by a projection of all of them, one after the other.
    """
    result = dict(weights)
    for norm, projections in norms.items():
        scale = weights[norm]
        result[norm] = scale.new_ones(scale.shape)
        for name in projections:
            heads = weights[name].shape[-1] // scale.shape[-1]
            result[name] = weights[name] * torch.cat([scale] * heads, dim=-1)[..., None, :]
    return result
