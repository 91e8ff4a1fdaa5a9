"""A trap of some virtual CPUs, and the way around it. No torch in here."""

import os

__all__ = ["avoid_amx_trap"]


def avoid_amx_trap() -> None:
    """Caps what oneDNN uses: some virtual CPUs advertise AMX and kill a process that uses it.

    It works before the first bf16 product of the process, and is harmless elsewhere.
    """
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
