"""`slstm_scan` in plain tensor code: a loop over time outside autograd, and its exact reverse.

The recurrence is not linear, so time cannot be cut. What can be is done for all tokens at once:
the backward finds every gate again with one matrix product from the kept states, and its loop is
left with six small operations per token.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from statetrack.ops._register import differentiable_op
from statetrack.ops.slstm.spec import SPEC, Inputs, empty_with_states, in_groups, initial

__all__ = ["slstm_scan"]


def slstm_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The sLSTM from the input part of its gates (z, i, f, o); the state is (c, n, m, h)."""
    h, final_state, _ = _op(*in_groups(inputs))
    return h, final_state


# Inside, the axes are as follows, so that the recurrent part h R of all four gates of one token is
# one batched product; a unit is one head of one group.
#   gates  [time, units, rows, 4·dim],   R [units, dim, 4·dim],
#   states [time, units, rows, 4, dim] (c, n, m, h after each token), start and end the same of one.


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    """(h, the last state, all states)."""
    gates, R, initial_state = inputs
    start_state = initial(inputs)
    dtype = start_state.dtype
    groups, dim = R.shape[0], R.shape[3]
    x = _heads_first(gates.to(dtype), groups).flatten(-2)
    states = x.new_empty(*x.shape[:-1], 4, dim)
    start = _heads_first(start_state[:, None], groups)[0]
    _forward_loop(x, _joined(R.to(dtype)), start, states)
    kept = _batch_first(states, groups)
    return kept[:, :, 3].to(gates.dtype, copy=True), kept[:, -1].clone(), kept


