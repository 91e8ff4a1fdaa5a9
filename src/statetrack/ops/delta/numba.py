# mypy: disallow-untyped-defs=False
"""`delta_product` as compiled loops: each core walks over time with the states of a few heads.

One micro-step with the key k as given, not normalised, is

    w = Sᵀk,    e = r v - r² w,    u = β e,    S ← S + k uᵀ,        r = 1/‖k‖

which is S ← (I - β k̂ k̂ᵀ) S + β k̂ vᵀ for k̂ = r k (and r = 1 where keys are taken as they are). The
loop that writes k uᵀ also reads what comes next, the w of the following key and y, so that each
micro-step goes over the state once.

Precision. At β = 2 an error in r² is an eigenvalue off -1 at every visit of the same key, and grows
with T. So r, r² and e are computed in float64, whatever the precision of the state; what is left is
the random rounding of single operations.

Memory. Kept for the backward: e, and the state every so many tokens. Without a gate the backward
takes S back by subtraction, S - k uᵀ. A gate cannot be undone (a = 0): with one, the backward runs
each block of tokens forward once more, S ← a S + k uᵀ, and holds its states.
"""

import math

import numpy as np
import torch
from torch import Tensor

from statetrack.ops._numba.compile import arrays, compiled, share_out
from statetrack.ops._register import differentiable_op
from statetrack.ops.delta.spec import NORM_FLOOR, SPEC, Inputs

__all__ = ["delta_product"]

FLOOR_SQUARED = NORM_FLOOR**2
UNIT_NUMBERS = 2**12  # in the states of the heads that one unit of work takes along
KEEP_EVERY = 256  # tokens between kept states, without a gate: bounds what subtraction can lose
KEEP_EVERY_GATED = 64


