"""Kernels for small work in decoding, where each takes microseconds however little it does.

A product with few outputs is no work for the tiles of a library: one block of threads would walk
through all inputs. An activation and a factor are one kernel instead of two.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._triton.runtime import on_device_of, power_of_two

__all__ = ["FEW_OUTPUTS", "FEW_ROWS", "few_outputs", "gated_by_silu"]

FEW_ROWS, FEW_OUTPUTS = 1024, 32
BLOCK = 1024


@triton.jit
@no_type_check
def _few_outputs_kernel(
    x_ptr, weight_ptr, y_ptr, K, N, SIGMOID: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BN)[:, None]
    k = tl.arange(0, BK)[None, :]
    total = tl.zeros([BN, BK], tl.float32)
    for begin in range(0, K, BK):
        at = begin + k
        x = tl.load(x_ptr + row * K + at, mask=at < K, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + n * K + at, mask=(n < N) & (at < K), other=0.0)
        total += x * weight.to(tl.float32)
    y = tl.sum(total, 1).to(x_ptr.dtype.element_ty).to(tl.float32)  # as a product would round it
    if SIGMOID:
        y = 1.0 / (1.0 + tl.exp(-y))
    out = tl.arange(0, BN)
    tl.store(y_ptr + row * N + out, y, mask=out < N)


def few_outputs(
    x: Float[Tensor, "*rows features"],
    weight: Float[Tensor, "outputs features"],
    *,
    sigmoid: bool = False,
) -> Float[Tensor, "*rows outputs"]:
    """x Wᵀ rounded to the dtype of x, or its sigmoid, in float32."""
    outputs, features = weight.shape
    y = x.new_empty(*x.shape[:-1], outputs, dtype=torch.float32)
    if y.numel():
        rows = y.numel() // outputs
        wide = power_of_two(outputs)
        with on_device_of(x):
            _few_outputs_kernel[(rows,)](
                x.contiguous(), weight.contiguous(), y, features, outputs, SIGMOID=sigmoid,
                BN=wide, BK=min(power_of_two(features), max(16, 8 * BLOCK // wide)), num_warps=4,
            )  # fmt: skip
    return y


@triton.jit
@no_type_check
def _gated_by_silu_kernel(x_ptr, y_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x_ptr + 2 * row * F + at, mask=at < F, other=0.0)
    up = tl.load(x_ptr + (2 * row + 1) * F + at, mask=at < F, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(y_ptr + row * F + at, silu * up, mask=at < F)


def gated_by_silu(x: Float[Tensor, "*rows two_features"]) -> Float[Tensor, "*rows features"]:
    """SiLU of the first half of each row times the second half."""
    features = x.shape[-1] // 2
    y = x.new_empty(*x.shape[:-1], features)
    if y.numel():
        block = min(BLOCK, power_of_two(features))
        with on_device_of(x):
            _gated_by_silu_kernel[(y.numel() // features, triton.cdiv(features, block))](
                x.contiguous(), y, features, BLOCK=block, num_warps=4
            )
    return y
