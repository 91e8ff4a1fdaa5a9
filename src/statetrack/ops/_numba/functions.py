# mypy: disallow-untyped-defs=False
"""exp, and what the sLSTM needs beyond it, in a form that compiles to vector code in float32.

In float64 each is the function of `math`, accurate and one number at a time. In float32 it is a
polynomial with no branch, within 2 units in the last place, exact at 0 and ±∞; e^x below the
smallest normal number is 0. NaN in, NaN out.
"""

import inspect
import math

import numpy as np
from numba import njit, types
from numba.extending import overload

__all__ = ["exp", "log_sigmoid", "sigmoid", "tanh"]

f32 = np.float32
# Adding this to a float32 of moderate size rounds it to an integer, which then sits in the low bits
ROUND = f32(1.5 * 2**23)
LOG2_E = f32(1.4426950408889634)
# ln 2 in two pieces, the first with so few digits that its product with the integer is exact
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)
LOWEST, HIGHEST = f32(-87.33), f32(88.72283)


def _inlined(function):
    """Compiled into the kernels. Only fused products are allowed: reordering would undo ROUND."""
    return njit(fastmath={"contract"}, forceinline=True)(inspect.unwrap(function))


def exp(x):
    return math.exp(x)


def tanh(x):
    return math.tanh(x)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def log_sigmoid(x):
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


@_inlined
def _split_exp(x):
    """e^x = (1 + q) · 2^k with q = e^r - 1, |r| <= ln 2 / 2; returns q and k.

    q = r + r² p(r), p of degree 5 through the Chebyshev points: relative error 5e-10.
    """
    shifted = x * LOG2_E + ROUND
    k = shifted - ROUND
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    p = f32(1.9890990807e-04)
    p = p * r + f32(1.3933649995e-03)
    p = p * r + f32(8.3333109255e-03)
    p = p * r + f32(4.1666464925e-02)
    p = p * r + f32(1.6666666682e-01)
    p = p * r + f32(5.0000000135e-01)
    q = p * (r * r) + r
    return q, k


@_inlined
def _power_of_two(k):
    """2^k for an integer k of -126..127."""
    exponent = np.float32(k + ROUND).view(np.int32) + np.int32(127)
    return np.int32(exponent << np.int32(23)).view(np.float32)


@_inlined
def _exp32(x):
    q, k = _split_exp(x)
    scale = _power_of_two(k if k < f32(127.0) else f32(127.0))
    y = q * scale + scale
    y = y + y if k > f32(127.0) else y  # 2^128 itself is no float32
    y = f32(0.0) if x < LOWEST else y
    return f32(np.inf) if x > HIGHEST else y


@_inlined
def _tanh32(x):
    """sign(x) (1 - w) / (1 + w) with w = e^{-2|x|}, and 1 - w without cancellation near 0."""
    size = min(abs(x), f32(20.0)) if x == x else x
    q, k = _split_exp(f32(-2.0) * size)
    scale = _power_of_two(k)
    w_minus_1 = q * scale + (scale - f32(1.0))
    y = (f32(0.0) - w_minus_1) / (f32(2.0) + w_minus_1)
    return -y if x < f32(0.0) else y


@_inlined
def _sigmoid32(x):
    return f32(1.0) / (f32(1.0) + _exp32(-x))


@_inlined
def _log_sigmoid32(x):
    """min(x, 0) - log(1 + w), w = e^{-|x|}; log(1 + w) = 2 artanh s with s = w / (2 + w) <= 1/3."""
    w = _exp32(-abs(x))
    s = w / (f32(2.0) + w)
    s2 = s * s
    p = f32(2 / 15)
    p = p * s2 + f32(2 / 13)
    p = p * s2 + f32(2 / 11)
    p = p * s2 + f32(2 / 9)
    p = p * s2 + f32(2 / 7)
    p = p * s2 + f32(2 / 5)
    p = p * s2 + f32(2 / 3)
    p = p * s2 + f32(2.0)
    return (x if x < f32(0.0) else f32(0.0)) - s * p


def _in_float32_use(fast, general):
    """Inside kernels, `general` becomes `fast` where its argument is a float32."""

    @overload(general, jit_options={"forceinline": True})
    def choose(x):
        if x == types.float32:
            return lambda x: fast(x)  # with the flags of `fast`, not those of the caller
        return inspect.unwrap(general)


_in_float32_use(_exp32, exp)
_in_float32_use(_tanh32, tanh)
_in_float32_use(_sigmoid32, sigmoid)
_in_float32_use(_log_sigmoid32, log_sigmoid)
