"""Norms whose weights go into the products behind them.

W (w ∘ x) = (W diag(w)) x: with the weight of a norm inside of the projections that read it, its
gradient comes from theirs. As a factor of its own it would need a sum over all tokens, which reads
the whole batch once more.
"""

import torch
from torch import Tensor, nn

from statetrack.models import Block, Tagger

__all__ = ["folded", "norms_before_projections"]


def norms_before_projections(model: Tagger) -> dict[str, list[str]]:
    """For the weight of every norm that only projections read, their weights; all by name."""
    names = {module: name for name, module in model.named_modules()}
    found = {}
    for block in model.backbone.blocks:
        assert isinstance(block, Block)
        for norm, readers in block.folds():
            owner = f"{type(block.mixer).__name__}.folds()"
            for module in (norm, *readers):
                if module not in names:
                    raise ValueError(
                        f"{owner} names a module that the model does not have: {module}"
                    )
            assert norm is not None
            width = _width(owner, norm)
            for reader in readers:
                if type(reader) is not nn.Linear or reader.in_features % width:
                    raise ValueError(
                        f"{owner}: {reader} must be an nn.Linear that reads the {width} channels "
                        f"of {names[norm]}, or that number of them for each head"
                    )
            weight = f"{names[norm]}.weight"
            found[weight] = [f"{names[reader]}.weight" for reader in readers]
    return found


def _width(owner: str, norm: nn.Module) -> int:
    """The channels of a norm that has one weight for each of them and nothing else."""
    parameters = dict(norm.named_parameters())
    if list(parameters) != ["weight"] or parameters["weight"].dim() != 1:
        raise ValueError(f"{owner}: {norm} must have one weight per channel, and no bias")
    return len(parameters["weight"])


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
