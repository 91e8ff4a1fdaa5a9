"""fp32, or fp32 weights under bf16 autocast."""

import os

import torch

__all__ = ["autocast", "avoid_amx_trap"]


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context a forward pass runs in."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def avoid_amx_trap() -> None:
    """Caps what oneDNN uses: some virtual CPUs advertise AMX and kill a process that uses it.

    It works before the first bf16 product of the process, and is harmless elsewhere.
    """
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
