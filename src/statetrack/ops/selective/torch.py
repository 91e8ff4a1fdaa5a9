"""`selective_scan` in plain tensor code: blocks of time, only the states between them are kept.

The tensor of all transitions [batch, time, channels, state] would be N times the size of the
input. It exists here for BLOCK tokens at a time, in the forward pass and again in the backward,
which starts each block from its kept state.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from statetrack.ops._register import compute_dtype, differentiable_op, per_group, per_row
from statetrack.ops.selective.spec import SPEC, Inputs, in_groups

__all__ = ["selective_scan"]

BLOCK = 16  # tokens whose transitions exist at once


def selective_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """h_t = a_t ∘ h_{t-1} + Δ_t B_t u_t with a = low + (1-low)·exp(Δ A); y = h·C + D u."""
    y, final_state, _ = _op(*in_groups(inputs))
    return y, final_state


# Below, axes are ordered [block, batch, channels, state] (s b c n), so that one token is one
# contiguous piece. A [groups, channels, state] and D [groups, channels] are shared within groups.


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, low, initial_state = inputs
    dtype = compute_dtype(u, delta, A, B, C, D, initial_state)
    batch, time, channels = u.shape
    A_bcn = per_row(A.to(dtype), batch)
    h = A_bcn.new_zeros(A_bcn.shape) if initial_state is None else initial_state.to(dtype)
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    kept = []
    for block in _blocks(time):
        kept.append(h)
        u_sbc, delta_sbc, B_sbn, C_sbn = (_time_first(x, block, dtype) for x in (u, delta, B, C))
        a = _exp(delta_sbc, A_bcn).mul_(1 - low).add_(low)
        states = _outer(delta_sbc * u_sbc, B_sbn)
        for s in range(len(states)):
            h = torch.addcmul(states[s], a[s], h, out=states[s])
        y_sbc = _contract_state(states, C_sbn)
        if D is not None:
            y_sbc += per_row(D.to(dtype), batch) * u_sbc
        y[:, block] = y_sbc.transpose(0, 1)
    return y, h.clone(), torch.stack(kept, dim=1)


def _backward(
    inputs: Inputs, y: Tensor, final_state: Tensor, kept: Tensor, d_y: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    """With e = exp(Δ A), a = low + (1-low) e, and g_t = C_t dy_t + a_{t+1} g_{t+1}:

        dC_t = Σ_c dy_t h_t,   dB_t = Σ_c g_t Δ_t u_t,   d(Δu)_t = Σ_n g_t B_t,
        dA = Σ_t w_t Δ_t,      dΔ_t = Σ_n w_t A + u_t d(Δu)_t,   w_t = g_t (1-low) e_t h_{t-1}.

    h_{t-1} is needed itself: e_t h_{t-1} is not h_t - Δ_t u_t B_t unless low = 0.
    """
    u, delta, A, B, C, D, low, initial_state = inputs
    dtype = kept.dtype
    batch, time, channels = u.shape
    A_bcn = per_row(A.to(dtype), batch)
    D_bc = None if D is None else per_row(D.to(dtype), batch)
    d_A = torch.zeros_like(A_bcn, memory_format=torch.contiguous_format)
    d_D = d_A.new_zeros(batch, channels)
    d_u, d_delta, d_B, d_C = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (u, delta, B, C)
    )
    carry = d_final.to(dtype)  # a_{t+1} g_{t+1}
    for index, block in reversed(list(enumerate(_blocks(time)))):
        u_sbc, delta_sbc, B_sbn, C_sbn, d_y_sbc = (
            _time_first(x, block, dtype) for x in (u, delta, B, C, d_y)
        )
        e = _exp(delta_sbc, A_bcn)
        a = e.mul(1 - low).add_(low)
        states = _outer(delta_sbc * u_sbc, B_sbn)
        previous = torch.empty_like(states)
        previous[0] = kept[:, index]
        for s in range(len(states)):
            torch.addcmul(states[s], a[s], previous[s], out=states[s])
            if s + 1 < len(states):
                previous[s + 1] = states[s]
        d_C[:, block] = _contract_channels(states, d_y_sbc)

        g = torch.mul(d_y_sbc[..., None], C_sbn[:, :, None, :], out=states)
        for s in reversed(range(len(g))):
            g[s] += carry
            carry = a[s] * g[s]
        d_B[:, block] = _contract_channels(g, delta_sbc * u_sbc)
        d_delta_u = _contract_state(g, B_sbn)
        w = e.mul_(1 - low).mul_(g).mul_(previous)
        d_A += torch.mul(w, delta_sbc[..., None], out=g).sum(0)
        d_delta[:, block] = (w.mul_(A_bcn).sum(-1) + d_delta_u * u_sbc).transpose(0, 1)
        d_u_sbc = d_delta_u.mul_(delta_sbc)
        if D_bc is not None:
            d_u_sbc += D_bc * d_y_sbc
            d_D += (d_y_sbc * u_sbc).sum(0)
        d_u[:, block] = d_u_sbc.transpose(0, 1)
    return (
        d_u,
        d_delta,
        per_group(d_A, len(A)).to(A.dtype),
        d_B,
        d_C,
        u.new_empty(0) if D is None else per_group(d_D, len(D)).to(D.dtype),
        u.new_empty(0) if initial_state is None else carry.to(initial_state.dtype, copy=True),
    )


def _blocks(time: int) -> Iterator[slice]:
    return (slice(t, min(t + BLOCK, time)) for t in range(0, time, BLOCK))


def _time_first(x: Tensor, block: slice, dtype: torch.dtype) -> Tensor:
    return x[:, block].transpose(0, 1).to(dtype, memory_format=torch.contiguous_format)


def _exp(delta_sbc: Tensor, A_bcn: Tensor) -> Tensor:
    return torch.mul(delta_sbc[..., None], A_bcn).exp_()


def _outer(x_sbc: Tensor, B_sbn: Tensor) -> Tensor:
    return x_sbc[..., None] * B_sbn[:, :, None, :]


def _contract_state(h_sbcn: Tensor, C_sbn: Tensor) -> Tensor:
    """Σ_n h C -> [block, batch, channels]."""
    return torch.matmul(h_sbcn, C_sbn[..., None])[..., 0]


def _contract_channels(h_sbcn: Tensor, x_sbc: Tensor) -> Tensor:
    """Σ_c x h -> [batch, block, state]."""
    return torch.matmul(x_sbc[:, :, None, :], h_sbcn)[:, :, 0].transpose(0, 1)


def _empty(inputs: Inputs) -> tuple[Tensor, ...]:
    """The results, and the state before each block."""
    y, final_state = SPEC.empty(inputs)
    batch, time, _ = y.shape
    return y, final_state, final_state.new_empty(batch, -(-time // BLOCK), *final_state.shape[1:])


_op = differentiable_op(
    SPEC, "torch", forward=_forward, backward=_backward, empty=_empty, saved=("kept",)
)
