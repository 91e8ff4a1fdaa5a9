"""Parity far beyond training: what carries DeltaNet [-1, 1] towards 16,384 bits.

By the paper's recipe two layers lose count slowly: their keys also see the three bits before,
through the convolution. Here is one layer without it, trained on up to 256 bits instead of 40, and
what becomes of it when one thing is as in the paper: the convolution, the lengths, the second
layer, the range. And once with a β that reaches 0 and 2 (`beta_stretch`), and once on words of up
to 16,384 bits that are read in windows of 64.
"""

from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import tagging_run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["FAR", "PARITY_FAR", "parity_far"]

FAR = 16_384
USUAL, LONGER = (3, 40), (3, 256)
WINDOW = 64
CASES = (
    (SIGNED, 1, 0, LONGER, 0.0, None),
    (POSITIVE, 1, 0, LONGER, 0.0, None),
    (SIGNED, 1, 0, USUAL, 0.0, None),
    (SIGNED, 1, 4, USUAL, 0.0, None),
    (SIGNED, 1, 4, LONGER, 0.0, None),
    (SIGNED, 2, 0, LONGER, 0.0, None),
    (SIGNED, 1, 0, LONGER, 1.0, None),
    (SIGNED, 1, 0, (3, FAR), 0.0, WINDOW),
)
"""Range, layers, width of the convolution, lengths of training, how far β is stretched, window."""


def parity_far(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """Width 128, five seeds, judged at 16,384 bits; all versions agree.

    At the paper's scale its 20,000 steps of 256, at the quick scale 5000 of 128.
    """
    steps = 20_000 if scale == "paper" else 5000
    runs = [
        tagging_run(
            "parity",
            "DeltaNet",
            num_layers=layers,
            options={"eigen_range": between, "conv_size": width, "beta_stretch": stretch},
            lengths=lengths,
            window=window,
            steps=steps,
            batch=256 if scale == "paper" else 128,
            lr=3e-3,
            clip_norm=1.0,
            schedule=ScheduleConfig(warmup=0.1, final=0.01),
            evaluation=EvaluationConfig(
                every=steps // 4, size=256, lengths=(FAR, FAR), test_lengths=(3, FAR), batch=16
            ),
            precision="bf16",
            seed=seed,
            log_every=250,
            checkpoint_every=2500,
        )
        for between, layers, width, lengths, stretch, window in CASES
        for seed in range(5)
    ]
    return [shrink(config) for config in runs[::5]] if scale == "smoke" else runs


PARITY_FAR = Experiment(
    name="parity-far",
    summary="how far beyond training DeltaNet is right on parity, judged at 16,384 bits",
    runs=parity_far,
)
