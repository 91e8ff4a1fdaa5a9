"""The language model: the next token, from any of the layers and any mix of them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import cross_entropy
from torch.nn.functional import linear as product
from torch.utils.checkpoint import checkpoint

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.layers.parts import linear
from statetrack.layers.placement import Device, Dtype, device_in_use, placed
from statetrack.models import folder as folders
from statetrack.models._tokens import ModelState, TokenModel, expect_integers
from statetrack.models.config import CausalLMConfig
from statetrack.models.constraint import Constraint
from statetrack.models.generation import Prompts, Sampling, generate, stream
from statetrack.models.loss import CHUNK, linear_cross_entropy

__all__ = ["CausalLM"]

OUTPUTS = ("out_proj", "down_proj")
"""Projections of these names write to the residual stream."""


class CausalLM(TokenModel):
    """Tokens in, scores for the next token out.

    `generator` draws the initial weights, so equal configs and seeds give equal models. Every
    projection without a bias is drawn with the standard deviation `projection_std`, or as its
    layer draws it where that is None; what writes to the residual stream is smaller by √(writes),
    with one write for each mixer and each MLP. Gates keep their layer's draw.

    >>> from statetrack.models import BackboneConfig
    >>> backbone = BackboneConfig(mixers=["DeltaNet", "Attention"], d_model=32)
    >>> config = CausalLMConfig(vocab_size=100, backbone=backbone)
    >>> model = CausalLM(config, generator=torch.Generator().manual_seed(0))
    >>> scores, state = model(torch.tensor([[7, 2, 9]]))
    >>> scores.shape
    torch.Size([1, 3, 100])
    >>> [len(tokens) for tokens in model.generate([[7, 2, 9], [4]], max_new_tokens=5)]
    [5, 5]
    """

    @placed
    def __init__(
        self,
        config: CausalLMConfig,
        *,
        generator: torch.Generator | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):  # shapes only: every weight is drawn once, below
            self._build(config.vocab_size, config.backbone)
            width = config.backbone.d_model
            self.head = None if config.tie_embeddings else linear(width, config.vocab_size)
        self.to_empty(device=device_in_use())
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        config = self.config
        self.backbone.reset_parameters(generator)
        writes = len(self.backbone.blocks) * (1 if config.backbone.mlp == "none" else 2)
        for name, module in self.backbone.named_modules():
            if not isinstance(module, nn.Linear) or module.bias is not None:
                continue
            if config.projection_std is not None:
                init.normal_(module.weight, std=config.projection_std, generator=generator)
            if name.rpartition(".")[2] in OUTPUTS:
                with torch.no_grad():
                    module.weight.div_(math.sqrt(writes))
        for table in (self.embedding, self.head):
            if table is not None:
                init.normal_(table.weight, std=config.embedding_std, generator=generator)

    def scores(self, x: Float[Tensor, "batch asked d_model"]) -> Float[Tensor, "batch asked vocab"]:
        if self.head is None:
            weight = self.embedding.weight
            return product(x.to(weight.device), weight)  # blocks may be on other devices
        found: Tensor = self.head(x)
        return found

    def losses(
        self,
        tokens: Int[Tensor, "batch time"],
        targets: Int[Tensor, "batch time"],
        state: ModelState | None = None,
        *,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch time"], ModelState]:
        """-log p(target) in float32 after every token, without all scores in memory at once.

        The backward pass computes the scores again; `loss` need not.
        """
        self._check_targets(targets, tokens)
        x, state = self.features(tokens, state, cu_seqlens=cu_seqlens, mask=mask)
        found = [
            checkpoint(self._losses, part, wanted, use_reentrant=False)
            for part, wanted in zip(
                x.flatten(0, 1).split(CHUNK), targets.flatten().split(CHUNK), strict=True
            )
        ]
        return torch.cat(found).view(targets.shape), state

    def _check_targets(self, targets: Tensor, tokens: Tensor) -> None:
        """A token for each token: none can be left out with -100 or the like."""
        expect_integers("targets", targets)
        if targets.shape != tokens.shape:
            raise ValueError(
                f"targets have shape {tuple(targets.shape)} and the tokens {tuple(tokens.shape)}: "
                "give the token that follows each of them, tokens[:, 1:] for tokens[:, :-1]"
            )
        self._expect_known(targets)

    def _losses(self, x: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.scores(x[None])[0].float(), targets, reduction="none")

    def loss(
        self,
        tokens: Int[Tensor, "batch time"],
        targets: Int[Tensor, "batch time"],
        state: ModelState | None = None,
        *,
        cu_seqlens: ops.CuSeqlens | None = None,
        z_loss: float = 0.0,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "batch time"], ModelState]:
        """What training minimises: the mean of -log p(target) + z_loss · (log Z)².

        Also -log p(target) of every token, without a gradient. Scores are in memory for a few
        tokens at a time and are computed once.
        """
        self._check_targets(targets, tokens)
        x, state = self.features(tokens, state, cu_seqlens=cu_seqlens)
        table = self.embedding if self.head is None else self.head
        mean, each = linear_cross_entropy(
            x.flatten(0, 1), table.weight, targets.flatten(), z_loss=z_loss
        )
        return mean, each.view(targets.shape), state

    def generate(
        self,
        prompts: Prompts,
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        generator: torch.Generator | None = None,
        constraint: Constraint | None = None,
    ) -> list[Int[Tensor, "new"]]:
        """The tokens that follow each prompt, up to and with the first of `stop`.

        `prompts` is a tensor of tokens [batch, time], or a list of prompts of any lengths. The
        most likely token is taken unless `sampling` says otherwise. With a `constraint` what is
        written is a text of its machine, with its end.
        """
        return generate(self, prompts, max_new_tokens, sampling, stop, generator, constraint)

    def stream(
        self,
        prompts: Prompts,
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        generator: torch.Generator | None = None,
        constraint: Constraint | None = None,
    ) -> Iterator[Int[Tensor, "batch"]]:
        """`generate`, one token of every sequence at a time; -1 where a sequence has stopped."""
        return stream(self, prompts, max_new_tokens, sampling, stop, generator, constraint)

    def save(self, folder: str | Path) -> None:
        """Writes config.json and the weights as safetensors, in pieces of 4 GB if they are large.

        `load` reads them back, and so does `statetrack.hf`.
        """
        folders.save(Path(folder), self.config, self.state_dict())

    @classmethod
    def load(cls, folder: str | Path, *, dtype: torch.dtype | None = None) -> "CausalLM":
        """The model in `folder`, as `save` or `statetrack.hf` wrote it, on the default device."""
        config, weights = folders.load(Path(folder))
        with torch.device("meta"):
            model = cls(config)
        folders.expect_fit(Path(folder), weights, model.state_dict())
        model.load_state_dict(weights, assign=True)
        return model.to(device=device_in_use(), dtype=dtype)
