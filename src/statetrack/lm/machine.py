"""What a step costs and what the machine could do: FLOPs, MFU, memory."""

import resource
import sys
import time

import torch

from statetrack.models import CausalLM

__all__ = ["flops_per_token", "measured_tflops", "memory_gb"]

REPEATS = 5


def flops_per_token(model: CausalLM) -> int:
    """6N: two for the forward pass and four for the backward pass of every weight.

    N is every parameter but the table that tokens are looked up in, unless that is the head too.
    What the mixers do beyond their projections is not counted.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    return 6 * (count if model.head is None else count - model.embedding.weight.numel())


def measured_tflops(device: torch.device, precision: str) -> float:
    """The best of a few products of large matrices, in 10¹² operations a second."""
    size = 8192 if device.type == "cuda" else 512
    dtype = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32
    a = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best / 1e12


def memory_gb(device: torch.device) -> float:
    """The most this process has held so far, of the GPU's memory or else of the host's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e9 if sys.platform == "darwin" else most / 1e6
