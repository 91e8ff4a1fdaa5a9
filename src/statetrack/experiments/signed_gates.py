"""Beyond the paper: may the gates of GLA, Mamba2 and mLSTM be negative too, and does it help?"""

from typing import Any

from statetrack.experiments._base import Experiment, Scale, Version
from statetrack.experiments.chomsky import POSITIVE, SIGNED, Model, cell
from statetrack.experiments.demo import recipe
from statetrack.training import RunConfig

__all__ = ["SIGNED_GATES", "signed_gates"]

GATED = ("GLA", "Mamba2", "MLSTM")
MODELS: tuple[Model, ...] = tuple(
    (mixer, between) for mixer in GATED for between in (POSITIVE, SIGNED)
)
SMALL: dict[str, dict[str, Any]] = {
    "GLA": {"num_heads": 1},
    "Mamba2": {"head_dim": 16, "d_state": 16, "conv_size": 1},
    "MLSTM": {"num_heads": 1, "conv_size": 1},
}
"""One block of width 32, as in the demo: one head where heads can be chosen, no convolution."""


def signed_gates(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
    """The extended range in the layers that the paper left positive: GLA, Mamba2 and mLSTM.

    At the paper's scale parity and arithmetic by its protocol. The quick scale is the demo's recipe
    (one small block, the parity asked after every bit, judged by the last answer) with two rates
    and five seeds; it needs no GPU.
    """
    if scale == "quick":
        return [
            _quick(*model, rate, seed)
            for model in MODELS
            for rate in (1e-2, 3e-3)
            for seed in range(5)
        ]
    return [
        config
        for task in ("parity", "mod_arithmetic")
        for model in MODELS
        for config in cell(scale, version, task, model)
    ]


def _quick(mixer: str, between: tuple[float, float] | None, rate: float, seed: int) -> RunConfig:
    return recipe(mixer, {"eigen_range": between, **SMALL[mixer]}, rate=rate, seed=seed)


SIGNED_GATES = Experiment(
    name="signed-gates",
    summary="GLA, Mamba2 and mLSTM with the extended range, which the paper did not try",
    runs=signed_gates,
)
