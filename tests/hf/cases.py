"""Small models of transformers, in float64."""

import torch

from statetrack.hf import StatetrackForCausalLM
from tests.models.test_causal_lm import VOCAB, build

TOKENS = torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(5))


def wrapped(*mixers: str, tied: bool = False, **options: object) -> StatetrackForCausalLM:
    """A model whose biases are large: padding that enters a convolution would show."""
    model = build(*mixers, tied=tied, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5, generator=generator)
    return StatetrackForCausalLM.of(model.eval())


def padded(side: str) -> torch.Tensor:
    """A mask for sequences of 11, 6 and 1 tokens."""
    mask = torch.zeros(3, 11, dtype=torch.long)
    for row, length in enumerate((11, 6, 1)):
        mask[row, slice(11 - length, 11) if side == "left" else slice(length)] = 1
    return mask
