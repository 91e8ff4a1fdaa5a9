"""The tagger: one prediction per token, from any of the layers."""

import torch
from torch import Tensor
from torch.nn import init

from statetrack._typing import Float
from statetrack.layers.parts import linear, reset_linear
from statetrack.layers.placement import Device, Dtype, device_in_use, placed
from statetrack.models._tokens import TokenModel
from statetrack.models.config import TaggerConfig

__all__ = ["Tagger"]


class Tagger(TokenModel):
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

    @placed
    def __init__(
        self,
        config: TaggerConfig,
        *,
        generator: torch.Generator | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):  # shapes only: every weight is drawn once, below
            self._build(config.vocab_size, config.backbone)
            self.head = linear(config.backbone.d_model, config.num_classes)
        self.to_empty(device=device_in_use())
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.normal_(self.embedding.weight, std=self.config.embedding_std, generator=generator)
        self.backbone.reset_parameters(generator)
        if self.config.head_std is None:
            reset_linear(self.head, generator)
        else:
            init.normal_(self.head.weight, std=self.config.head_std, generator=generator)

    def scores(
        self, x: Float[Tensor, "batch asked d_model"]
    ) -> Float[Tensor, "batch asked classes"]:
        found: Tensor = self.head(x)
        return found
