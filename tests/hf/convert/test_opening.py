"""Opening a range: the same function at first, and eigenvalues below 0 after training."""

import math
from typing import Any

import pytest
import torch

from statetrack.hf import convert
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
from tests.helpers import relative_error

TOKENS = torch.randint(20, (2, 30), generator=torch.Generator().manual_seed(0))
CLOSED = {"eigen_range": (0.0, 1.0)}
LAYERS = ["DeltaNet", "GatedDeltaNet", "DeltaProduct", "GLA", "Mamba2"]


def build(*mixers: Any) -> CausalLM:
    backbone = BackboneConfig(mixers=list(mixers), d_model=32, mlp_dim=32)
    config = CausalLMConfig(vocab_size=20, backbone=backbone, embedding_std=0.5, projection_std=0.3)
    return CausalLM(config, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("layer", LAYERS)
def test_opened_says_the_same_and_can_learn(layer: str) -> None:
    model = build((layer, CLOSED), "Attention")
    opened = convert.open_range(model)
    assert relative_error(opened(TOKENS)[0], model(TOKENS)[0]) < 1e-12
    mixer: Any = opened.backbone.blocks[0].mixer
    assert mixer.eigen_range.pair == (-1.0, 1.0) and not mixer.range_gate.any()
    opened.losses(TOKENS[:, :-1], TOKENS[:, 1:])[0].mean().backward()
    assert mixer.range_gate.grad.abs().min() > 0


@pytest.mark.parametrize("layer", LAYERS)
def test_an_open_gate_reaches_below_zero(layer: str) -> None:
    opened = convert.open_range(build((layer, CLOSED)))
    mixer: Any = opened.backbone.blocks[0].mixer
    x = 4 * torch.randn(2, 50, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lowest = []
    with torch.no_grad():
        for gate in (0.0, 0.5, 3.0):
            mixer.range_gate.fill_(gate)
            found = mixer.transitions(x).eigenvalues().real
            assert found.min() >= -math.tanh(gate) - 1e-6
            lowest.append(found.min().item())
    assert lowest[0] >= -1e-6 and lowest[0] > lowest[1] > lowest[2]
    assert lowest[2] < -0.1


def test_what_cannot_be_opened_is_named() -> None:
    with pytest.raises(ValueError, match="range of Mamba cannot be learnt"):
        convert.open_range(build(("Mamba", CLOSED)))
    with pytest.raises(ValueError, match=r"only \[0, 1\] is opened"):
        convert.open_range(build("DeltaNet"))
    with pytest.raises(ValueError, match="no layer of this model"):
        convert.open_range(build("Attention"))
