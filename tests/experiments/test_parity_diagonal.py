"""Figure 1 by the paper's numbers."""

from statetrack.experiments.parity_diagonal import parity_diagonal


def test_diagonal_protocol() -> None:
    runs = parity_diagonal("paper", "iclr")
    assert all((c.model.backbone.d_model, c.batch, c.steps) == (10, 256, 20_000) for c in runs)
    warm = {c.model.backbone.mixers[0].options["eigen_range"]: c.schedule.warmup for c in runs}
    assert warm == {(0.0, 1.0): 0.1, (-1.0, 1.0): 0.0}
    assert all(not c.model.backbone.residual and c.model.backbone.num_layers == 1 for c in runs)
