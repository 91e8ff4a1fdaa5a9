"""Tensors by name as safetensors bytes: nothing is ever unpickled."""

import safetensors
import safetensors.torch
from torch import Tensor

__all__ = ["load_tensors", "save_tensors"]


def save_tensors(tensors: dict[str, Tensor]) -> bytes:
    """safetensors bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain)


def load_tensors(content: bytes) -> dict[str, Tensor]:
    """The inverse of `save_tensors`, on the CPU; a `ValueError` for any other bytes."""
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"these are no safetensors: {error}") from None
