"""Small taggers around every layer."""

from typing import Any

import torch

from statetrack.models import BackboneConfig, Tagger, TaggerConfig
from tests.layers.cases import D_MODEL, SIZES

TOKENS = torch.randint(3, (2, 17), generator=torch.Generator().manual_seed(0))


def backbone(*names: str, **changes: Any) -> BackboneConfig:
    """One block for each name."""
    mixers = [(name, SIZES.get(name, {})) for name in names]
    return BackboneConfig(**({"mixers": mixers, "d_model": D_MODEL, "mlp_dim": 24} | changes))


def small(*names: str, **changes: Any) -> TaggerConfig:
    """A tagger of three tokens and four classes; `changes` are fields of its backbone."""
    return TaggerConfig(vocab_size=3, num_classes=4, backbone=backbone(*names, **changes))


def build(config: TaggerConfig, seed: int = 0) -> Tagger:
    return Tagger(config, generator=torch.Generator().manual_seed(seed))
