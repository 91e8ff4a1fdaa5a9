"""Which kernels run linear attention on a GPU."""

import pytest
import torch

pytest.importorskip("triton")

from statetrack.ops.linear_attention.spec import Inputs  # noqa: E402
from statetrack.ops.linear_attention.triton.choose import (  # noqa: E402
    reads_groups,
    runs_in_chunks,
    runs_whole,
)

FP32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("gates", "longest", "key", "value", "dtype", "chunks"),
    [
        (32, 257, 32, 32, FP32, True),
        (32, 256, 32, 32, BF16, False),
        (128, 40, 128, 128, BF16, True),
        (128, 40, 128, 128, FP32, False),
        (64, 40, 64, 64, BF16, False),
        (1, 40, 64, 65, FP32, True),  # mLSTM's
        (1, 31, 64, 65, FP32, False),
        (1, 40, 32, 32, BF16, False),
        (1, 257, 32, 32, BF16, True),
        (1, 4096, 16, 16, BF16, False),
    ],
)
def test_the_table(
    gates: int, longest: int, key: int, value: int, dtype: torch.dtype, chunks: bool
) -> None:
    k, v, decay = (torch.empty(1, 1, 1, n, dtype=dtype) for n in (key, value, gates))
    assert runs_in_chunks(k, v, decay, FP32, longest) == chunks
    assert not runs_in_chunks(k, v, decay, torch.float64, longest)


@pytest.mark.parametrize(
    ("gates", "longest", "key", "value", "start", "whole"),
    [
        (1, 40, 64, 65, False, True),  # mLSTM's
        (1, 64, 64, 64, False, True),
        (1, 65, 64, 64, False, False),
        (1, 40, 64, 65, True, False),
        (1, 40, 32, 64, False, False),
        (64, 40, 64, 64, False, False),
    ],
)
def test_whole_sequences(
    gates: int, longest: int, key: int, value: int, start: bool, whole: bool
) -> None:
    q, v, decay = (torch.empty(1, 1, 1, n, dtype=BF16) for n in (key, value, gates))
    inputs = Inputs(q, q, v, decay, 1.0, torch.empty(1, 1, key, value) if start else None)
    assert runs_whole(inputs, FP32, longest) == whole
    assert not runs_whole(inputs, torch.float64, longest)


@pytest.mark.parametrize(
    ("gates", "longest", "dtype", "reads"),
    [
        (1, 4096, BF16, True),  # Mamba2's
        (1, 4096, FP32, True),
        (1, 65, BF16, True),
        (1, 64, BF16, False),  # whole
        (128, 4096, BF16, False),
        (1, 4096, torch.float64, False),  # token by token
    ],
)
def test_who_reads_what_heads_share(
    gates: int, longest: int, dtype: torch.dtype, reads: bool
) -> None:
    q = torch.empty(1, 1, 1, 128, dtype=dtype)
    v, decay = (torch.empty(1, 1, 32, n, dtype=dtype) for n in (64, gates))
    assert reads_groups(Inputs(q, q, v, decay, 1.0, None), longest) == reads
