"""`short_convolution` in one pass over memory: one kernel forward, one backward.

Letters: B batch, T time, C channels, W width, G groups. One program takes a block of channels of
one batch row through a segment of time with the last W - 1 inputs in registers, so every input is
read once. Four tokens are loaded while four are computed. The sums z are not kept: the backward
walks a segment from its end to its start with two windows in registers, of the inputs and of dz,
computes z again, and gets dx_t from dz_t .. dz_{t+W-1} and the gradient of the weights on the way.
It starts W - 1 tokens behind the segment's end, whose dz the segment's last tokens need; the first
segment walks on into the initial state. The weights' gradients leave as one part per program and
are added up outside: the result does not depend on the order of programs.

Where a row is cut into P pieces (`Pieces`), a piece is what a row is above, walked in one go.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._pieces import Pieces, in_a_row
from statetrack.ops._register import compute_dtype, differentiable_op, empty_grads
from statetrack.ops._triton._rows import place
from statetrack.ops._triton._runtime import check_version, on_device_of, power_of_two, triton_dtype

__all__ = ["short_convolution"]

SEGMENT = 128  # tokens of one program


def short_convolution(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None,
    use_silu: bool,
    initial_state: Float[Tensor, "batch past channels"] | None,
    pieces: Pieces | None = None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "sequences past channels"]]:
    """See `statetrack.ops.short_convolution`."""
    check_version()
    bias = None if bias is None else bias.unsqueeze(0)
    offsets = None if pieces is None else pieces.offsets
    y, state = _op(x, weight.unsqueeze(0), bias, use_silu, initial_state, offsets)
    return y, state


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _input(x_ptr, start_ptr, t, T, channels, c, W: tl.constexpr, COMPUTE: tl.constexpr):
    """Input t of one sequence: from x, before it from the initial state, else zeros."""
    limit = tl.where((t >= 0) & (t < T), channels, 0)
    x = tl.load(x_ptr + t * channels + c, mask=c < limit, other=0.0).to(COMPUTE)
    if start_ptr is not None:
        limit = tl.where((t < 0) & (t > -W), channels, 0)
        before = start_ptr + (t + W - 1) * channels + c
        x += tl.load(before, mask=c < limit, other=0.0).to(COMPUTE)
    return x


@triton.jit
@no_type_check
def _four_inputs(
    x_ptr, start_ptr, t, STEP: tl.constexpr, T, channels, c, W: tl.constexpr, COMPUTE: tl.constexpr
):
    """Inputs t, t + STEP, t + 2 STEP, t + 3 STEP."""
    x0 = _input(x_ptr, start_ptr, t, T, channels, c, W, COMPUTE)
    x1 = _input(x_ptr, start_ptr, t + STEP, T, channels, c, W, COMPUTE)
    x2 = _input(x_ptr, start_ptr, t + 2 * STEP, T, channels, c, W, COMPUTE)
    x3 = _input(x_ptr, start_ptr, t + 3 * STEP, T, channels, c, W, COMPUTE)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def _sigmoid(z):
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
@no_type_check
def _forward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    offsets_ptr,
    time,
    channels,
    P,
    rows_per_group,
    W: tl.constexpr,
    SEGMENT: tl.constexpr,
    BC: tl.constexpr,
    SILU: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    group = b // rows_per_group
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    line, start, T = place(offsets_ptr, b, time, P)
    first = tl.program_id(2) * SEGMENT
    last = T if offsets_ptr is not None else tl.minimum(first + SEGMENT, T)
    x_ptr += (line * time + start) * channels
    y_ptr += (line * time + start) * channels
    final_ptr += b * (W - 1) * channels
    if start_ptr is not None:
        start_ptr += b * (W - 1) * channels

    at = weight_ptr + (group * channels + c) * W
    weight = ()
    window = ()
    for j in tl.static_range(W):
        weight = weight + (tl.load(at + j, mask=c < channels, other=0.0).to(COMPUTE),)
        if j < W - 1:
            t = first - (W - 1) + j
            window = window + (_input(x_ptr, start_ptr, t, T, channels, c, W, COMPUTE),)
    bias = tl.zeros([BC], COMPUTE)
    if bias_ptr is not None:
        bias += tl.load(bias_ptr + group * channels + c, mask=c < channels, other=0.0).to(COMPUTE)

    here = _four_inputs(x_ptr, start_ptr, first, 1, T, channels, c, W, COMPUTE)
    for t in range(first, last, 4):
        later = _four_inputs(x_ptr, start_ptr, t + 4, 1, T, channels, c, W, COMPUTE)
        for i in tl.static_range(4):
            window = window + (here[i],)
            z = bias
            for j in tl.static_range(W):
                z += weight[j] * window[j]
            if SILU:
                z = z * _sigmoid(z)
            limit = tl.where(t + i < last, channels, 0)
            tl.store(y_ptr + (t + i) * channels + c, z, mask=c < limit)
            window = window[1:]
        here = later
    if last == T:
        for j in tl.static_range(W - 1):
            x = _input(x_ptr, start_ptr, T - (W - 1) + j, T, channels, c, W, COMPUTE)
            tl.store(final_ptr + j * channels + c, x, mask=c < channels)


@triton.jit
@no_type_check
def _backward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    start_ptr,
    dy_ptr,
    dfinal_ptr,
    dx_ptr,
    dstart_ptr,
    parts_ptr,
    offsets_ptr,
    time,
    channels,
    P,
    rows_per_group,
    segments,
    W: tl.constexpr,
    SEGMENT: tl.constexpr,
    BC: tl.constexpr,
    SILU: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """parts [BP, segments, W + 1, C]: the gradients of the taps and, last, of the bias."""
    b = tl.program_id(0).to(tl.int64)
    group = b // rows_per_group
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    segment = tl.program_id(2)
    line, start, T = place(offsets_ptr, b, time, P)
    first = segment * SEGMENT
    last = T if offsets_ptr is not None else tl.minimum(first + SEGMENT, T)
    x_ptr += (line * time + start) * channels
    dy_ptr += (line * time + start) * channels
    dx_ptr += (line * time + start) * channels
    if dfinal_ptr is not None:
        dfinal_ptr += b * (W - 1) * channels
    if start_ptr is not None:
        start_ptr += b * (W - 1) * channels
        dstart_ptr += b * (W - 1) * channels

    top = last + W - 2  # the first token of the walk
    at = weight_ptr + (group * channels + c) * W
    weight = ()
    window = ()  # inputs t-W+2 .. t; input t-W+1 comes from memory
    dz_later = ()  # dz_{t+1} .. dz_{t+W-1}
    dweight = ()
    for j in tl.static_range(W):
        weight = weight + (tl.load(at + j, mask=c < channels, other=0.0).to(COMPUTE),)
        dweight = dweight + (tl.zeros([BC], COMPUTE),)
        if j < W - 1:
            t = top - (W - 2) + j
            window = window + (_input(x_ptr, start_ptr, t, T, channels, c, W, COMPUTE),)
            dz_later = dz_later + (tl.zeros([BC], COMPUTE),)
    dbias = tl.zeros([BC], COMPUTE)
    bias = tl.zeros([BC], COMPUTE)
    if bias_ptr is not None:
        bias += tl.load(bias_ptr + group * channels + c, mask=c < channels, other=0.0).to(COMPUTE)

    end = first
    if start_ptr is not None:
        end = tl.where(first == 0, 1 - W, first)
    oldest = top - (W - 1)
    xs = _four_inputs(x_ptr, start_ptr, oldest, -1, T, channels, c, W, COMPUTE)
    dys = _four_inputs(dy_ptr, None, top, -1, T, channels, c, W, COMPUTE)
    for step in range(0, top - end + 1, 4):
        t = top - step
        xs_next = _four_inputs(x_ptr, start_ptr, t - W - 3, -1, T, channels, c, W, COMPUTE)
        dys_next = _four_inputs(dy_ptr, None, t - 4, -1, T, channels, c, W, COMPUTE)
        for i in tl.static_range(4):
            window = (xs[i],) + window
            dz = dys[i]
            if SILU:
                z = bias
                for j in tl.static_range(W):
                    z += weight[j] * window[j]
                gate = _sigmoid(z)
                slope = gate * (1.0 + z * (1.0 - gate))
                # beyond the sequence dy is 0, and so is dz whatever z is
                dz = tl.where((t - i >= 0) & (t - i < T), dz * slope, 0.0)
            dx = weight[W - 1] * dz
            for j in tl.static_range(W - 1):
                dx += weight[W - 2 - j] * dz_later[j]
            if dfinal_ptr is not None:  # the last W - 1 inputs are the final state too
                row = t - i - T + W - 1
                limit = tl.where((row >= 0) & (t - i < T), channels, 0)
                final = tl.load(dfinal_ptr + row * channels + c, mask=c < limit, other=0.0)
                dx += final.to(COMPUTE)
            limit = tl.where((t - i >= first) & (t - i < last), channels, 0)
            tl.store(dx_ptr + (t - i) * channels + c, dx, mask=c < limit)
            if start_ptr is not None:
                limit = tl.where((t - i < 0) & (t - i >= end), channels, 0)
                before = dstart_ptr + (t - i + W - 1) * channels + c
                tl.store(before, dx, mask=c < limit)
            dz_later = (dz,) + dz_later
            dz_later = dz_later[: W - 1]
            dz = tl.where((t - i >= first) & (t - i < last), dz, 0.0)  # counted here, once
            dbias += dz
            sums = ()
            for j in tl.static_range(W):
                sums = sums + (dweight[j] + dz * window[j],)
            dweight = sums
            window = window[: W - 1]
        xs = xs_next
        dys = dys_next

    parts_ptr += (b * segments + segment) * (W + 1) * channels
    for j in tl.static_range(W):
        tl.store(parts_ptr + j * channels + c, dweight[j], mask=c < channels)
    tl.store(parts_ptr + W * channels + c, dbias, mask=c < channels)


# ------------------------------------------------------------------------------------- launches


def _block(channels: int) -> int:
    """Channels of a program, which is one warp."""
    return min(power_of_two(channels), 128)


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    use_silu: bool,
    initial_state: Tensor | None,
    offsets: Tensor | None,
) -> tuple[Tensor, ...]:
    y, state = _forward_fake(x, weight, bias, use_silu, initial_state, offsets)
    if x.numel() == 0:
        return y, state
    _, time, channels = x.shape
    sequences, block = len(state), _block(channels)
    segments = 1 if offsets is not None else triton.cdiv(time, SEGMENT)
    with on_device_of(x):
        _forward_kernel[(sequences, triton.cdiv(channels, block), segments)](
            x.contiguous(),
            weight.contiguous(),
            _contiguous(bias),
            _contiguous(initial_state),
            y,
            state,
            _contiguous(offsets),
            time,
            channels,
            in_a_row(offsets),
            sequences // weight.shape[0],
            W=weight.shape[2],
            SEGMENT=SEGMENT,
            BC=block,
            SILU=use_silu,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=1,
        )
    return y, state


def _forward_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    use_silu: bool,
    initial_state: Tensor | None,
    offsets: Tensor | None,
) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(x, weight, bias, initial_state)
    past = (x.shape[0] * in_a_row(offsets), weight.shape[2] - 1, x.shape[2])
    return x.new_empty(x.shape), x.new_empty(past, dtype=dtype)


def _backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    use_silu: bool,
    initial_state: Tensor | None,
    offsets: Tensor | None,
    y: Tensor,
    state: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
) -> tuple[Tensor, ...]:
    grads = _backward_fake(x, weight, bias, use_silu, initial_state)
    dx, dweight, dbias, dstart, none = grads
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_(), dstart, none
    _, time, channels = x.shape
    groups, _, width = weight.shape
    sequences, block = len(state), _block(channels)
    segments = 1 if offsets is not None else triton.cdiv(time, SEGMENT)
    parts = state.new_empty(sequences, segments, width + 1, channels)
    with on_device_of(x):
        _backward_kernel[(sequences, triton.cdiv(channels, block), segments)](
            x.contiguous(),
            weight.contiguous(),
            _contiguous(bias),
            _contiguous(initial_state),
            dy.contiguous(),
            _contiguous(dstate),
            dx,
            dstart,
            parts,
            _contiguous(offsets),
            time,
            channels,
            in_a_row(offsets),
            sequences // groups,
            segments,
            W=width,
            SEGMENT=SEGMENT,
            BC=block,
            SILU=use_silu,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=1,
        )
    sums = parts.view(groups, -1, width + 1, channels).sum(1)
    dweight.copy_(sums[:, :width].mT)
    if bias is not None:
        dbias.copy_(sums[:, width])
    return grads


def _backward_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    use_silu: bool,
    initial_state: Tensor | None,
    *_: Tensor | None,
) -> tuple[Tensor, ...]:
    inputs = (x, weight, bias, initial_state, None)  # offsets have no gradient
    return empty_grads(*inputs)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


_INPUTS = (
    "Tensor x, Tensor weight, Tensor? bias, bool use_silu, Tensor? initial_state, Tensor? offsets"
)
_op = differentiable_op(
    "short_convolution_triton",
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
    forward=_forward,
    forward_fake=_forward_fake,
    backward_schema=(
        f"({_INPUTS}, Tensor y, Tensor state, Tensor dy, Tensor? dstate)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
    backward=_backward,
    backward_fake=_backward_fake,
    num_outputs=2,
)
