"""`slstm_scan`: one program carries one head of a block of sequences through time.

Letters: B batch, T time, P sequences packed into a row, H heads, D size of a head; the gates z, i,
f, o come with an axis of size 4. The state (c, n, m, h) stays in registers. For heads up to 32 the
four D×D blocks of R stay on the chip; larger ones are read at every token (from the cache), a few
rows at a time, and the left factor then travels through memory too. Products use three TF32
products per float32 one, which keeps float32's accuracy; float64 multiplies exactly.

A sequence is a row of the batch, or one of P in it. Those of a block begin together; one that ends
before the longest keeps its state from then on.

The forward saves c, n, m and h of every token. The backward computes the gates again from h_{t-1},
as the forward did, and walks back. It returns the gradient of the gates, and

    dR[g] = Σ_{b,t} h_{t-1}ᵀ dgates[g]

is then one ordinary matrix product over all tokens.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops._triton.runtime import (
    check_version,
    contiguous,
    on_device_of,
    power_of_two,
    triton_dtype,
)
from statetrack.ops.packing import Packing, in_a_row, previous
from statetrack.ops.slstm.spec import SPEC, Inputs, empty_with_states, in_groups

__all__ = ["slstm_scan"]

ON_CHIP_SIZE = 32  # heads up to this size keep R in registers and shared memory
ROWS = 16  # sequences per program: the least a tensor-core product takes


def slstm_scan(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.slstm_scan`."""
    check_version()
    large = inputs.R.shape[-1] > ON_CHIP_SIZE  # where h travels through memory
    save, offsets = torch.is_grad_enabled() or large, None if packing is None else packing.offsets
    h, state, _ = _op(*in_groups(inputs), save, offsets)
    return h, state


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _product(x, matrix, EXACT: tl.constexpr):
    """x [rows, D] times matrix [D, D]."""
    if EXACT:
        return tl.sum(x[:, :, None] * matrix[None, :, :], 1)
    else:
        return tl.dot(x, matrix, input_precision="tf32x3")


