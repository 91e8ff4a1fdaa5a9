"""Tensors as bytes."""

import pytest
import torch

from statetrack.runs.tensors import load_tensors, save_tensors


def test_round_trip() -> None:
    tensors = {
        "across": torch.arange(6.0).reshape(2, 3).T,
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "one": torch.tensor(3.0, requires_grad=True),
    }
    again = load_tensors(save_tensors(tensors))
    assert again.keys() == tensors.keys()
    for name, value in tensors.items():
        assert again[name].dtype == value.dtype and torch.equal(again[name], value)


@pytest.mark.parametrize("content", [b"", b"?", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{]"])
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no safetensors"):
        load_tensors(content)
