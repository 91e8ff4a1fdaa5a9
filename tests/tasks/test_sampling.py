"""Several streams in one batch: each draws what it would draw alone."""

import pytest
import torch

from statetrack import tasks


def test_streams_draw_what_each_would_draw_alone() -> None:
    for name in (
        "parity",
        "mod_arithmetic",
        "mod_arithmetic_brackets",
        "s5_swaps",
        "regex:(a|b)*ab",
    ):
        task = tasks.get(name)
        high = 12 if not task.fixed_length else 7

        def streams(task: tasks.Task = task) -> list[torch.Generator]:
            return [tasks.generator(task, "train", seed) for seed in (1, 2, 3)]

        together = task.sample_streams(5, high, generators=streams())
        assert together.tokens.shape[0] == 15
        for run, generator in enumerate(streams()):
            own = task.sample(5, high, generator=generator)
            rows = slice(5 * run, 5 * run + 5)
            width = own.tokens.shape[1]
            assert torch.equal(together.tokens[rows, :width], own.tokens)
            assert torch.equal(together.targets[rows, :width], own.targets)
            assert torch.equal(together.mask[rows, :width], own.mask)
            assert not together.mask[rows, width:].any()


@pytest.mark.parametrize(
    "name", ["parity", "mod_arithmetic", "mod_arithmetic_brackets", "s5_4tokens"]
)
def test_labelling_streams_together_changes_nothing(name: str) -> None:
    """What a GPU does in one go, at a width that all streams share."""
    task = tasks.get(name)
    lengths = tasks.LengthRange(16, 16)
    seeds = (1, 2, 3)
    source = tuple(tasks.generator(task, "train", seed) for seed in seeds)
    together = task.sampler(12, lengths, source, torch.device("cpu"))
    for run, seed in enumerate(seeds):
        own = task.sample(4, 16, min_length=16, generator=tasks.generator(task, "train", seed))
        rows = slice(4 * run, 4 * run + 4)
        assert torch.equal(together.tokens[rows], own.tokens)
        assert torch.equal(together.targets[rows], own.targets)
