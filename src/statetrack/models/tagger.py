"""The tagger: one prediction per token, from any of the layers."""

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.layers import LayerState
from statetrack.layers.parts import linear, reset_linear
from statetrack.models.backbone import Backbone
from statetrack.models.config import TaggerConfig
from statetrack.models.parts import Embedding

__all__ = ["Tagger"]


class Tagger(nn.Module):
    """Tokens in, class scores after each token out.

    `generator` draws the initial weights, so equal configs and seeds give equal models.

    >>> from statetrack.models import BackboneConfig
    >>> backbone = BackboneConfig(mixers=["DeltaNet"] * 2, d_model=32)
    >>> config = TaggerConfig(vocab_size=3, num_classes=2, backbone=backbone)
    >>> model = Tagger(config, generator=torch.Generator().manual_seed(0))
    >>> scores, state = model(torch.tensor([[0, 2, 1]]))
    >>> scores.shape
    torch.Size([1, 3, 2])
    """

    def __init__(self, config: TaggerConfig, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):  # shapes only: every weight is drawn once, below
            self.embedding = Embedding(config.vocab_size, config.backbone.d_model)
            self.backbone = Backbone(config.backbone)
            self.head = linear(config.backbone.d_model, config.num_classes)
        self.to_empty(device=torch.get_default_device())
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.normal_(self.embedding.weight, std=self.config.embedding_std, generator=generator)
        self.backbone.reset_parameters(generator)
        if self.config.head_std is None:
            reset_linear(self.head, generator)
        else:
            init.normal_(self.head.weight, std=self.config.head_std, generator=generator)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        state: tuple[LayerState, ...] | None = None,
        *,
        read_at: Int[Tensor, "batch asked"] | None = None,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch asked classes"], tuple[LayerState, ...]]:
        """Scores after every token, or only at the times `read_at` of each sequence.

        Asking for few times saves the work above the last mixer everywhere else: nearly half of a
        model of two layers where one answer per sequence counts. With `cu_seqlens` a row
        holds several sequences, for layers that take them.

        `mask` is True at tokens and False at padding, on the left or the right: scores and states
        are those of each sequence alone, and scores at padding are zero. What token stands there
        does not matter. `generator` draws dropout, in training mode; None is PyTorch's own.
        """
        if mask is not None:
            tokens = tokens.masked_fill(~mask, 0)
        x, state = self.backbone(
            self.embedding(tokens),
            state,
            read_at=read_at,
            cu_seqlens=cu_seqlens,
            mask=mask,
            generator=generator,
        )
        return self.head(x), state

    def step(
        self, tokens: Int[Tensor, "batch"], state: tuple[LayerState, ...] | None = None
    ) -> tuple[Float[Tensor, "batch classes"], tuple[LayerState, ...]]:
        """One token of decoding."""
        scores, state = self(tokens.unsqueeze(1), state)
        return scores.squeeze(1), state
