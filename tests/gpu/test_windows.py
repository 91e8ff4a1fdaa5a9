"""A run that reads windows on a GPU: it learns, and goes on from its state where it was cut."""

import pytest
import torch

from statetrack.models import paper_config
from statetrack.training import Engine, EvaluationConfig, OptimizerConfig, RunConfig
from statetrack.training.config import Precision
from statetrack.training.windowed import Windowed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba", "SLSTM"])
def test_windows(mixer: str, precision: Precision) -> None:
    config = RunConfig(
        task="parity_dense",
        model=paper_config(mixer, vocab_size=3, d_model=32, num_layers=2),
        steps=24,
        batch=16,
        lengths=(3, 500),
        window=64,
        optimizer=OptimizerConfig(lr=1e-3),
        evaluation=EvaluationConfig(every=24, size=16, lengths=(40, 60)),
        precision=precision,
        log_every=6,
        checkpoint_every=None,
    )

    def losses(engine: Engine) -> list[float]:
        rows = [row for rows in engine for row in rows[0] if row.split == "train"]
        return [row.value for row in rows if row.metric == "loss"]

    whole, cut, rest = (Engine([config], device="cuda") for _ in range(3))
    expected = losses(whole)
    assert isinstance(whole.executor, Windowed)
    assert expected[-1] < expected[0]
    next(iter(cut))
    rest.restore(0, *cut.state(0))
    assert losses(rest) == pytest.approx(expected[1:], rel=1e-2 if precision == "bf16" else 1e-4)