@triton.jit
@no_type_check
def _product_from_memory(
    x_at,
    matrix_ptr,
    present,
    d,
    down,
    across,
    D: tl.constexpr,
    EXACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """x [rows, D] times matrix [D, D], both in memory; zeros for rows that are not `present`.

    `down` and `across` are the matrix's strides, so that it can be read transposed.
    """
    CHUNK: tl.constexpr = 16
    total = tl.zeros([present.shape[0], d.shape[0]], COMPUTE)
    for first in range(0, D, CHUNK):
        k = first + tl.arange(0, CHUNK)
        in_x = present[:, None] & (k < D)[None, :]
        in_matrix = (k < D)[:, None] & (d < D)[None, :]
        x = tl.load(x_at[:, None] + k[None, :], mask=in_x, other=0.0).to(COMPUTE)
        matrix_at = matrix_ptr + k[:, None] * down + d[None, :] * across
        matrix = tl.load(matrix_at, mask=in_matrix, other=0.0).to(COMPUTE)
        total += _product(x, matrix, EXACT)
    return total


@triton.jit
@no_type_check
def _log_sigmoid(x):
    """log σ(x) = min(x, 0) - log(1 + e^{-|x|})."""
    smaller = tl.minimum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return smaller - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
@no_type_check
def _tanh(x):
    """tanh x = 2 σ(2x) - 1, and its series where that would lose digits."""
    square = x * x
    series = 62.0 / 2835 - square * (1382.0 / 155925)
    series = 17.0 / 315 - square * series
    series = 2.0 / 15 - square * series
    series = 1.0 / 3 - square * series
    return tl.where(tl.abs(x) < 0.05, x - x * square * series, 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0)


@triton.jit
@no_type_check
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
@no_type_check
def _load_parts(at, step, inside, COMPUTE: tl.constexpr):
    """Four [rows, D] tiles, `step` elements apart: gates (z, i, f, o) or a state (c, n, m, h)."""
    x0 = tl.load(at, mask=inside, other=0.0).to(COMPUTE)
    x1 = tl.load(at + step, mask=inside, other=0.0).to(COMPUTE)
    x2 = tl.load(at + 2 * step, mask=inside, other=0.0).to(COMPUTE)
    x3 = tl.load(at + 3 * step, mask=inside, other=0.0).to(COMPUTE)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def _store_parts(at, step, inside, x0, x1, x2, x3):
    tl.store(at, x0, mask=inside)
    tl.store(at + step, x1, mask=inside)
    tl.store(at + 2 * step, x2, mask=inside)
    tl.store(at + 3 * step, x3, mask=inside)


@triton.jit
@no_type_check
def _empty_state(ROWS: tl.constexpr, BD: tl.constexpr, COMPUTE: tl.constexpr):
    zero = tl.zeros([ROWS, BD], COMPUTE)
    return zero, zero, zero + float("-inf"), zero


@triton.jit
@no_type_check
def _step(c, n, m, z, i, f):
    """(c, n, m, and the weights of old and new) after the gates z, i, f."""
    keep = _log_sigmoid(f) + m
    m = tl.maximum(keep, i, propagate_nan=tl.PropagateNan.ALL)
    old, new = tl.exp(keep - m), tl.exp(i - m)
    return old * c + new * _tanh(z), old * n + new, m, old, new


@triton.jit
@no_type_check
def _place(batch_rows, ROWS: tl.constexpr, BD: tl.constexpr, D: tl.constexpr):
    """(group, rows in it, rows, columns, inside): row blocks do not cross groups of R."""
    blocks = tl.cdiv(batch_rows, ROWS)
    group = tl.program_id(0) // blocks
    in_group = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = (in_group < batch_rows)[:, None] & (d < D)[None, :]
    return group, in_group, (group * batch_rows + in_group).to(tl.int64), d, inside


@triton.jit
@no_type_check
def _tokens_of(offsets_ptr, b, in_group, rows, T, P):
    """(first tokens of sequences b in memory, their lengths, the longest); T for each of a batch.

    Sequences that do not exist, `rows` of a group and beyond, have no token.
    """
    first = b * T
    length = tl.where(in_group < rows, T, 0)
    longest = T
    if offsets_ptr is not None:
        row = b // P
        at = offsets_ptr + b + row  # a row has one offset more than sequences
        begin = tl.load(at, mask=in_group < rows, other=0).to(tl.int64)
        end = tl.load(at + 1, mask=in_group < rows, other=0).to(tl.int64)
        first = row * T + begin
        length = (end - begin).to(tl.int32)
        longest = tl.max(length, 0)
    return first, length, longest


@triton.jit
@no_type_check
def _memory_of_h(saved_ptr, start_ptr, b, first, length, t, H, head, D: tl.constexpr):
    """(where h before token t lies for sequences b, whether they have one)."""
    at = saved_ptr + (((first + t - 1) * 4 + 3) * H + head) * D
    present = t < length
    if t == 0:
        if start_ptr is not None:
            at = start_ptr + ((b * 4 + 3) * H + head) * D
        else:
            present = length < 0
    return at, present


@triton.jit
@no_type_check
def _forward_kernel(
    gates_ptr,
    R_ptr,
    start_ptr,
    out_ptr,
    final_ptr,
    saved_ptr,
    offsets_ptr,
    T,
    P,
    H,
    rows_per_group,
    D: tl.constexpr,
    BD: tl.constexpr,
    ROWS: tl.constexpr,
    SAVE: tl.constexpr,
    ON_CHIP: tl.constexpr,
    EXACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    head = tl.program_id(1)
    group, in_group, b, d, inside = _place(rows_per_group, ROWS, BD, D)
    square = (d < D)[:, None] & (d < D)[None, :]
    R_ptr += (group * 4 * H + head) * D * D
    R_size = H * D * D  # from one gate's matrix to the next
    if ON_CHIP:
        R_at = R_ptr + d[:, None] * D + d[None, :]
        R_z, R_i, R_f, R_o = _load_parts(R_at, R_size, square, COMPUTE)

    part = H * D
    state_at = (b * 4 * H + head)[:, None] * D + d[None, :]
    first, length, longest = _tokens_of(offsets_ptr, b, in_group, rows_per_group, T, P)
    gate_at = gates_ptr + (first * 4 * H + head)[:, None] * D + d[None, :]
    saved_at = saved_ptr + (first * 4 * H + head)[:, None] * D + d[None, :]
    out_at = out_ptr + (first * H + head)[:, None] * D + d[None, :]
    if start_ptr is None:
        c, n, m, h = _empty_state(ROWS, BD, COMPUTE)
    else:
        c, n, m, h = _load_parts(start_ptr + state_at, part, inside, COMPUTE)
    for t in range(longest):
        here = (t < length)[:, None] & (d < D)[None, :]
        z, i, f, o = _load_parts(gate_at, part, here, COMPUTE)
        if ON_CHIP:
            z += _product(h, R_z, EXACT)
            i += _product(h, R_i, EXACT)
            f += _product(h, R_f, EXACT)
            o += _product(h, R_o, EXACT)
        else:
            x_at, present = _memory_of_h(saved_ptr, start_ptr, b, first, length, t, H, head, D)
            z += _product_from_memory(x_at, R_ptr, present, d, D, 1, D, EXACT, COMPUTE)
            R_i, R_f, R_o = R_ptr + R_size, R_ptr + 2 * R_size, R_ptr + 3 * R_size
            i += _product_from_memory(x_at, R_i, present, d, D, 1, D, EXACT, COMPUTE)
            f += _product_from_memory(x_at, R_f, present, d, D, 1, D, EXACT, COMPUTE)
            o += _product_from_memory(x_at, R_o, present, d, D, 1, D, EXACT, COMPUTE)
        c_next, n_next, m_next, _old, _new = _step(c, n, m, z, i, f)
        h_next = _sigmoid(o) * c_next / n_next
        if offsets_ptr is None:
            c, n, m, h = c_next, n_next, m_next, h_next
        else:  # a sequence that has ended stays as it is
            c, n = tl.where(here, c_next, c), tl.where(here, n_next, n)
            m, h = tl.where(here, m_next, m), tl.where(here, h_next, h)
        tl.store(out_at, h, mask=here)
        if SAVE:
            _store_parts(saved_at, part, here, c, n, m, h)
        if not ON_CHIP:
            tl.debug_barrier()  # the next token reads h from memory
        gate_at += 4 * part
        saved_at += 4 * part
        out_at += part
    _store_parts(final_ptr + state_at, part, inside, c, n, m, h)


@triton.jit
@no_type_check
def _backward_kernel(
    gates_ptr,
    R_ptr,
    start_ptr,
    saved_ptr,
    dout_ptr,
    dfinal_ptr,
    dgates_ptr,
    dstart_ptr,
    offsets_ptr,
    T,
    P,
    H,
    rows_per_group,
    D: tl.constexpr,
    BD: tl.constexpr,
    ROWS: tl.constexpr,
    ON_CHIP: tl.constexpr,
    EXACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    head = tl.program_id(1)
    group, in_group, b, d, inside = _place(rows_per_group, ROWS, BD, D)
    square = (d < D)[:, None] & (d < D)[None, :]
    R_ptr += (group * 4 * H + head) * D * D
    R_size = H * D * D
    if ON_CHIP:
        R_at = R_ptr + d[:, None] * D + d[None, :]
        R_z, R_i, R_f, R_o = _load_parts(R_at, R_size, square, COMPUTE)
        # the transposes are loaded, not made: no dot here takes a transposed register tile
        back_at = R_ptr + d[None, :] * D + d[:, None]
        B_z, B_i, B_f, B_o = _load_parts(back_at, R_size, square, COMPUTE)

    part = H * D
    state_at = (b * 4 * H + head)[:, None] * D + d[None, :]
    first, length, longest = _tokens_of(offsets_ptr, b, in_group, rows_per_group, T, P)
    last = first + longest - 1  # of the longest; others have none of their own there
    token_at = (last * 4 * H + head)[:, None] * D + d[None, :]
    dout_at = dout_ptr + (last * H + head)[:, None] * D + d[None, :]
    dc, dn, _, dh = _load_parts(dfinal_ptr + state_at, part, inside, COMPUTE)
    for back in range(longest):
        t = longest - 1 - back
        here = (t < length)[:, None] & (d < D)[None, :]
        z, i, f, o = _load_parts(gates_ptr + token_at, part, here, COMPUTE)
        if back < longest - 1:
            c, n, m, h = _load_parts(saved_ptr + token_at - 4 * part, part, here, COMPUTE)
        elif start_ptr is not None:
            c, n, m, h = _load_parts(start_ptr + state_at, part, inside, COMPUTE)
        else:
            c, n, m, h = _empty_state(ROWS, BD, COMPUTE)
        R_1, R_2, R_3 = R_ptr + R_size, R_ptr + 2 * R_size, R_ptr + 3 * R_size
        if ON_CHIP:
            z += _product(h, R_z, EXACT)
            i += _product(h, R_i, EXACT)
            f += _product(h, R_f, EXACT)
            o += _product(h, R_o, EXACT)
        else:
            x_at, present = _memory_of_h(saved_ptr, start_ptr, b, first, length, t, H, head, D)
            z += _product_from_memory(x_at, R_ptr, present, d, D, 1, D, EXACT, COMPUTE)
            i += _product_from_memory(x_at, R_1, present, d, D, 1, D, EXACT, COMPUTE)
            f += _product_from_memory(x_at, R_2, present, d, D, 1, D, EXACT, COMPUTE)
            o += _product_from_memory(x_at, R_3, present, d, D, 1, D, EXACT, COMPUTE)
        c_after, n_after, _, old, new = _step(c, n, m, z, i, f)
        n_after = tl.where(here, n_after, 1.0)  # what is outside never was a state
        gate = _sigmoid(o)
        ratio = c_after / n_after
        tanh_z = _tanh(z)
        if offsets_ptr is not None:  # from the end of a sequence on the gradients stay as given
            dc_end, dn_end, dh_end = dc, dn, dh
        dh += tl.load(dout_at, mask=here, other=0.0).to(COMPUTE)
        dc += dh * gate / n_after
        dn -= dh * gate * ratio / n_after
        dz = dc * new * (1.0 - tanh_z * tanh_z)
        di = (dc * tanh_z + dn) * new
        df = (dc * c + dn * n) * old * _sigmoid(-f)
        do = dh * ratio * gate * (1.0 - gate)
        _store_parts(dgates_ptr + token_at, part, here, dz, di, df, do)
        dc *= old
        dn *= old
        if ON_CHIP:
            dh = _product(dz, B_z, EXACT)
            dh += _product(di, B_i, EXACT)
            dh += _product(df, B_f, EXACT)
            dh += _product(do, B_o, EXACT)
        else:
            tl.debug_barrier()  # the products read what was just stored, and R transposed
            present = t < length
            x_at = dgates_ptr + ((first + t) * 4 * H + head) * D
            dh = _product_from_memory(x_at, R_ptr, present, d, 1, D, D, EXACT, COMPUTE)
            x_at += part
            dh += _product_from_memory(x_at, R_1, present, d, 1, D, D, EXACT, COMPUTE)
            x_at += part
            dh += _product_from_memory(x_at, R_2, present, d, 1, D, D, EXACT, COMPUTE)
            x_at += part
            dh += _product_from_memory(x_at, R_3, present, d, 1, D, D, EXACT, COMPUTE)
        if offsets_ptr is not None:
            dc, dn = tl.where(here, dc, dc_end), tl.where(here, dn, dn_end)
            dh = tl.where(here, dh, dh_end)
        token_at -= 4 * part
        dout_at -= part
    if dstart_ptr is not None:
        _store_parts(dstart_ptr + state_at, part, inside, dc, dn, tl.zeros_like(dc), dh)


# ------------------------------------------------------------------------------------- launches


def _sizes(state: Tensor, R: Tensor) -> tuple[int, int, tuple[int, int]]:
    """Sequences per group of R, the padded head size, and the grid."""
    groups, heads, dim = R.shape[0], R.shape[2], R.shape[3]
    rows = len(state) // groups
    return rows, max(16, power_of_two(dim)), (groups * triton.cdiv(rows, ROWS), heads)


def _warps(padded: int) -> int:
    return 4 if padded <= 64 else 8


def _forward(inputs: Inputs, save: bool, offsets: Tensor | None) -> tuple[Tensor, ...]:
    gates, R, initial_state = inputs
    results = _empty(inputs, save, offsets)
    out, state, saved = results
    if state.numel() == 0:
        return results
    rows, padded, grid = _sizes(state, R)
    with on_device_of(gates):
        _forward_kernel[grid](
            gates.contiguous(),
            R.contiguous(),
            None if initial_state is None else initial_state.to(state.dtype).contiguous(),
            out,
            state,
            saved,
            contiguous(offsets),
            gates.shape[1],
            in_a_row(offsets),
            gates.shape[3],
            rows,
            D=gates.shape[4],
            BD=padded,
            ROWS=ROWS,
            ON_CHIP=padded <= ON_CHIP_SIZE,
            SAVE=save,
            EXACT=state.dtype == torch.float64,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=_warps(padded),
        )
    return results


def _empty(inputs: Inputs, save: bool, offsets: Tensor | None) -> tuple[Tensor, ...]:
    """The results, and (c, n, m, h) of every token [B, T, 4, H, D]."""
    h, state, saved = empty_with_states(inputs, in_a_row(offsets))
    return h, state, saved if save else state.new_empty(0)


def _backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    out: Tensor,
    state: Tensor,
    saved: Tensor,
    dout: Tensor,
    dstate: Tensor,
) -> tuple[Tensor, ...]:
    gates, R, initial_state = inputs
    dgates, dR, dstart, none = empty_grads(*inputs, offsets)
    if state.numel() == 0:
        return dgates, dR.zero_(), dstart, none
    rows, padded, grid = _sizes(state, R)
    wide = torch.empty_like(saved)
    with on_device_of(gates):
        _backward_kernel[grid](
            gates.contiguous(),
            R.contiguous(),
            None if initial_state is None else initial_state.to(state.dtype).contiguous(),
            saved,
            dout.contiguous(),
            dstate.contiguous(),
            wide,
            None if initial_state is None else dstart,
            contiguous(offsets),
            gates.shape[1],
            in_a_row(offsets),
            gates.shape[3],
            rows,
            D=gates.shape[4],
            BD=padded,
            ROWS=ROWS,
            ON_CHIP=padded <= ON_CHIP_SIZE,
            EXACT=state.dtype == torch.float64,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=_warps(padded),
        )
    h = saved[:, :, 3]
    first = torch.zeros_like(state[:, 3]) if initial_state is None else initial_state[:, 3]
    packing = None if offsets is None else Packing(offsets, gates.shape[1])
    before = previous(h, first.to(h.dtype), packing).unflatten(0, (R.shape[0], -1))
    per_group = wide.unflatten(0, (R.shape[0], -1))
    dR.copy_(torch.einsum("gbthd,gbtxhe->gxhde", before, per_group))
    return dgates.copy_(wide), dR, dstart, none


_op = differentiable_op(
    SPEC,
    "triton",
    forward=_forward,
    backward=_backward,
    empty=_empty,
    options="bool save, Tensor? offsets",
    saved=("saved",),
)
