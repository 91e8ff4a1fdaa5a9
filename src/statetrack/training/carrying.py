"""States that one window of a sequence hands to the next: truncated backpropagation.

A state that is carried on has no gradient, so that a step costs what its window costs, however long
the sequence is.
"""

import torch
from torch import Tensor

from statetrack.models._tokens import ModelState, TokenModel, evaluating

__all__ = ["expect_to_carry", "named", "no_state"]


def no_state(after: ModelState, rows: int) -> ModelState:
    """The state before the first token, for so many rows; `after` is that of any one sequence."""
    return tuple(
        {key: value.new_zeros(rows, *value.shape[1:]) for key, value in layer.items()}
        for layer in after
    )


def named(carried: ModelState) -> dict[str, Tensor]:
    """The tensors of a state, as checkpoints name them."""
    return {
        f"carried.{index}.{key}": value
        for index, layer in enumerate(carried)
        for key, value in layer.items()
    }


@torch.no_grad()
def expect_to_carry(model: TokenModel, option: str) -> None:
    """Refuses layers whose state grows, or is not zero before the first token.

    `option` is what asks for it, by name.
    """
    table = model.embedding.weight
    tokens = torch.arange(4, device=table.device)[None] % len(table)
    with evaluating(model):
        scores, long = model(tokens)
        after = model(tokens[:, :1])[1]
        again, _ = model(tokens, no_state(after, 1))
    sizes = {name: value.shape for name, value in named(after).items()}
    grows = any(value.shape != sizes[name] for name, value in named(long).items())
    if grows or not torch.allclose(scores, again, atol=1e-6):
        raise ValueError(
            f"{option} needs layers whose state has one size and begins at zero: neither "
            "Attention nor layers with another beginning"
        )
