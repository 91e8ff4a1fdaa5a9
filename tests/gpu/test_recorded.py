"""Pretraining with a whole step as one CUDA graph: the same run as step by step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.lm import Manifest
from statetrack.lm.pretrainer import Pretrainer
from statetrack.models import BackboneConfig, CausalLMConfig
from statetrack.training import Engine
from tests.lm import corpus

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # of torch.compile, by version
]


def begun(shards: Manifest, mixer: str, compile: str, **changes: Any) -> Engine:
    options = {} if mixer == "Mamba" else {"num_heads": 2}
    backbone = BackboneConfig(mixers=[(mixer, options)] * 2, d_model=64, mlp_dim=128)
    model = CausalLMConfig(vocab_size=257, backbone=backbone)
    config = corpus.config(shards, model=model, compile=compile, steps=12, length=96, **changes)
    return Engine([config], device="cuda")


def losses(engine: Engine) -> list[float]:
    """In training and validation, over all domains."""
    rows = [row for rows in engine for row in rows[0] if row.domain is None]
    return [row.value for row in rows if row.metric == "loss" and row.length is None]


@pytest.mark.parametrize("mixer", ["DeltaNet", "GatedDeltaNet", "Mamba", "GLA", "Attention"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "micro_batch": 2},
        {"recompute": True},
        {"carry_state": True, "z_loss": 1e-4},
    ],
    ids=["plain", "bf16 in parts", "computed again", "carried"],
)
def test_the_same_run(mixer: str, changes: dict[str, Any], tmp_path: Path) -> None:
    if mixer == "Attention" and "carry_state" in changes:
        pytest.skip("its state grows")
    shards = corpus.shards(tmp_path)
    usual = losses(begun(shards, mixer, "blocks", **changes))
    assert len(usual) > 6 and usual[-1] < usual[0]
    close = 2e-2 if "precision" in changes else 1e-3
    recorded = losses(begun(shards, mixer, "step", **changes))
    assert recorded == pytest.approx(usual, rel=close)

    cut, rest = (begun(shards, mixer, "step", **changes) for _ in range(2))
    steps = iter(cut)
    for _ in range(3):  # two steps each: recorded and replayed by then
        next(steps)
    rest.restore(0, *cut.state(0))
    later = losses(rest)
    assert 0 < len(later) < len(recorded)
    assert later == pytest.approx(recorded[-len(later) :], rel=close)
    assert isinstance(rest.executor, Pretrainer) and rest.executor.recorded is not None
    assert rest.executor.recorded.graph is not None


def test_a_model_that_waits_is_told(tmp_path: Path) -> None:
    engine = begun(corpus.shards(tmp_path), "DeltaNet", "step")
    one = engine.executor
    assert isinstance(one, Pretrainer) and one.recorded is not None
    plain = one.recorded.step

    def waits(tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = plain(tokens, targets)
        float(results[1])
        return results

    one.recorded.step = waits
    with pytest.raises(ValueError, match="cannot record this model.*take 'blocks'"):
        one.step(0, 4)
