"""Norms whose weights go into the products behind them.

W (w ∘ x) = (W diag(w)) x: with the weight of a norm inside of the projections that read it, its
gradient comes from theirs. As a factor of its own it would need a sum over all tokens, which reads
the whole batch once more.
"""

from torch import Tensor

from statetrack.layers._delta import DeltaFamily
from statetrack.models import Tagger
from statetrack.models.backbone import Block

__all__ = ["folded", "norms_before_projections"]


def norms_before_projections(model: Tagger) -> dict[str, list[str]]:
    """For the weight of every norm that only projections read, their weights; all by name."""
    found = {}
    names = {name for name, _ in model.named_parameters()}
    for index, block in enumerate(model.backbone.blocks):
        assert isinstance(block, Block)
        readers = {
            "mixer_norm": [f"mixer.{name}" for name in block.mixer.input_projections],
            "mlp_norm": ["mlp.up_proj"],
            "mixer.norm": ["mixer.out_proj"] if isinstance(block.mixer, DeltaFamily) else [],
        }
        for norm, projections in readers.items():
            prefix = f"backbone.blocks.{index}"
            weights = [f"{prefix}.{projection}.weight" for projection in projections]
            there = [name for name in weights if name in names]
            if there and f"{prefix}.{norm}.weight" in names:
                found[f"{prefix}.{norm}.weight"] = there
    return found


def folded(weights: dict[str, Tensor], norms: dict[str, list[str]]) -> dict[str, Tensor]:
    """Weights of the same function in which the `norms` have none.

    A norm of single heads is read by a projection of all of them, one after the other.
    """
    result = dict(weights)
    for norm, projections in norms.items():
        scale = weights[norm]
        result[norm] = scale.new_ones(scale.shape)
        for name in projections:
            heads = weights[name].shape[-1] // len(scale)
            result[name] = weights[name] * scale.repeat(heads)
    return result
