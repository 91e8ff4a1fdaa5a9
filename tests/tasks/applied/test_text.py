"""Layout and composition against loops, and that several streams make one batch."""

import pytest
import torch

from statetrack import tasks
from statetrack.tasks import IGNORE, LengthRange
from statetrack.tasks._registry import _APPLIED
from statetrack.tasks.applied._text import composed, lay_out, swapping
from tests.tasks.oracles import draw


def test_composition_of_maps_with_constants() -> None:
    stream = torch.Generator().manual_seed(0)
    maps = torch.randint(0, 9, (20, 37, 5), generator=stream)
    found = composed(maps)
    for b in range(20):
        held = list(range(5))
        for t in range(37):
            held = [held[m] if m < 5 else m for m in maps[b, t].tolist()]
            assert found[b, t].tolist() == held


def test_swaps() -> None:
    i, j = torch.tensor([[0, 2]]), torch.tensor([[1, 0]])
    assert swapping(i, j, 3).tolist() == [[[1, 0, 2], [2, 1, 0]]]


@pytest.mark.parametrize("possible", [6, 9])
def test_layout(possible: int) -> None:
    words = torch.arange(1, 19).view(2, 3, 3)
    sizes = torch.tensor([[1, 0, 3], [2, 3, 1]])
    answers = torch.where(words % 4 == 0, words, IGNORE)
    batch = lay_out(words, sizes, answers, pad_id=0, possible=possible)
    assert batch.tokens.tolist() == [[1, 7, 8, 9, 0, 0], [10, 11, 13, 14, 15, 16]]
    assert batch.targets[batch.mask].tolist() == [8, 16]
    assert batch.mask.nonzero().tolist() == [[0, 2], [1, 5]]


@pytest.mark.parametrize("name", _APPLIED)
def test_a_batch_is_as_wide_as_its_longest_sequence(name: str) -> None:
    task = tasks.get(name)
    drawn = draw(task, 20, 40, shortest=20)
    assert drawn.tokens.dtype == drawn.targets.dtype == torch.long
    assert drawn.tokens.shape == (20, int(drawn.num_tokens.max()))
    assert drawn.tokens.shape[1] <= task.num_tokens(40)
    assert (drawn.tokens < task.vocab_size).all()
    assert (drawn.targets[drawn.mask] < task.num_classes).all()
    assert (drawn.targets[drawn.mask] >= 0).all()


@pytest.mark.parametrize("name", _APPLIED)
def test_streams_fill_a_batch_one_after_the_other(name: str) -> None:
    """As on a GPU, where all streams are labelled together."""
    task = tasks.get(name)
    lengths = LengthRange(18, 18)

    def streams() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in (3, 4)]

    device = torch.device("cpu")
    whole = task.sampler(6, lengths, tuple(streams()), device)
    parts = [task.sampler(3, lengths, stream, device) for stream in streams()]
    for part, rows in zip(parts, (slice(0, 3), slice(3, 6)), strict=True):
        width = part.tokens.shape[1]
        assert torch.equal(whole.tokens[rows, :width], part.tokens)
        assert torch.equal(whole.targets[rows, :width], part.targets)
