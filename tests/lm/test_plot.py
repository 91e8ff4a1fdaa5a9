"""The picture of loss against position."""

import pytest

from statetrack import lm
from tests.lm.test_evaluation import SEQUENCES
from tests.models.test_causal_lm import build


@pytest.mark.parametrize("running", [False, True])
def test_one_line_for_each_model_and_the_training_length(running: bool) -> None:
    found = {
        name: lm.evaluate(build(name), SEQUENCES, bin_size=4) for name in ("DeltaNet", "Mamba")
    }
    axes = lm.plot(found, trained=16, running=running, title="code").axes[0]
    curves = [line for line in axes.lines if line.get_label() in found]
    assert len(curves) == 2 and len(axes.lines) == 3
    values = found["Mamba"].running if running else found["Mamba"].loss
    assert tuple(curves[1].get_ydata()) == values
    assert tuple(curves[1].get_xdata()) == found["Mamba"].ends
    assert axes.get_title() == "code" and "nats" in axes.get_ylabel()
