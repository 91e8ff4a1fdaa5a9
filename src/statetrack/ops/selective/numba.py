# mypy: disallow-untyped-defs=False
"""`selective_scan` as compiled loops: each core walks over time with a few channels' states.

A unit of work is one batch row and WIDTH channels: its states [state, WIDTH] stay in the nearest
cache and the loop over channels is vector code. The forward keeps the states before every BLOCK-th
token; the backward walks forward again from there through one block, then back.
"""

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import arrays, compiled, share_out
from statetrack.ops._numba.functions import exp
from statetrack.ops._register import compute_dtype, differentiable_op
from statetrack.ops.selective.spec import SPEC, Inputs, in_groups

__all__ = ["selective_scan"]

BLOCK = 32  # tokens between kept states
WIDTH = 64  # channels of one unit of work


def selective_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """h_t = a_t ∘ h_{t-1} + Δ_t B_t u_t with a = low + (1-low)·exp(Δ A); y = h·C + D u."""
    y, final_state, _ = _op(*in_groups(inputs))
    return y, final_state


# In the kernels: rows of arrays are taken first ([b, t, c0:c1]) and then walked along, because only
# a loop over neighbours in memory becomes vector code; and they are filled by loops, because
# numba takes seconds to compile an assignment to a slice.


@compiled
def _forward_kernel(start, stop, u, delta, A, B, C, D, low, state, y, kept):
    """Units start..stop; A [groups, state, channels], state [batch, state, channels] in place."""
    batch, time, channels = u.shape
    N = A.shape[1]
    per_row = (channels + WIDTH - 1) // WIDTH
    span = u.dtype.type(1) - low
    h = np.empty((N, WIDTH), u.dtype)
    du = np.empty(WIDTH, u.dtype)
    for unit in range(start, stop):
        b = unit // per_row
        c0 = unit % per_row * WIDTH
        c1 = min(c0 + WIDTH, channels)
        width = c1 - c0
        group = b // (batch // A.shape[0])
        D_c = D[group, c0:c1]
        for n in range(N):
            for c in range(width):
                h[n, c] = state[b, n, c0 + c]
        for t in range(time):
            delta_c = delta[b, t, c0:c1]
            u_c = u[b, t, c0:c1]
            y_c = y[b, t, c0:c1]
            for c in range(width):
                du[c] = delta_c[c] * u_c[c]
                y_c[c] = D_c[c] * u_c[c]
            for n in range(N):
                A_c = A[group, n, c0:c1]
                h_c = h[n]
                if t % BLOCK == 0:
                    kept_c = kept[b, t // BLOCK, n, c0:c1]
                    for c in range(width):
                        kept_c[c] = h_c[c]
                B_n = B[b, t, n]
                C_n = C[b, t, n]
                for c in range(width):
                    a = low + span * exp(delta_c[c] * A_c[c])
                    h_c[c] = a * h_c[c] + du[c] * B_n
                    y_c[c] += h_c[c] * C_n
        for n in range(N):
            for c in range(width):
                state[b, n, c0 + c] = h[n, c]


@compiled
def _backward_kernel(
    start, stop, u, delta, A, B, C, D, low, kept, d_y, d_state, d_u, d_delta, d_A, d_B, d_C, d_D
):
    """Units start..stop of the gradients in torch.py; sums over units are left open.

    d_state [batch, state, channels] goes from that of the last state to that of the first;
    d_A [batch, state, channels], d_D [batch, channels], d_B and d_C [batch, blocks of channels,
    time, state] are summed by the caller.
    """
    batch, time, channels = u.shape
    N = A.shape[1]
    per_row = (channels + WIDTH - 1) // WIDTH
    span = u.dtype.type(1) - low
    zero = u.dtype.type(0)
    states = np.empty((BLOCK + 1, N, WIDTH), u.dtype)  # before each token of a block, and after
    exps = np.empty((BLOCK, N, WIDTH), u.dtype)
    carry = np.empty((N, WIDTH), u.dtype)  # a_{t+1} g_{t+1}
    dA_sum = np.empty((N, WIDTH), u.dtype)
    du = np.empty((BLOCK, WIDTH), u.dtype)
    d_du = np.empty(WIDTH, u.dtype)
    by_a = np.empty(WIDTH, u.dtype)  # the part of dΔ through a
    for unit in range(start, stop):
        b = unit // per_row
        part = unit % per_row
        c0 = part * WIDTH
        c1 = min(c0 + WIDTH, channels)
        width = c1 - c0
        group = b // (batch // A.shape[0])
        D_c = D[group, c0:c1]
        dD_c = d_D[b, c0:c1]
        for n in range(N):
            for c in range(width):
                carry[n, c] = d_state[b, n, c0 + c]
                dA_sum[n, c] = zero
        for c in range(width):
            dD_c[c] = zero
        for block in range((time - 1) // BLOCK, -1, -1):
            t0 = block * BLOCK
            tokens = min(BLOCK, time - t0)
            for n in range(N):
                for c in range(width):
                    states[0, n, c] = kept[b, block, n, c0 + c]
            for s in range(tokens):
                delta_c = delta[b, t0 + s, c0:c1]
                u_c = u[b, t0 + s, c0:c1]
                du_c = du[s]
                for c in range(width):
                    du_c[c] = delta_c[c] * u_c[c]
                for n in range(N):
                    A_c = A[group, n, c0:c1]
                    h_before = states[s, n]
                    h = states[s + 1, n]
                    e_c = exps[s, n]
                    B_n = B[b, t0 + s, n]
                    for c in range(width):
                        e = exp(delta_c[c] * A_c[c])
                        e_c[c] = e
                        h[c] = (low + span * e) * h_before[c] + du_c[c] * B_n
            for s in range(tokens - 1, -1, -1):
                t = t0 + s
                delta_c = delta[b, t, c0:c1]
                u_c = u[b, t, c0:c1]
                dy_c = d_y[b, t, c0:c1]
                du_c = du[s]
                for c in range(width):
                    d_du[c] = zero
                    by_a[c] = zero
                for n in range(N):
                    A_c = A[group, n, c0:c1]
                    carry_c = carry[n]
                    dA_c = dA_sum[n]
                    h_before = states[s, n]
                    h = states[s + 1, n]
                    e_c = exps[s, n]
                    B_n = B[b, t, n]
                    C_n = C[b, t, n]
                    dB = zero
                    dC = zero
                    for c in range(width):
                        g = carry_c[c] + dy_c[c] * C_n
                        slope = span * e_c[c]
                        w = g * slope * h_before[c]
                        carry_c[c] = (low + slope) * g
                        dA_c[c] += w * delta_c[c]
                        by_a[c] += w * A_c[c]
                        d_du[c] += g * B_n
                        dB += g * du_c[c]
                        dC += dy_c[c] * h[c]
                    d_B[b, part, t, n] = dB
                    d_C[b, part, t, n] = dC
                d_u_c = d_u[b, t, c0:c1]
                d_delta_c = d_delta[b, t, c0:c1]
                for c in range(width):
                    d_delta_c[c] = by_a[c] + d_du[c] * u_c[c]
                    d_u_c[c] = d_du[c] * delta_c[c] + D_c[c] * dy_c[c]
                    dD_c[c] += dy_c[c] * u_c[c]
        for n in range(N):
            for c in range(width):
                d_state[b, n, c0 + c] = carry[n, c]
                d_A[b, n, c0 + c] = dA_sum[n, c]


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, low, initial_state = inputs
    dtype = compute_dtype(u, delta, A, B, C, D, initial_state)
    batch, time, channels = u.shape
    N = A.shape[2]
    y = u.new_empty(u.shape, dtype=dtype)
    state = y.new_zeros(batch, N, channels)
    if initial_state is not None:
        state.copy_(initial_state.mT)
    kept = y.new_empty(batch, _count(time, BLOCK), N, channels)
    given = arrays(dtype, u, delta, A.mT, B, C, _or_zeros(D, A))
    units = batch * _count(channels, WIDTH)
    low_ = y.numpy().dtype.type(low)
    share_out(_forward_kernel, units, *given, low_, state.numpy(), y.numpy(), kept.numpy())
    return y.to(u.dtype), state.mT.contiguous(), kept


def _backward(
    inputs: Inputs, y: Tensor, final_state: Tensor, kept: Tensor, d_y: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, low, initial_state = inputs
    dtype = kept.dtype
    batch, time, channels = u.shape
    groups, N = A.shape[0], A.shape[2]
    blocks = _count(channels, WIDTH)
    given = arrays(dtype, u, delta, A.mT, B, C, _or_zeros(D, A))
    d_state = kept.new_empty(batch, N, channels).copy_(d_final.mT)
    d_u, d_delta = kept.new_empty(u.shape), kept.new_empty(u.shape)
    d_A, d_D = kept.new_empty(batch, N, channels), kept.new_empty(batch, channels)
    d_B, d_C = (kept.new_empty(batch, blocks, time, N) for _ in range(2))
    results = (d_state, d_u, d_delta, d_A, d_B, d_C, d_D)
    share_out(
        _backward_kernel,
        batch * blocks,
        *given,
        kept.numpy().dtype.type(low),
        *arrays(dtype, kept, d_y),
        *(x.numpy() for x in results),
    )
    rows = (groups, batch // groups)
    return (
        d_u.to(u.dtype),
        d_delta.to(delta.dtype),
        d_A.unflatten(0, rows).sum(1).mT.to(A.dtype, memory_format=torch.contiguous_format),
        d_B.sum(1).to(B.dtype),
        d_C.sum(1).to(C.dtype),
        u.new_empty(0) if D is None else d_D.unflatten(0, rows).sum(1).to(D.dtype),
        u.new_empty(0)
        if initial_state is None
        else d_state.mT.to(initial_state.dtype).contiguous(),
    )


def _or_zeros(D: Tensor | None, A: Tensor) -> Tensor:
    return A.new_zeros(A.shape[:2]) if D is None else D


def _count(length: int, size: int) -> int:
    return -(-length // size)


def _empty(inputs: Inputs) -> tuple[Tensor, ...]:
    """The results, and the states before each block [batch, blocks, state, channels]."""
    y, final_state = SPEC.empty(inputs)
    batch, time, channels = y.shape
    N = inputs.A.shape[2]
    return y, final_state, final_state.new_empty(batch, _count(time, BLOCK), N, channels)


_op = differentiable_op(
    SPEC, "numba", forward=_forward, backward=_backward, empty=_empty, saved=("kept",)
)
