"""What all models on tokens are: a table of vectors, a backbone, scores."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.layers import LayerState
from statetrack.layers._base import expect_mask
from statetrack.models.backbone import Backbone
from statetrack.models.config import BackboneConfig
from statetrack.models.parts import Embedding
from statetrack.ops._checks import checking_values

__all__ = ["ModelState", "TokenModel", "evaluating", "expect_integers"]

ModelState = tuple[LayerState, ...]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; the model is afterwards as it was."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


class TokenModel(nn.Module, ABC):
    """Tokens in, scores after each token out. The state is that of every layer."""

    embedding: Embedding
    backbone: Backbone

    @abstractmethod
    def scores(
        self, x: Float[Tensor, "batch asked d_model"]
    ) -> Float[Tensor, "batch asked classes"]:
        """What the model says, from what its backbone gives."""

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the initial weights."""

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        state: ModelState | None = None,
        *,
        read_at: Int[Tensor, "batch asked"] | None = None,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch asked classes"], ModelState]:
        """Scores after every token, or only at the times `read_at` of each sequence.

        Asking for few times saves the work above the last mixer everywhere else: nearly half of a
        model of two layers where one answer per sequence counts. With `cu_seqlens` a row holds
        several sequences, for layers that take them.

        `mask` is True at tokens and False at padding, on the left or the right: scores and states
        are those of each sequence alone, and scores at padding are zero. What token stands there
        does not matter. `generator` draws dropout, in training mode; None is PyTorch's own.
        """
        x, state = self.features(
            tokens, state, read_at=read_at, cu_seqlens=cu_seqlens, mask=mask, generator=generator
        )
        return self.scores(x), state

    def features(
        self,
        tokens: Int[Tensor, "batch time"],
        state: ModelState | None = None,
        *,
        read_at: Int[Tensor, "batch asked"] | None = None,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], ModelState]:
        """What `scores` reads; the arguments are those of `forward`."""
        found: tuple[Tensor, ModelState] = self.backbone(
            self.embed(tokens, mask),
            state,
            read_at=read_at,
            cu_seqlens=cu_seqlens,
            mask=mask,
            generator=generator,
            tokens=tokens,
        )
        return found

    def embed(
        self, tokens: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time d_model"]:
        """The vectors of the tokens; where the mask is False, any token may stand."""
        expect_integers("tokens", tokens)
        if mask is not None:
            expect_mask(mask, tokens)
            tokens = tokens.masked_fill(~mask, 0)
        self._expect_known(tokens)
        return self.embedding(tokens)

    def step(
        self, tokens: Int[Tensor, "batch"], state: ModelState | None = None
    ) -> tuple[Float[Tensor, "batch classes"], ModelState]:
        """One token of decoding."""
        scores, state = self(tokens.unsqueeze(1), state)
        return scores.squeeze(1), state

    def _build(self, vocab_size: int, backbone: BackboneConfig) -> None:
        """Makes the parts that all models have; call it on the meta device."""
        self.embedding = Embedding(vocab_size, backbone.d_model)
        self.backbone = Backbone(backbone)

    def _expect_known(self, tokens: Tensor) -> None:
        """Refuses what is no token, where looking at values is free or asked for."""
        plain = type(tokens) is Tensor and torch._C._functorch.peek_interpreter_stack() is None
        free = tokens.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (plain and tokens.numel() and (free or checking_values())):
            return
        low, high = (int(end) for end in tokens.aminmax())
        size = len(self.embedding.weight)
        if low < 0 or high >= size:
            raise ValueError(
                f"token {low if low < 0 else high} is not in the vocabulary: the model knows "
                f"0 to {size - 1}"
            )


def expect_integers(name: str, tokens: Any) -> None:
    if not isinstance(tokens, Tensor):
        raise ValueError(f"{name} must be a tensor [batch, time], got {type(tokens).__name__}")
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"{name} have shape {tuple(tokens.shape)} and dtype {tokens.dtype}, but must be "
            "integers [batch, time], int64 or int32"
        )