def delta_product(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Per token H ← a H, H ← (I - β_j k_j k_jᵀ) H + β_j k_j v_jᵀ for j = 1..n; y = scale·Hᵀq."""
    y, state, *_ = _op(*inputs, torch.is_grad_enabled())
    return y, state


# Rows of arrays are taken first (state[m]) and then walked along, in functions of their own and
# only a few at a time: a loop becomes vector code where it is over neighbours in memory which
# provably, tested pair by pair before it starts, do not overlap.
#
# The forward has the state transposed, [value, key], so that w and y are sums along rows that stay
# in registers. The backward has it as it is, for the same reason: there dq and dk are such sums.


@compiled
def _transpose(source, target):
    for i in range(target.shape[0]):
        for m in range(target.shape[1]):
            target[i, m] = source[m, i]


@compiled
def _copy(source, target):
    for i in range(target.shape[0]):
        source_i, target_i = source[i], target[i]
        for m in range(target.shape[1]):
            target_i[m] = source_i[m]


@compiled
def _inverse_square(x, normalize):
    """1/‖x‖² in float64; 0 if x counts as zero, 1 if vectors are taken as they are."""
    if not normalize:
        return 1.0
    square = 0.0
    for m in range(x.shape[0]):
        wide = np.float64(x[m])
        square += wide * wide
    return 0.0 if square <= FLOOR_SQUARED else 1.0 / square


@compiled
def _read(state, k, w):
    """w = Sᵀ k, with the state transposed."""
    for i in range(state.shape[0]):
        row = state[i]
        w_i = k.dtype.type(0)
        for m in range(row.shape[0]):
            w_i += row[m] * k[m]
        w[i] = w_i


@compiled
def _correct(v, w, beta, r, r_squared, e, u):
    """e = r v - r² w, in float64 until it is rounded; u = β e."""
    for i in range(v.shape[0]):
        e[i] = r * v[i] - r_squared * w[i]
        u[i] = beta * e[i]


@compiled
def _write(state, a, k, u, k_next, w):
    """S ← a S + k uᵀ and w = Sᵀ k_next, with the state transposed."""
    for i in range(state.shape[0]):
        row, u_i = state[i], u[i]
        w_i = k.dtype.type(0)
        for m in range(row.shape[0]):
            x = a * row[m] + k[m] * u_i
            row[m] = x
            w_i += x * k_next[m]
        w[i] = w_i


@compiled
def _write_and_read(state, a, k, u, k_next, w, q, y):
    """The same, and y = Sᵀ q."""
    for i in range(state.shape[0]):
        row, u_i = state[i], u[i]
        w_i, y_i = k.dtype.type(0), k.dtype.type(0)
        for m in range(row.shape[0]):
            x = a * row[m] + k[m] * u_i
            row[m] = x
            w_i += x * k_next[m]
            y_i += x * q[m]
        w[i] = w_i
        y[i] = y_i


@compiled
def _forward_kernel(
    start,
    stop,
    together,
    q,
    k,
    v,
    beta,
    decay,
    initial,
    normalize,
    scale,
    save,
    every,
    y,
    final,
    e_all,
    kept,
):
    """Units start..stop, each up to `together` heads of one batch row.

    decay may be None, and initial empty, which is zero. With `save`, fills e_all [batch, time,
    micro, heads, value] and kept [batch, heads, blocks - 1, key, value], the states before all
    blocks but the first.
    """
    _, time, micro, heads, keys = k.shape
    values = v.shape[4]
    groups = (heads + together - 1) // together
    one = k.dtype.type(1)
    states = np.empty((together, values, keys), k.dtype)
    ws = np.empty((together, values), k.dtype)
    scratch = np.empty((2, values), k.dtype)
    u, e_unused = scratch[0], scratch[1]
    for unit in range(start, stop):
        b, first = unit // groups, unit % groups * together
        some = range(first, min(heads, first + together))
        for h in some:
            if initial.size:
                _transpose(initial[b, h], states[h - first])
            else:
                states[h - first] = 0
            _read(states[h - first], k[b, 0, 0, h], ws[h - first])
        for t in range(time):
            for h in some:
                state, w, y_t = states[h - first], ws[h - first], y[b, t, h]
                if save and t % every == 0 and t > 0:
                    _transpose(state, kept[b, h, t // every - 1])
                for j in range(micro):
                    a = one
                    if decay is not None:
                        a = decay[b, t, h] if j == 0 else one
                    k_j, v_j, beta_j = k[b, t, j, h], v[b, t, j, h], beta[b, t, j, h]
                    r_squared = _inverse_square(k_j, normalize)
                    e = e_all[b, t, j, h] if save else e_unused
                    _correct(v_j, w, beta_j, math.sqrt(r_squared), r_squared * a, e, u)
                    if j + 1 < micro:
                        _write(state, a, k_j, u, k[b, t, j + 1, h], w)
                    else:  # the last key of all looks at itself again
                        k_next = k[b, t + 1, 0, h] if t + 1 < time else k_j
                        _write_and_read(state, a, k_j, u, k_next, w, q[b, t, h], y_t)
                r_q = scale * math.sqrt(_inverse_square(q[b, t, h], normalize))
                for i in range(values):
                    y_t[i] = r_q * y_t[i]
        for h in some:
            _transpose(states[h - first], final[b, h])


@compiled
def _rewrite(before, a, k, u, after):
    """`after` ← a · before + k uᵀ."""
    for m in range(before.shape[0]):
        before_m, after_m, k_m = before[m], after[m], k[m]
        for i in range(before_m.shape[0]):
            after_m[i] = a * before_m[i] + k_m * u[i]


@compiled
def _rewrite_in_place(state, k, u):
    for m in range(state.shape[0]):
        row, k_m = state[m], k[m]
        for i in range(row.shape[0]):
            row[i] += k_m * u[i]


@compiled
def _inner(x, y):
    total = x.dtype.type(0)
    for i in range(x.shape[0]):
        x_i, y_i = x[i], y[i]
        for m in range(x_i.shape[0]):
            total += x_i[m] * y_i[m]
    return total


@compiled
def _columns(g, k, du):
    """du = Gᵀ k, four rows of G at a time so that du is read and written less often."""
    keys, values = g.shape
    whole = keys - keys % 4
    for i in range(values):
        du[i] = 0
    for m in range(0, whole, 4):
        g0, g1, g2, g3 = g[m], g[m + 1], g[m + 2], g[m + 3]
        k0, k1, k2, k3 = k[m], k[m + 1], k[m + 2], k[m + 3]
        for i in range(values):
            du[i] += (k0 * g0[i] + k1 * g1[i]) + (k2 * g2[i] + k3 * g3[i])
    for m in range(whole, keys):
        g0, k0 = g[m], k[m]
        for i in range(values):
            du[i] += k0 * g0[i]


@compiled
def _write_back(state, g, k, u, dw, dk):
    """S ← S - k uᵀ, then dk = G u + S dw, then G ← G + k dwᵀ."""
    for m in range(state.shape[0]):
        s_m, g_m, k_m = state[m], g[m], k[m]
        dk_m = k.dtype.type(0)
        for i in range(s_m.shape[0]):
            s, x = s_m[i] - k_m * u[i], g_m[i]
            dk_m += x * u[i] + s * dw[i]
            s_m[i] = s
            g_m[i] = x + k_m * dw[i]
        dk[m] = dk_m


@compiled
def _read_and_write_back(state, g, decay, a, q, k, dread, u, dw, dq, dk):
    """dq = S dread and G ← a G + q dreadᵀ, then as `_write_back`.

    S after a token is S before the next one, whose gate `a` G has yet to meet. With a gate (`decay`
    is not None) returns ⟨S, G⟩, the gradient of `a`.
    """
    da = k.dtype.type(0)
    for m in range(state.shape[0]):
        s_m, g_m, q_m, k_m = state[m], g[m], q[m], k[m]
        dq_m, dk_m, da_m = k.dtype.type(0), k.dtype.type(0), k.dtype.type(0)
        for i in range(s_m.shape[0]):
            s, x = s_m[i], g_m[i]
            dq_m += s * dread[i]
            if decay is not None:
                da_m += s * x
            x = a * x + q_m * dread[i]
            s = s - k_m * u[i]
            dk_m += x * u[i] + s * dw[i]
            s_m[i] = s
            g_m[i] = x + k_m * dw[i]
        dq[m] = dq_m
        dk[m] = dk_m
        da += da_m
    return da


@compiled
def _correct_back(e, du, beta, r, r_squared, u, dv, dw):
    """u = β e, dv = β r du, dw = -β r² du; returns dβ = e · du."""
    dbeta = e.dtype.type(0)
    for i in range(e.shape[0]):
        u[i] = beta * e[i]
        dv[i] = beta * r * du[i]
        dw[i] = -beta * r_squared * du[i]
        dbeta += e[i] * du[i]
    return dbeta


@compiled
def _project(dx, x, r_squared):
    """Only the direction of x counts: dx ← dx - x (x · dx) / ‖x‖²."""
    along = x.dtype.type(0)
    for m in range(x.shape[0]):
        along += x[m] * dx[m]
    along = x.dtype.type(along * r_squared)
    for m in range(x.shape[0]):
        dx[m] -= along * x[m]


@compiled
def _backward_kernel(
    start,
    stop,
    together,
    q,
    k,
    beta,
    decay,
    initial,
    normalize,
    scale,
    every,
    final,
    e_all,
    kept,
    dy,
    dfinal,
    dq,
    dk,
    dv,
    dbeta,
    ddecay,
    dinitial,
):
    """Units start..stop as in the forward, from the last token to the first.

    With G the gradient of the state after a micro-step, du = Gᵀk and the rest as in the functions
    above. `states` holds, with a gate, the state before each token of a block and after the last;
    without one only the state as it is taken back.
    """
    _, time, micro, heads, keys = k.shape
    values = e_all.shape[4]
    groups = (heads + together - 1) // together
    blocks = (time + every - 1) // every
    one = k.dtype.type(1)
    held = 1
    if decay is not None:
        held = min(every, time) + 1
    all_states = np.empty((together, held, keys, values), k.dtype)
    all_g = np.empty((together, keys, values), k.dtype)
    scratch = np.empty((4, values), k.dtype)
    u, du, dw, dread = scratch[0], scratch[1], scratch[2], scratch[3]
    for unit in range(start, stop):
        b, first = unit // groups, unit % groups * together
        some = range(first, min(heads, first + together))
        for h in some:
            _copy(dfinal[b, h], all_g[h - first])
        for block in range(blocks - 1, -1, -1):
            begin, end = block * every, min(time, (block + 1) * every)
            for h in some:
                states = all_states[h - first]
                if decay is None:
                    _copy(kept[b, h, block] if block + 1 < blocks else final[b, h], states[0])
                elif block > 0:
                    _copy(kept[b, h, block - 1], states[0])
                elif initial.size:
                    _copy(initial[b, h], states[0])
                else:
                    states[0] = 0
            if decay is not None:
                for t in range(begin, end):
                    for h in some:
                        before = all_states[h - first, t - begin]
                        after = all_states[h - first, t - begin + 1]
                        for j in range(micro):
                            e = e_all[b, t, j, h]
                            for i in range(values):
                                u[i] = beta[b, t, j, h] * e[i]
                            if j == 0:
                                _rewrite(before, decay[b, t, h], k[b, t, j, h], u, after)
                            else:
                                _rewrite_in_place(after, k[b, t, j, h], u)
            for t in range(end - 1, begin - 1, -1):
                for h in some:
                    g = all_g[h - first]
                    a = one  # the gate of the next token, which G has yet to meet
                    at = 0  # where the state after this token is
                    if decay is not None:
                        a = decay[b, t + 1, h] if t + 1 < time else one
                        at = t - begin + 1
                    state = all_states[h - first, at]
                    q_t, dq_t, dy_t = q[b, t, h], dq[b, t, h], dy[b, t, h]
                    rq_squared = _inverse_square(q_t, normalize)
                    r_q = scale * math.sqrt(rq_squared)
                    for j in range(micro - 1, -1, -1):
                        k_j, dk_j, beta_j = k[b, t, j, h], dk[b, t, j, h], beta[b, t, j, h]
                        e_j, dv_j = e_all[b, t, j, h], dv[b, t, j, h]
                        _columns(g, k_j, du)
                        if j == micro - 1:  # nor has G met dy
                            qk = k.dtype.type(0)
                            for m in range(keys):
                                qk += q_t[m] * k_j[m]
                            for i in range(values):
                                dread[i] = r_q * dy_t[i]
                                du[i] = a * du[i] + qk * dread[i]
                        r_squared = _inverse_square(k_j, normalize)
                        r = math.sqrt(r_squared)
                        dbeta[b, t, j, h] = _correct_back(
                            e_j, du, beta_j, r, r_squared, u, dv_j, dw
                        )
                        if j == micro - 1:
                            da = _read_and_write_back(
                                state, g, decay, a, q_t, k_j, dread, u, dw, dq_t, dk_j
                            )
                            if decay is not None and t + 1 < time:
                                ddecay[b, t + 1, h] = da
                        else:
                            _write_back(state, g, k_j, u, dw, dk_j)
                        if normalize:
                            _project(dk_j, k_j, r_squared)
                    if normalize:
                        _project(dq_t, q_t, rq_squared)
        for h in some:
            g = all_g[h - first]
            a = one
            if decay is not None:
                a = decay[b, 0, h]
                ddecay[b, 0, h] = _inner(all_states[h - first, 0], g)
            if initial.size:
                dinitial_h = dinitial[b, h]
                for m in range(keys):
                    for i in range(values):
                        dinitial_h[m, i] = a * g[m, i]


def _forward(inputs: Inputs, save: bool) -> tuple[Tensor, ...]:
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    y, state, e, kept = _empty(inputs, save)
    dtype = state.dtype
    y_wide = y if y.dtype == dtype else y.to(dtype)
    together = _together(k, v)
    share_out(
        _forward_kernel,
        k.shape[0] * -(-k.shape[3] // together),
        together,
        *arrays(dtype, q, k, v, beta, decay, _or_empty(initial_state, k)),
        normalize,
        scale,
        save,
        _every(decay),
        *(x.numpy() for x in (y_wide, state, e, kept)),
    )
    return y_wide.to(y.dtype), state, e, kept


def _backward(
    inputs: Inputs,
    save: bool,
    y: Tensor,
    final_state: Tensor,
    e: Tensor,
    kept: Tensor,
    dy: Tensor,
    dfinal: Tensor,
) -> tuple[Tensor, ...]:
    q, k, v, beta, decay, normalize, scale, initial_state = inputs
    assert save
    dtype = final_state.dtype
    tensors = (q, k, v, beta, decay, initial_state)
    grads = [
        None if x is None else x.new_empty(x.shape, dtype=dtype)
        for x in (q, k, v, beta, decay, _or_empty(initial_state, k))
    ]
    together = _together(k, v)
    share_out(
        _backward_kernel,
        k.shape[0] * -(-k.shape[3] // together),
        together,
        *arrays(dtype, q, k, beta, decay, _or_empty(initial_state, k)),
        normalize,
        scale,
        _every(decay),
        *arrays(dtype, final_state, e, kept, dy, dfinal),
        *arrays(dtype, *grads),
    )
    return tuple(
        q.new_empty(0) if x is None or grad is None else grad.to(x.dtype)
        for x, grad in zip(tensors, grads, strict=True)
    )


def _or_empty(initial_state: Tensor | None, k: Tensor) -> Tensor:
    """None would be a type of its own, and so one more kernel to compile."""
    return k.new_empty(0, 0, 0, 0) if initial_state is None else initial_state


def _together(k: Tensor, v: Tensor) -> int:
    """Heads of one unit of work: as many as fit the first cache, but enough units for all threads.

    The numbers of one head are far apart in memory, those of all heads of a token side by side.
    """
    batch, _, _, heads, key = k.shape
    fitting = UNIT_NUMBERS // (key * v.shape[4])
    return max(1, min(fitting, heads, batch * heads // torch.get_num_threads()))


def _every(decay: Tensor | None) -> int:
    return KEEP_EVERY if decay is None else KEEP_EVERY_GATED


def _empty(inputs: Inputs, save: bool) -> tuple[Tensor, ...]:
    """The results; and for the backward e and the states between blocks."""
    y, state = SPEC.empty(inputs)
    batch, time, heads, _ = y.shape
    between = (time - 1) // _every(inputs.decay)
    e = state.new_empty(inputs.v.shape if save else (batch, 0, 0, 0, 0))
    return y, state, e, state.new_empty(batch, heads, between if save else 0, *state.shape[2:])


_op = differentiable_op(
    SPEC,
    "numba",
    forward=_forward,
    backward=_backward,
    empty=_empty,
    options="bool save",
    saved=("e", "kept"),
)
