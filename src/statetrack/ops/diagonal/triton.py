"""`diagonal_scan`, real or complex: one kernel forward, one backward.

A program runs a block of M = prod(dim) elements of one sequence through time, four tokens at a
time; the next four are loaded meanwhile. Complex numbers travel as (real, imaginary) pairs.
The backward is the same scan from the last token to the first,

    g_t = dh_t + conj(a_{t+1}) g_{t+1},    dx_t = g_t,    da_t = g_t conj(h_{t-1}),

and needs nothing but a and the states, which are the op's output. Both kernels move the fewest
bytes possible: each input is read once and each output written once.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops._triton.rows import place
from statetrack.ops._triton.runtime import check_version, contiguous, on_device_of
from statetrack.ops.diagonal.spec import SPEC, Inputs
from statetrack.ops.packing import Packing, in_a_row

__all__ = ["diagonal_scan"]

BLOCK = 64  # elements per program, which is one warp


def diagonal_scan(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.diagonal_scan`."""
    check_version()
    states, final_state = _op(*inputs, None if packing is None else packing.offsets)
    return states, final_state


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _load(ptr, row, index, size, COMPLEX: tl.constexpr):
    """(real, imaginary) of row `row` of a [rows, size] array; zeros where index >= size."""
    if COMPLEX:
        at = ptr + (row * size + index) * 2
        return tl.load(at, mask=index < size, other=0.0), tl.load(
            at + 1, mask=index < size, other=0.0
        )
    else:
        x = tl.load(ptr + row * size + index, mask=index < size, other=0.0)
        return x, x


@triton.jit
@no_type_check
def _store(ptr, row, index, size, real, imag, COMPLEX: tl.constexpr):
    if COMPLEX:
        at = ptr + (row * size + index) * 2
        tl.store(at, real, mask=index < size)
        tl.store(at + 1, imag, mask=index < size)
    else:
        tl.store(ptr + row * size + index, real, mask=index < size)


@triton.jit
@no_type_check
def _load_four(ptr, row, STEP: tl.constexpr, edge, m, size, COMPLEX: tl.constexpr):
    """Four rows from `row` on, up or down, and beyond `edge` that one again: (real, imaginary)."""
    real, imag = (), ()
    for i in tl.static_range(4):
        at = row + STEP * i
        if i > 0:
            at = tl.minimum(at, edge) if STEP > 0 else tl.maximum(at, edge)
        x, y = _load(ptr, at, m, size, COMPLEX)
        real, imag = real + (x,), imag + (y,)
    return real, imag


@triton.jit
@no_type_check
def _multiply_add(ar, ai, br, bi, cr, ci, SIGN: tl.constexpr, COMPLEX: tl.constexpr):
    """a b + c, or conj(a) b + c for SIGN = -1."""
    if COMPLEX:
        return ar * br - SIGN * ai * bi + cr, ar * bi + SIGN * ai * br + ci
    else:
        x = ar * br + cr
        return x, x


@triton.jit
@no_type_check
def _forward_kernel(
    decay_ptr,
    inputs_ptr,
    start_ptr,
    states_ptr,
    final_ptr,
    offsets_ptr,
    time,
    P,
    size,
    BLOCK: tl.constexpr,
    COMPLEX: tl.constexpr,
):
    blocks = tl.cdiv(size, BLOCK)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    m = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    row, begin, T = place(offsets_ptr, b, time, P)
    first = row * time + begin
    last = first + T - 1
    hr = tl.zeros([BLOCK], states_ptr.dtype.element_ty)
    hi = hr
    if start_ptr is not None:
        hr, hi = _load(start_ptr, b, m, size, COMPLEX)
    for t in range(0, T, 4):
        row = first + t
        # past the end the last token is read again, and neither stored nor added
        ar, ai = _load_four(decay_ptr, row, 1, last, m, size, COMPLEX)
        xr, xi = _load_four(inputs_ptr, row, 1, last, m, size, COMPLEX)
        for i in tl.static_range(4):
            if t + i < T:
                hr, hi = _multiply_add(ar[i], ai[i], hr, hi, xr[i], xi[i], 1, COMPLEX)
                _store(states_ptr, row + i, m, size, hr, hi, COMPLEX)
    _store(final_ptr, b, m, size, hr, hi, COMPLEX)


@triton.jit
@no_type_check
def _step_back(
    gr,
    gi,
    ar,
    ai,
    hr,
    hi,
    dr,
    di,
    ddecay_ptr,
    dinputs_ptr,
    row,
    m,
    size,
    COMPLEX: tl.constexpr,
):
    """One token: g += dh, dx = g, da = g conj(h before); returns conj(a) g."""
    gr += dr
    if COMPLEX:
        gi += di
        dar, dai = _multiply_add(hr, hi, gr, gi, 0.0, 0.0, -1, COMPLEX)
        nr, ni = _multiply_add(ar, ai, gr, gi, 0.0, 0.0, -1, COMPLEX)
    else:
        gi = gr
        dar, dai = gr * hr, gi
        nr, ni = ar * gr, gi
    _store(dinputs_ptr, row, m, size, gr, gi, COMPLEX)
    _store(ddecay_ptr, row, m, size, dar, dai, COMPLEX)
    return nr, ni


