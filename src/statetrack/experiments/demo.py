"""The README's job: parity with DeltaNet and Mamba, eigenvalues in [0, 1] and in [-1, 1].

Trained on words of up to 40 (39 bits and the answer), judged on words of 41 to 256. The recipe is
made for two CPU cores and a minute or two, and differs from the paper's: one block of width 32
without convolution or MLP, and the parity is asked after every bit (`parity_dense`), which teaches
the counter much sooner. The judgement is the paper's: one answer, after the last bit.
"""

from statetrack.experiments._base import rebuilt
from statetrack.models import TaggerConfig, paper_config
from statetrack.runs import Run
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, ScheduleConfig

__all__ = ["demo", "recipe", "scaled_curve"]

TRAINED_TO, TESTED_TO = 40, 256
RATES = {"DeltaNet": 1e-2, "Mamba": 5e-3}


def demo(seed: int = 0) -> list[RunConfig]:
    """The four runs: DeltaNet and Mamba, each with both ranges."""
    return [
        recipe(_model(mixer, between), rate=rate, seed=seed)
        for mixer, rate in RATES.items()
        for between in ((0.0, 1.0), (-1.0, 1.0))
    ]


def recipe(model: TaggerConfig, *, rate: float, seed: int) -> RunConfig:
    """How the demo trains a model."""
    return RunConfig(
        task="parity_dense",
        model=model,
        steps=1500,
        batch=32,
        lengths=(3, TRAINED_TO),
        optimizer=OptimizerConfig(lr=rate, clip_norm=1.0),
        schedule=ScheduleConfig(warmup=0.05),
        evaluation=EvaluationConfig(
            every=500,
            task="parity",
            size=2048,
            lengths=(TRAINED_TO + 1, TESTED_TO),
            test_lengths=(3, TESTED_TO),
        ),
        seed=seed,
        data_seed=seed,
        log_every=50,
        checkpoint_every=500,
    )


def _model(mixer: str, between: tuple[float, float]) -> TaggerConfig:
    options = {"num_heads": 1, "conv_size": 0} if mixer == "DeltaNet" else {"conv_size": 1}
    model = paper_config(
        mixer, vocab_size=3, d_model=32, num_layers=1, eigen_range=between, **options
    )
    return rebuilt(model, mlp="none")


def scaled_curve(run: Run) -> dict[int, float]:
    """Length in bits -> accuracy on the test set, 0 for a guess and 1 for a solution."""
    return {length: 2 * value - 1 for length, value in run.curve().items()}
