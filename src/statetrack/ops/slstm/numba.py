# mypy: disallow-untyped-defs=False
"""`slstm_scan` as compiled loops over time, a few batch rows of one head at a time."""

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import compiled, share_out
from statetrack.ops._numba.functions import exp, log_sigmoid, sigmoid, tanh
from statetrack.ops._register import differentiable_op
from statetrack.ops.slstm.spec import SPEC, Inputs, empty_with_states, in_groups, initial

__all__ = ["slstm_scan"]

ROWS = 8  # batch rows of one unit of work


def slstm_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The sLSTM from the input part of its gates (z, i, f, o); the state is (c, n, m, h)."""
    h, final_state, _ = _op(*in_groups(inputs))
    return h, final_state


# Letters as in torch.py. In the kernels, arrays keep the axes they come with:
#   gates [batch, time, 4, heads, dim],   states the same (c, n, m, h after each token),
#   R [groups, heads, dim, 4·dim],   R_T [groups, heads, 4·dim, dim].
# A unit of work is one head of ROWS batch rows of one group, so that R is read once for all of
# them. Rows of arrays are taken first and then walked along in short loops over few of them: only
# neighbours in memory that provably do not overlap become vector code.


@compiled
def _add_products(x, M, out, rows):
    """out[r] += x[r] M, four rows of M at a time so that `out` is read and written less often."""
    inner, outer = M.shape
    whole = inner - inner % 4
    for d in range(0, whole, 4):
        M0, M1, M2, M3 = M[d], M[d + 1], M[d + 2], M[d + 3]
        for r in range(rows):
            x0, x1, x2, x3 = x[r, d], x[r, d + 1], x[r, d + 2], x[r, d + 3]
            y = out[r]
            for e in range(outer):
                y[e] += (x0 * M0[e] + x1 * M1[e]) + (x2 * M2[e] + x3 * M3[e])
    for d in range(whole, inner):
        M0 = M[d]
        for r in range(rows):
            x0 = x[r, d]
            y = out[r]
            for e in range(outer):
                y[e] += x0 * M0[e]


@compiled
def _forward_kernel(start, stop, gates, R, first, states):
    batch, time, _, heads, dim = gates.shape
    per_group = batch // R.shape[0]
    blocks = (per_group + ROWS - 1) // ROWS
    pre = np.empty((ROWS, 4 * dim), gates.dtype)
    h_all = np.empty((ROWS, dim), gates.dtype)
    for unit in range(start, stop):
        head = unit % heads
        group = unit // heads // blocks
        in_group = unit // heads % blocks * ROWS
        rows = min(ROWS, per_group - in_group)
        b0 = group * per_group + in_group
        for r in range(rows):
            for e in range(dim):
                h_all[r, e] = first[b0 + r, 3, head, e]
        for t in range(time):
            for r in range(rows):
                for k in range(4):
                    gate = gates[b0 + r, t, k, head]
                    whole_gate = pre[r, k * dim : (k + 1) * dim]
                    for e in range(dim):
                        whole_gate[e] = gate[e]
            _add_products(h_all, R[group, head], pre, rows)
            for r in range(rows):
                b = b0 + r
                before = states[b, t - 1] if t > 0 else first[b]
                after = states[b, t]
                c_before, n_before, m_before = before[0, head], before[1, head], before[2, head]
                c, n, m, h = after[0, head], after[1, head], after[2, head], after[3, head]
                z, i = pre[r, :dim], pre[r, dim : 2 * dim]
                f, o = pre[r, 2 * dim : 3 * dim], pre[r, 3 * dim :]
                h_next = h_all[r]
                for e in range(dim):
                    z[e] = tanh(z[e])
                for e in range(dim):
                    o[e] = sigmoid(o[e])
                for e in range(dim):
                    f[e] = log_sigmoid(f[e]) + m_before[e]
                for e in range(dim):
                    m[e] = i[e] if f[e] < i[e] else f[e]
                for e in range(dim):
                    f[e] = exp(f[e] - m[e])
                for e in range(dim):
                    i[e] = exp(i[e] - m[e])
                for e in range(dim):
                    c[e] = f[e] * c_before[e] + i[e] * z[e]
                for e in range(dim):
                    n[e] = f[e] * n_before[e] + i[e]
                for e in range(dim):
                    h_next[e] = o[e] * c[e] / n[e]
                for e in range(dim):
                    h[e] = h_next[e]


@compiled
def _backward_kernel(start, stop, gates, R, R_T, first, states, d_y, d_state, d_gates):
    """Fills d_gates; d_state goes from the gradient of the last state to that of the first."""
    batch, time, _, heads, dim = gates.shape
    per_group = batch // R.shape[0]
    blocks = (per_group + ROWS - 1) // ROWS
    one = gates.dtype.type(1)
    zero = gates.dtype.type(0)
    pre = np.empty((ROWS, 4 * dim), gates.dtype)
    d_pre = np.empty((ROWS, 4 * dim), gates.dtype)
    h_all = np.empty((ROWS, dim), gates.dtype)
    d_c_all = np.empty((ROWS, dim), gates.dtype)
    d_n_all = np.empty((ROWS, dim), gates.dtype)
    d_h_all = np.empty((ROWS, dim), gates.dtype)
    scratch = np.empty((3, dim), gates.dtype)
    f_m, f_slope, dh_n = scratch[0], scratch[1], scratch[2]
    for unit in range(start, stop):
        head = unit % heads
        group = unit // heads // blocks
        in_group = unit // heads % blocks * ROWS
        rows = min(ROWS, per_group - in_group)
        b0 = group * per_group + in_group
        for r in range(rows):
            for e in range(dim):
                d_c_all[r, e] = d_state[b0 + r, 0, head, e]
                d_n_all[r, e] = d_state[b0 + r, 1, head, e]
                d_h_all[r, e] = d_state[b0 + r, 3, head, e]
        for t in range(time - 1, -1, -1):
            for r in range(rows):
                before = states[b0 + r, t - 1] if t > 0 else first[b0 + r]
                h_before = before[3, head]
                h_row = h_all[r]
                for e in range(dim):
                    h_row[e] = h_before[e]
                for k in range(4):
                    gate = gates[b0 + r, t, k, head]
                    whole_gate = pre[r, k * dim : (k + 1) * dim]
                    for e in range(dim):
                        whole_gate[e] = gate[e]
            _add_products(h_all, R[group, head], pre, rows)
            for r in range(rows):
                b = b0 + r
                before = states[b, t - 1] if t > 0 else first[b]
                after = states[b, t]
                c_before, n_before, m_before = before[0, head], before[1, head], before[2, head]
                n, m, h = after[1, head], after[2, head], after[3, head]
                z, i = pre[r, :dim], pre[r, dim : 2 * dim]
                f, o = pre[r, 2 * dim : 3 * dim], pre[r, 3 * dim :]
                d_z, d_i = d_pre[r, :dim], d_pre[r, dim : 2 * dim]
                d_f, d_o = d_pre[r, 2 * dim : 3 * dim], d_pre[r, 3 * dim :]
                d_c, d_n, d_h = d_c_all[r], d_n_all[r], d_h_all[r]
                dy = d_y[b, t, head]
                for e in range(dim):
                    z[e] = tanh(z[e])
                for e in range(dim):
                    i[e] = exp(i[e] - m[e])
                for e in range(dim):
                    f_slope[e] = sigmoid(-f[e])
                for e in range(dim):
                    f_m[e] = log_sigmoid(f[e])
                for e in range(dim):
                    f_m[e] = exp(f_m[e] + m_before[e] - m[e])
                for e in range(dim):
                    o[e] = sigmoid(o[e])
                for e in range(dim):
                    d_h[e] += dy[e]
                for e in range(dim):
                    dh_n[e] = d_h[e] / n[e]
                for e in range(dim):
                    d_c[e] += dh_n[e] * o[e]
                for e in range(dim):
                    d_n[e] -= dh_n[e] * h[e]
                for e in range(dim):
                    d_o[e] = d_h[e] * (one - o[e]) * h[e]
                for e in range(dim):
                    d_z[e] = d_c[e] * i[e] * (one - z[e] * z[e])
                for e in range(dim):
                    d_i[e] = (d_c[e] * z[e] + d_n[e]) * i[e]
                for e in range(dim):
                    d_f[e] = (d_c[e] * c_before[e] + d_n[e] * n_before[e]) * f_slope[e] * f_m[e]
                for e in range(dim):
                    d_c[e] *= f_m[e]
                for e in range(dim):
                    d_n[e] *= f_m[e]
                for e in range(dim):
                    d_h[e] = zero
                for k in range(4):
                    d_gate = d_gates[b, t, k, head]
                    d_whole = d_pre[r, k * dim : (k + 1) * dim]
                    for e in range(dim):
                        d_gate[e] = d_whole[e]
            _add_products(d_pre, R_T[group, head], d_h_all, rows)
        for r in range(rows):
            for e in range(dim):
                d_state[b0 + r, 0, head, e] = d_c_all[r, e]
                d_state[b0 + r, 1, head, e] = d_n_all[r, e]
                d_state[b0 + r, 2, head, e] = zero
                d_state[b0 + r, 3, head, e] = d_h_all[r, e]


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    gates, R, initial_state = inputs
    first = initial(inputs)
    x, R_joined, start = _contiguous(first.dtype, gates, _joined(R), first)
    states = x.new_empty(x.shape)
    arrays = (tensor.numpy() for tensor in (x, R_joined, start, states))
    share_out(_forward_kernel, _units(gates, R), *arrays)
    return states[:, :, 3].to(gates.dtype, copy=True), states[:, -1].clone(), states


def _backward(
    inputs: Inputs, h: Tensor, final_state: Tensor, kept: Tensor, d_h: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    gates, R, initial_state = inputs
    joined = _joined(R)
    tensors = _contiguous(
        kept.dtype, gates, joined, joined.mT, initial(inputs), kept, d_h, d_final.clone()
    )
    d_gates = kept.new_empty(gates.shape)
    arrays = (tensor.numpy() for tensor in (*tensors, d_gates))
    share_out(_backward_kernel, _units(gates, R), *arrays)
    start, d_state = tensors[3], tensors[-1]
    h_before = torch.cat([start[:, None, 3], kept[:, :-1, 3]], dim=1)
    return (
        d_gates.to(gates.dtype),
        _recurrent_grad(h_before, d_gates, R),
        gates.new_empty(0) if initial_state is None else d_state.to(initial_state.dtype),
    )


def _recurrent_grad(h_before: Tensor, d_gates: Tensor, R: Tensor) -> Tensor:
    """dR = Σ h_{t-1} ⊗ d_gates over the tokens of each group: [groups, 4, heads, dim, dim]."""
    groups, heads, dim = R.shape[0], R.shape[2], R.shape[3]
    h_ghtd = h_before.view(groups, -1, heads, dim).transpose(1, 2)
    d_gkhte = d_gates.view(groups, -1, 4, heads, dim).permute(0, 2, 3, 1, 4)
    d_R = d_gates.new_empty(R.shape)
    for group in range(groups):
        for k in range(4):
            torch.bmm(h_ghtd[group].mT, d_gkhte[group, k], out=d_R[group, k])
    return d_R.to(R.dtype)


def _joined(R: Tensor) -> Tensor:
    """[groups, 4, heads, dim, dim] -> [groups, heads, dim, 4·dim]."""
    return R.permute(0, 2, 3, 1, 4).flatten(-2)


def _contiguous(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    return [x.detach().to(dtype).contiguous() for x in tensors]


def _units(gates: Tensor, R: Tensor) -> int:
    groups, heads = R.shape[0], R.shape[2]
    return groups * -(-gates.shape[0] // groups // ROWS) * heads


_op = differentiable_op(
    SPEC, "numba", forward=_forward, backward=_backward, empty=empty_with_states, saved=("kept",)
)