@triton.jit
@no_type_check
def _backward_kernel(
    decay_ptr,
    states_ptr,
    start_ptr,
    dstates_ptr,
    dfinal_ptr,
    ddecay_ptr,
    dinputs_ptr,
    dstart_ptr,
    offsets_ptr,
    time,
    P,
    size,
    BLOCK: tl.constexpr,
    COMPLEX: tl.constexpr,
):
    blocks = tl.cdiv(size, BLOCK)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    m = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    row, begin, T = place(offsets_ptr, b, time, P)
    first = row * time + begin
    gr, gi = _load(dfinal_ptr, b, m, size, COMPLEX)
    # tokens T-1 to 1 in groups of four, then token 0, whose state before is the start
    for t in range(T - 1, 0, -4):
        row = first + t
        ar, ai = _load_four(decay_ptr, row, -1, first, m, size, COMPLEX)
        dr, di = _load_four(dstates_ptr, row, -1, first, m, size, COMPLEX)
        hr, hi = _load_four(states_ptr, row - 1, -1, first, m, size, COMPLEX)
        for i in tl.static_range(4):
            if i == 0 or t > i:
                gr, gi = _step_back(
                    gr,
                    gi,
                    ar[i],
                    ai[i],
                    hr[i],
                    hi[i],
                    dr[i],
                    di[i],
                    ddecay_ptr,
                    dinputs_ptr,
                    row - i,
                    m,
                    size,
                    COMPLEX,
                )
    hr = tl.zeros([BLOCK], decay_ptr.dtype.element_ty)
    hi = hr
    if start_ptr is not None:
        hr, hi = _load(start_ptr, b, m, size, COMPLEX)
    if T > 0:
        ar, ai = _load(decay_ptr, first, m, size, COMPLEX)
        dr, di = _load(dstates_ptr, first, m, size, COMPLEX)
        gr, gi = _step_back(
            gr, gi, ar, ai, hr, hi, dr, di, ddecay_ptr, dinputs_ptr, first, m, size, COMPLEX
        )
    if dstart_ptr is not None:
        _store(dstart_ptr, b, m, size, gr, gi, COMPLEX)


# ------------------------------------------------------------------------------------- launches


def _real(x: Tensor | None) -> Tensor | None:
    """Contiguous; complex numbers as pairs of real ones."""
    if x is None:
        return None
    x = x.resolve_conj().contiguous()
    return torch.view_as_real(x) if x.is_complex() else x


def _empty(inputs: Inputs, offsets: Tensor | None) -> tuple[Tensor, ...]:
    return SPEC.empty(inputs, in_a_row(offsets))


def _forward(inputs: Inputs, offsets: Tensor | None) -> tuple[Tensor, ...]:
    decay, x, initial_state = inputs
    states, final = _empty(inputs, offsets)
    if final.numel() == 0:
        return states, final
    size = final[0].numel()
    with on_device_of(x):
        _forward_kernel[(final.shape[0] * triton.cdiv(size, BLOCK),)](
            _real(decay),
            _real(x),
            _real(initial_state),
            _real(states),
            _real(final),
            contiguous(offsets),
            x.shape[1],
            in_a_row(offsets),
            size,
            BLOCK=BLOCK,
            COMPLEX=x.is_complex(),
            num_warps=1,
        )
    return states, final


def _backward(
    inputs: Inputs,
    offsets: Tensor | None,
    states: Tensor,
    final: Tensor,
    dstates: Tensor,
    dfinal: Tensor,
) -> tuple[Tensor, ...]:
    decay, _, initial_state = inputs
    grads = empty_grads(*inputs, offsets)
    ddecay, dinputs, dstart, _ = grads
    if final.numel() == 0:
        return grads
    size = final[0].numel()
    with on_device_of(states):
        _backward_kernel[(final.shape[0] * triton.cdiv(size, BLOCK),)](
            _real(decay),
            _real(states),
            _real(initial_state),
            _real(dstates),
            _real(dfinal),
            _real(ddecay),
            _real(dinputs),
            None if initial_state is None else _real(dstart),
            contiguous(offsets),
            states.shape[1],
            in_a_row(offsets),
            size,
            BLOCK=BLOCK,
            COMPLEX=states.is_complex(),
            num_warps=1,
        )
    return grads


_op = differentiable_op(
    SPEC,
    "triton",
    forward=_forward,
    backward=_backward,
    empty=_empty,
    options="Tensor? offsets",
)
