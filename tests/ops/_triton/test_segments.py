"""How long sequences are cut in time."""

import pytest
import torch

pytest.importorskip("triton")

from statetrack.ops._triton.segments import places, segment_length  # noqa: E402


def length(tokens: int, longest: int, programs: int) -> int | None:
    sizes = {"enough": 512, "wanted": 1584, "multiple": 4, "least": 32}
    return segment_length(tokens, longest, programs, **sizes)


def test_what_fills_the_gpu_is_not_cut() -> None:
    assert length(8 * 2048, 2048, 128) is None
    assert length(4 * 2048, 2048, 128) is None  # 512 programs, which are enough
    assert length(3 * 2048, 2048, 128) is not None
    assert length(1024 * 40, 40, 16) is None
    assert length(12 * 22016, 40, 16) is None  # many short ones in few rows
    assert length(32768, 32768, 512) is None


@pytest.mark.parametrize("time", [1, 31, 32, 63])
def test_what_is_short_is_not_cut(time: int) -> None:
    assert length(time, time, 128) is None


def test_nothing_is_not_cut() -> None:
    assert length(0, 0, 128) is None and length(0, 8, 0) is None


@pytest.mark.parametrize("time", [64, 100, 1000, 4096, 32768, 1_000_003])
@pytest.mark.parametrize("programs", [1, 3, 16, 128, 500])
def test_as_many_programs_as_wanted_and_no_more(time: int, programs: int) -> None:
    cut = length(time, time, programs)
    assert cut is not None and cut % 4 == 0 and 32 <= cut < time
    count = places(time, None, cut)
    assert count * programs <= 1584
    fits = min(1584 // programs, time // 32)  # up to the rounding to whole multiples
    assert -(-time // (cut - 4)) > fits or count == fits


def test_packed_sequences_are_counted_by_the_longest() -> None:
    """Nine sequences of which one has most of the tokens are cut as that one alone would be."""
    assert length(32768, 30000, 128) == pytest.approx(30000 / 11, rel=0.01)
    offsets = torch.zeros(1, 10, dtype=torch.long)
    assert places(32768, offsets, 2728) == 13 + 8
