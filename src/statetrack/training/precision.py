"""fp32, or fp32 weights under bf16 autocast."""

import torch

__all__ = ["autocast"]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context a forward pass runs in."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
