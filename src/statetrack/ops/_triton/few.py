"""Kernels for small work in decoding, where each takes microseconds however little it does.

A product with few outputs is no work for the tiles of a library: one block of threads would walk
through all inputs. Nor is one of few rows, whose time is that of reading the weights: there a norm
before it, SiLU's gate and the addition behind it cost nothing more. An activation and a factor are
one kernel instead of two.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._triton.runtime import on_device_of, power_of_two

__all__ = ["FEW_OUTPUTS", "FEW_ROWS", "LEAST_ROWS", "few_outputs", "few_rows", "gated_by_silu"]

FEW_ROWS, FEW_OUTPUTS = 1024, 32
LEAST_ROWS = 1
"""Each row reads the weights anew: four take longer than the tiles of a library."""
PROGRAMS = 256  # that keep a large GPU busy
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


@triton.jit
@no_type_check
def _few_rows_kernel(
    x_ptr,
    weight_ptr,
    norm_ptr,
    onto_ptr,
    y_ptr,
    K,
    N,
    eps,
    GATED: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """BN outputs of a row. What is between two steps is rounded as tensors in memory would be."""
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)[:, None]
    k = tl.arange(0, BK)[None, :]
    dtype = x_ptr.dtype.element_ty
    x_ptr += row * K
    if norm_ptr is not None:
        squares = tl.zeros([1, BK], tl.float32)
        for begin in range(0, K, BK):
            x = tl.load(x_ptr + begin + k, mask=begin + k < K, other=0.0).to(tl.float32)
            squares += x * x
        scale = tl.rsqrt(tl.sum(squares, 1, keep_dims=True) / K + eps)
    total = tl.zeros([BN, BK], tl.float32)
    other = tl.zeros([BN, BK], tl.float32)
    for begin in range(0, K, BK):
        at = begin + k
        inside = (n < N) & (at < K)
        x = tl.load(x_ptr + at, mask=at < K, other=0.0).to(tl.float32)
        if norm_ptr is not None:
            weight = tl.load(norm_ptr + at, mask=at < K, other=0.0).to(tl.float32)
            x = (x * scale * weight).to(dtype).to(tl.float32)
        weight = tl.load(weight_ptr + n * K + at, mask=inside, other=0.0)
        total += x * weight.to(tl.float32)
        if GATED:
            weight = tl.load(weight_ptr + (N + n) * K + at, mask=inside, other=0.0)
            other += x * weight.to(tl.float32)
    y = tl.sum(total, 1).to(dtype).to(tl.float32)
    if GATED:
        silu = (y / (1.0 + tl.exp(-y))).to(dtype).to(tl.float32)
        y = silu * tl.sum(other, 1).to(dtype).to(tl.float32)
    out = tl.program_id(0) * BN + tl.arange(0, BN)
    if onto_ptr is not None:
        y += tl.load(onto_ptr + row * N + out, mask=out < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + out, y, mask=out < N)


def few_rows(
    x: Float[Tensor, "*rows features"],
    weight: Float[Tensor, "outputs features"],
    *,
    norm: Float[Tensor, "features"] | None = None,
    eps: float = 0.0,
    gated: bool = False,
    onto: Float[Tensor, "*rows _"] | None = None,
) -> Float[Tensor, "*rows _"]:
    """x Wᵀ in the dtype of x, which is that of all arguments.

    With `norm` x is first divided by √(mean(x²) + eps) and multiplied by it. With `gated` the
    result is SiLU of its first half times the second. With `onto` that is added.
    """
    features = x.shape[-1]
    outputs = len(weight) // 2 if gated else len(weight)
    y = x.new_empty(*x.shape[:-1], outputs)
    if y.numel():
        block = 8
        while block > 2 and triton.cdiv(outputs, block) < PROGRAMS:
            block //= 2
        with on_device_of(x):
            _few_rows_kernel[(triton.cdiv(outputs, block), y.numel() // outputs)](
                x.contiguous(),
                weight.contiguous(),
                norm,
                None if onto is None else onto.contiguous(),
                y,
                features,
                outputs,
                eps,
                GATED=gated,
                BN=block,
                BK=min(power_of_two(features), BLOCK),
                num_warps=8,
            )
    return y
