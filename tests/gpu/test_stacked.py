"""Many runs in one CUDA graph are the runs trained alone, up to the rounding stated here."""

import dataclasses

import pytest
import torch

from statetrack import tasks
from statetrack.models import paper_config
from statetrack.runs import Record
from statetrack.training import Engine, EvaluationConfig, OptimizerConfig, RunConfig, feed
from statetrack.training.eager import Eager

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # PyTorch's compiler warns of PyTorch's own ways
]

LOSS_TOLERANCE = 2e-4
"""Relative, over 20 steps in fp32: compiled kernels add in another order than eager ones."""


def configs(mixer: str, task: str = "parity", **options: object) -> list[RunConfig]:
    alphabet = tasks.get(task)
    model = paper_config(
        mixer,
        vocab_size=alphabet.vocab_size,
        num_classes=alphabet.num_classes,
        d_model=32,
        num_layers=2,
        **options,
    )
    own = [
        (0, OptimizerConfig(lr=1e-3)),
        (1, OptimizerConfig(lr=2e-3, weight_decay=0.1, clip_norm=0.1)),
        (2, OptimizerConfig(lr=3e-4, weight_decay=0.01, clip_norm=10.0)),
    ]
    return [
        RunConfig(
            task=task,
            model=model,
            steps=20,
            batch=64,  # enough that ragged batches are laid end to end
            optimizer=optimizer,
            evaluation=EvaluationConfig(every=10, size=64, lengths=(40, 60)),
            seed=seed,
            data_seed=seed,
            log_every=5,
            checkpoint_every=None,
        )
        for seed, optimizer in own
    ]


def losses(rows: list[list[Record]]) -> list[float]:
    return [r.value for new in rows for r in new if r.split == "train" and r.metric == "loss"]


# What mLSTM's head norm is given at first is often smaller than the square root of its eps of 1e-5.
# The norm is all but a jump there: 1e-6 of the weights became 7e-7 to 2e-2 of the loss, by the
# luck of the data (12 streams, on the CPU). With an eps of 1e-2 it became 5e-6 at most.
SMOOTH = {"MLSTM": {"norm_eps": 1e-2}}


@pytest.mark.parametrize(
    ("mixer", "task"),
    [("DeltaNet", "parity"), ("Mamba", "mod_arithmetic"), ("SLSTM", "parity"), ("MLSTM", "parity")],
)
def test_together_is_alone(mixer: str, task: str) -> None:
    runs = configs(mixer, task, **SMOOTH.get(mixer, {}))
    stack = Engine(runs, device="cuda")
    together = list(stack)
    for r, config in enumerate(runs):
        alone = Engine([config], device="cuda", executor=Eager)
        expected = losses([rows[0] for rows in alone])
        got = losses([rows[r] for rows in together])
        assert got == pytest.approx(expected, rel=LOSS_TOLERANCE)
        for name, value in alone.executor.weights_of(0).items():
            torch.testing.assert_close(
                stack.executor.weights_of(r)[name], value, rtol=1e-2, atol=2e-3
            )


def expect_to_go_on(runs, rows) -> None:  # type: ignore[no-untyped-def]
    """Cut after two reports, a stack goes on with what it reports whole: `rows`."""
    cut = Engine(runs, device="cuda")
    steps = iter(cut)
    next(steps)
    next(steps)
    again = Engine(runs, device="cuda")
    for r in range(len(runs)):
        again.restore(r, *cut.state(r))
    rest = list(again)
    for r in range(len(runs)):
        expected = losses([new[r] for new in rows])[2:]
        assert losses([new[r] for new in rest]) == pytest.approx(expected, rel=1e-6)


def test_a_stack_goes_on_from_its_state() -> None:
    """Another process would do the same: the graph is captured anew, the numbers are not."""
    runs = configs("DeltaNet")
    expect_to_go_on(runs, list(Engine(runs, device="cuda")))


def test_a_run_that_diverges_disturbs_no_other() -> None:
    good, *_ = configs("DeltaNet")
    bad = dataclasses.replace(good, optimizer=OptimizerConfig(lr=1e30))
    stack = Engine([bad, good], device="cuda")
    rows = [new[1] for new in stack]
    assert stack.failed[0] is not None and stack.failed[1] is None
    expected = [new[0] for new in Engine([good], device="cuda")]
    assert losses(rows) == pytest.approx(losses(expected), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    "name", ["parity", "mod_arithmetic", "mod_arithmetic_brackets", "s5_swaps"]
)
def test_streams_are_drawn_as_alone(name: str) -> None:
    task = tasks.get(name)
    seeds = (1, 2)

    def streams() -> list[torch.Generator]:
        return [tasks.generator(task, "train", seed, "cuda") for seed in seeds]

    together = task.sample_streams(8, 32, generators=streams(), device="cuda")
    for run, generator in enumerate(streams()):
        alone = task.sample(8, 32, generator=generator, device="cuda")
        assert torch.equal(together.tokens[8 * run : 8 * run + 8], alone.tokens)
        assert torch.equal(together.targets[8 * run : 8 * run + 8], alone.targets)


def test_batches_drawn_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph for a block of batches, one for a step: as alone, and as before when cut within."""
    monkeypatch.setattr(feed, "batches_at_once", lambda config, device: 7)
    runs = configs("DeltaNet")
    whole = list(Engine(runs, device="cuda"))
    for r, config in enumerate(runs):
        alone = Engine([config], device="cuda", executor=Eager)
        expected = losses([rows[0] for rows in alone])
        assert losses([rows[r] for rows in whole]) == pytest.approx(expected, rel=LOSS_TOLERANCE)
    expect_to_go_on(runs, whole)
