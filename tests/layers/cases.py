"""Every layer at a small size, for every test that holds for all of them."""

from typing import Any

import pytest
import torch

from statetrack.layers import Layer, registry

D_MODEL = 16
SIZES: dict[str, dict[str, Any]] = {
    "Attention": {"num_heads": 2, "qk_norm": "head"},
    "ChannelMix": {"hidden_dim": 24},
    "DeltaNet": {"num_heads": 2},
    "DeltaProduct": {"num_heads": 2, "num_householders": 3, "forget_gate": True},
    "Diagonal": {},
    "FullMatrix": {"state_dim": 5},
    "GatedDeltaNet": {"num_heads": 2},
    "GLA": {"num_heads": 2},
    "KDA": {"num_heads": 2, "value_dim": 6, "gate_rank": 5},
    "LRU": {"state_dim": 12},
    "LSTM": {},
    "Mamba": {"d_state": 4},
    "Mamba2": {"d_state": 6, "head_dim": 8, "num_groups": 2},
    "MLSTM": {"num_heads": 2},
    "RWKV7": {"num_heads": 2, "gate_rank": 4},
    "SLSTM": {"num_heads": 2},
    "TTTLinear": {"num_heads": 2, "chunk": 1, "inner_norm": False},
}
NOT_LINEAR = ("Attention", "ChannelMix", "LSTM", "SLSTM")
LINEAR = [name for name in SIZES if name not in NOT_LINEAR]

every_layer = pytest.mark.parametrize("name", list(SIZES))
linear_layer = pytest.mark.parametrize("name", LINEAR)


def build(name: str, *, seed: int = 0, stir: float = 0.3, **options: Any) -> Layer:
    """A float64 layer whose every parameter is stirred, so that nothing hides behind a zero."""
    layer = registry.get(name)(D_MODEL, **(SIZES[name] | options)).double()
    generator = torch.Generator().manual_seed(seed)
    layer.reset_parameters(generator)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += stir * noise
    return layer


def sequence(time: int, *, batch: int = 2, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, D_MODEL, generator=generator, dtype=torch.float64)
