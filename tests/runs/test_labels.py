"""Labels tell models apart."""

from statetrack.runs.labels import label, model_label
from tests.training import tiny


def test_labels_tell_models_apart() -> None:
    assert label(tiny.config(model=tiny.model(eigen_range=(0.0, 1.0)))) == "parity DeltaNet [0, 1]"
    product = tiny.model("DeltaProduct", num_heads=2, num_householders=3)
    assert label(tiny.config(model=product)) == "parity DeltaProduct n=3 [-1, 1]"
    assert model_label(tiny.config(model=tiny.model("SLSTM", num_heads=2))) == "SLSTM"