def _backward(
    inputs: Inputs, h: Tensor, final_state: Tensor, kept: Tensor, d_h: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of `gates`, `R` and `initial_state`."""
    gates, R, initial_state = inputs
    dtype = kept.dtype
    groups, dim = R.shape[0], R.shape[3]
    R_joined = _joined(R.to(dtype))
    states = _heads_first(kept, groups)
    start = _heads_first(initial(inputs)[:, None], groups)
    x = _heads_first(gates.to(dtype), groups).flatten(-2)
    time, units, rows, _ = x.shape
    h_before = torch.cat([start[..., 3, :], states[:-1, ..., 3, :]])
    h_before = h_before.movedim(0, 1).reshape(units, time * rows, dim)
    recurrent = torch.bmm(h_before, R_joined).unflatten(1, (time, rows)).movedim(1, 0)
    d_gates = torch.empty_like(x, memory_format=torch.contiguous_format)
    d_state = _heads_first(d_final.to(dtype)[:, None], groups)[0].clone(
        memory_format=torch.contiguous_format
    )
    d_y = _heads_first(d_h.to(dtype)[:, :, None], groups).squeeze(-2)
    _backward_loop(x + recurrent, R_joined, start[0], states, d_y, d_state, d_gates)

    d_rows = d_gates.movedim(0, 1).reshape(units, time * rows, 4 * dim)
    d_R = torch.bmm(h_before.mT, d_rows).unflatten(-1, (4, dim)).unflatten(0, (groups, -1))
    return (
        _batch_first(d_gates.unflatten(-1, (4, dim)), groups).to(gates.dtype),
        d_R.movedim(3, 1).to(R.dtype, memory_format=torch.contiguous_format),
        gates.new_empty(0)
        if initial_state is None
        else _batch_first(d_state[None], groups)[:, 0].to(initial_state.dtype, copy=True),
    )


def _forward_loop(gates: Tensor, R: Tensor, start: Tensor, states: Tensor) -> None:
    dim = R.shape[1]
    c, n, m, h = start.unbind(-2)
    for t in range(len(gates)):
        z, i, f, o = torch.baddbmm(gates[t], h, R).unflatten(-1, (4, dim)).unbind(-2)
        keep = logsigmoid(f).add_(m)
        m = torch.maximum(keep, i)
        f_m, i_m = keep.sub_(m).exp_(), torch.sub(i, m).exp_()
        c = torch.addcmul(f_m * c, i_m, torch.tanh(z))
        n = torch.addcmul(i_m, f_m, n)
        h = torch.sigmoid(o).mul_(c).div_(n)
        torch.stack([c, n, m, h], dim=-2, out=states[t])


def _backward_loop(
    pre: Tensor,
    R: Tensor,
    start: Tensor,
    states: Tensor,
    d_y: Tensor,
    d_state: Tensor,
    d_gates: Tensor,
) -> None:
    """Fills `d_gates`, and turns `d_state` from the last state's gradient into the first's.

    `pre` holds the whole gates W x + R h. With a carry for dc and dn, and m a constant, per token
    and backwards in time:

    dh += d[z,i,f,o]_{t+1} Rᵀ,   dc += dh σ(o)/n,   dn -= dh h/n,
    dz = dc i (1 - tanh² z),   dĩ = (dc tanh z + dn) i,   do = dh (1 - σ(o)) h,
    df̃ = (dc c_{t-1} + dn n_{t-1}) f σ(-f̃),   then dc ← f dc,  dn ← f dn.
    """
    dim = R.shape[1]
    c_before, n_before, m_before, _ = torch.cat([start[None], states[:-1]]).unbind(-2)
    _, n, m, h = states.unbind(-2)
    z, i, f, o = pre.unflatten(-1, (4, dim)).unbind(-2)
    f_m = torch.exp(logsigmoid(f) + m_before - m)
    i_m = torch.exp(i - m)
    tanh_z, sigma_o = torch.tanh(z), torch.sigmoid(o)
    f_slope = f_m * torch.sigmoid(-f)
    by_c = torch.stack([i_m * (1 - tanh_z**2), i_m * tanh_z, f_slope * c_before], dim=-2)
    by_n = torch.stack([i_m, f_slope * n_before], dim=-2)
    by_h = torch.stack([sigma_o / n, -h / n], dim=-2)
    o_slope = (1 - sigma_o) * h

    carry, dh_recurrent = d_state[..., :2, :].clone(), d_state[..., 3, :]
    for t in reversed(range(len(pre))):
        dh = d_y[t] + dh_recurrent
        carry.addcmul_(by_h[t], dh[..., None, :])
        d_gate = d_gates[t].unflatten(-1, (4, dim))
        torch.mul(by_c[t], carry[..., :1, :], out=d_gate[..., :3, :])
        d_gate[..., 1:3, :].addcmul_(by_n[t], carry[..., 1:, :])
        torch.mul(o_slope[t], dh, out=d_gate[..., 3, :])
        carry.mul_(f_m[t][..., None, :])
        dh_recurrent = torch.bmm(d_gates[t], R.mT)
    d_state[..., :2, :] = carry
    d_state[..., 2, :] = 0
    d_state[..., 3, :] = dh_recurrent


def _heads_first(x: Tensor, groups: int) -> Tensor:
    """[groups·rows, time, k, heads, dim] -> [time, groups·heads, rows, k, dim]."""
    x = x.unflatten(0, (groups, x.shape[0] // groups))
    return x.permute(2, 0, 4, 1, 3, 5).flatten(1, 2)


def _batch_first(x: Tensor, groups: int) -> Tensor:
    """The inverse of `_heads_first`, contiguous."""
    x = x.unflatten(1, (groups, x.shape[1] // groups))
    return x.permute(1, 3, 0, 4, 2, 5).flatten(0, 1).contiguous()


def _joined(R: Tensor) -> Tensor:
    """[groups, 4, heads, dim, dim] -> [groups·heads, dim, 4·dim]."""
    return R.permute(0, 2, 3, 1, 4).flatten(-2).flatten(0, 1)


_op = differentiable_op(
    SPEC, "torch", forward=_forward, backward=_backward, empty=empty_with_states, saved=("kept",)
)
