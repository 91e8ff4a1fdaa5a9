"""`short_convolution` in one pass over memory: one kernel forward, one backward.

Letters: B batch, T time, C channels, W width, G groups, P sequences packed into a row. One program
takes a block of channels of one batch row through a segment of time, from its start to its end and
across the borders of pieces, with the last W - 1 inputs in registers, so every input is read once,
where it lies: rows of x may be parts of wider ones.
Four tokens are loaded while four are computed. Where a piece ends these registers are its final
state: they are stored, and hold the initial state of the next piece from then on. A program finds
its first piece in the offsets and has the ends of two pieces at hand from there on, so that a token
which begins no piece costs one comparison more. Without pieces a row is one.

The sums z are not kept: the backward computes them again from the same window. Token t gives its
part of dx_{t-W+1} .. dx_t, which wait in registers too; the oldest is then complete, and where a
piece ends all of them are. A program goes on W - 1 tokens behind its segment, whose dz the
segment's last inputs need. The weights' gradients leave as one part per program and are added up
outside: the result does not depend on the order of programs.

y may be up to three tensors, which share its channels, with a gradient each: a program has the
channels of one of them.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads
from statetrack.ops._triton.runtime import (
    by_token,
    check_version,
    contiguous,
    on_device_of,
    power_of_two,
    triton_dtype,
)
from statetrack.ops.convolution.spec import SPEC, Inputs, in_groups
from statetrack.ops.packing import Packing, in_a_row

__all__ = ["short_convolution"]

SEGMENT = 256  # tokens of one program
PACKED = 128  # the same where a row holds several sequences
SHORTEST = 32  # the same where that would leave too few programs
PROGRAMS = 2048  # that keep a large GPU busy


def short_convolution(
    inputs: Inputs, packing: Packing | None = None, sizes: tuple[int, ...] | None = None
) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
    """See `statetrack.ops.short_convolution`."""
    check_version()
    offsets = None if packing is None else packing.offsets
    given = (*in_groups(inputs), offsets)
    if sizes is not None and _in_blocks(sizes):
        _, second, third = (*sizes, 0, 0)[:3]
        *parts, state = _op(*given, second, third)
        return tuple(parts[: len(sizes)]), state
    y, _, _, state = _op(*given, 0, 0)
    return y if sizes is None else y.split(sizes, dim=-1), state


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _input(
    x_ptr,
    x_token,
    start_ptr,
    sequence,
    t,
    begin,
    channels,
    c,
    W: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Input t < 0 of a piece: before its begin it is of the initial state, or zeros."""
    inside = c < channels
    x = tl.load(x_ptr + t * x_token + c, mask=inside & (t >= begin), other=0.0).to(COMPUTE)
    if start_ptr is not None:
        age = t - begin
        before = start_ptr + (sequence * (W - 1) + age + W - 1) * channels + c
        x += tl.load(before, mask=inside & (age < 0) & (age > -W), other=0.0).to(COMPUTE)
    return x


@triton.jit
@no_type_check
def _four(x_ptr, t, T, token, c, inside):
    """Tokens t to t + 3, each `token` numbers on, as they are in memory; zeros from T on."""
    x_ptr += t * token + c
    x0 = tl.load(x_ptr, mask=inside & (t < T), other=0.0)
    x1 = tl.load(x_ptr + token, mask=inside & (t + 1 < T), other=0.0)
    x2 = tl.load(x_ptr + 2 * token, mask=inside & (t + 2 < T), other=0.0)
    x3 = tl.load(x_ptr + 3 * token, mask=inside & (t + 3 < T), other=0.0)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def _part(y_ptr, second_ptr, third_ptr, token, channel, channels, second, third):
    """(where channel 0 of a token would be, channels of a token) in the part with `channel`."""
    size = channels
    begin = 0
    if second_ptr is not None:  # selected, not branched to: what is a multiple of 16 remains one
        first = channels - second - third
        y_ptr = tl.where(channel < first, y_ptr, second_ptr)
        begin = tl.where(channel < first, 0, first)
        size = tl.where(channel < first, first, second)
        y_ptr = tl.where(channel < first + second, y_ptr, third_ptr)
        begin = tl.where(channel < first + second, begin, first + second)
        size = tl.where(channel < first + second, size, third)
    return y_ptr + token * size - begin, size


@triton.jit
@no_type_check
def _piece_of(offsets_ptr, t, P):
    """The last piece that begins at or before token t of a row, P for its end; 0 if none does."""
    lane = tl.arange(0, 128)
    piece = 0
    count = P + 1  # offsets that are left to search
    while count > 1:
        step = tl.cdiv(count, 128)
        begin = tl.load(offsets_ptr + piece + lane * step, mask=lane * step < count, other=t + 1)
        ahead = tl.maximum(tl.sum((begin <= t).to(tl.int32)) - 1, 0) * step
        piece += ahead
        count = tl.minimum(step, count - ahead)
    return piece


@triton.jit
@no_type_check
def _begin(offsets_ptr, piece, first, P):
    """Where a piece of a row begins, counted from token `first`; from piece P on, the row's end."""
    return tl.load(offsets_ptr + tl.minimum(piece, P)).to(tl.int32) - first


@triton.jit
@no_type_check
def _place(offsets_ptr, first, T, P):
    """The piece of the token before `first`: (which, begin, end, end of the next one).

    In a row that begins with `first` it is the first piece. Without offsets the row is one.
    """
    piece = 0
    begin = -first
    border = T
    after = T
    if offsets_ptr is not None:
        piece = _piece_of(offsets_ptr, first - 1, P)
        begin = _begin(offsets_ptr, piece, first, P)
        border = _begin(offsets_ptr, piece + 1, first, P)
        after = _begin(offsets_ptr, piece + 2, first, P)
    return piece, begin, border, after


@triton.jit
@no_type_check
def _next(offsets_ptr, piece, border, after, first, T, P):
    """From a piece that ends at `border` to the next with a token: as `_place`, without begin."""
    t = border
    piece += 1
    border = after
    after = _begin(offsets_ptr, piece + 2, first, P)
    while (border == t) & (t < T) & (piece < P):
        piece += 1
        border = after
        after = _begin(offsets_ptr, piece + 2, first, P)
    return piece, border, after


@triton.jit
@no_type_check
def _start_of(
    start_ptr, sequence, channels, c, BC: tl.constexpr, W: tl.constexpr, COMPUTE: tl.constexpr
):
    """The W - 1 inputs before a piece: its initial state, or zeros."""
    window = ()
    for j in tl.static_range(W - 1):
        x = tl.zeros([BC], COMPUTE)
        if start_ptr is not None:
            at = start_ptr + (sequence * (W - 1) + j) * channels + c
            x += tl.load(at, mask=c < channels, other=0.0).to(COMPUTE)
        window = window + (x,)
    return window


@triton.jit
@no_type_check
def _store_state(final_ptr, sequence, state, channels, c, W: tl.constexpr):
    for j in tl.static_range(W - 1):
        at = final_ptr + (sequence * (W - 1) + j) * channels + c
        tl.store(at, state[j], mask=c < channels)


@triton.jit
@no_type_check
def _sigmoid(z, ASM: tl.constexpr):
    """With ASM in the two instructions of the GPU, which take numbers below 2^-126 for zeros."""
    if ASM:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .f32 e;
            mul.f32 e, $1, 0fBFB8AA3B;
            ex2.approx.ftz.f32 e, e;
            add.f32 e, e, 0f3F800000;
            rcp.approx.ftz.f32 $0, e;
            }
            """,
            "=f,f",
            [z],
            tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
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
    x_token,
    P,
    rows_per_group,
    second_ptr,
    third_ptr,
    second,
    third,
    W: tl.constexpr,
    SEGMENT: tl.constexpr,
    BC: tl.constexpr,
    SILU: tl.constexpr,
    COMPUTE: tl.constexpr,
    ASM: tl.constexpr,
):
    """`y_ptr` is the first part of y; the others, if any, have `second` and `third` channels.

    Tokens of x are `x_token` numbers apart, or None: their channels.
    """
    b = tl.program_id(0).to(tl.int64)
    group = b // rows_per_group
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < channels
    first = tl.program_id(2) * SEGMENT  # of the row; tokens are counted from here on
    T = time - first
    last = tl.minimum(SEGMENT, T)
    token, channel = b * time + first, tl.program_id(1) * BC
    if x_token is None:
        x_token = channels
    x_ptr += token * x_token
    y_ptr, size = _part(y_ptr, second_ptr, third_ptr, token, channel, channels, second, third)
    if offsets_ptr is not None:
        offsets_ptr += b * (P + 1)
    piece, begin, border, after = _place(offsets_ptr, first, T, P)
    sequence = b * P + piece

    at = weight_ptr + (group * channels + c) * W
    weight = ()
    window = ()
    for j in tl.static_range(W):
        weight = weight + (tl.load(at + j, mask=inside, other=0.0).to(COMPUTE),)
        if j < W - 1:
            t = j - (W - 1)
            x = _input(x_ptr, x_token, start_ptr, sequence, t, begin, channels, c, W, COMPUTE)
            window = window + (x,)
    bias = tl.zeros([BC], COMPUTE)
    if bias_ptr is not None:
        bias += tl.load(bias_ptr + group * channels + c, mask=inside, other=0.0).to(COMPUTE)

    here = _four(x_ptr, 0, T, x_token, c, inside)
    end = last + (last == T).to(tl.int32)  # the end of a row is a border to come to
    for t in range(0, end, 4):
        later = _four(x_ptr, t + 4, T, x_token, c, inside)
        for i in tl.static_range(4):
            if t + i == border:
                _store_state(final_ptr, b * P + piece, window, channels, c, W)
                if offsets_ptr is not None:
                    piece, border, after = _next(offsets_ptr, piece, border, after, first, T, P)
                    sequence = b * P + tl.minimum(piece, P - 1)
                    window = _start_of(start_ptr, sequence, channels, c, BC, W, COMPUTE)
            window = window + (here[i].to(COMPUTE),)
            z = bias
            for j in tl.static_range(W):
                z += weight[j] * window[j]
            if SILU:
                z = z * _sigmoid(z, ASM)
            tl.store(y_ptr + (t + i) * size + c, z, mask=inside & (t + i < last))
            window = window[1:]
        here = later
    if offsets_ptr is not None:
        share = tl.cdiv(P, tl.num_programs(2))  # of the row's pieces; the empty ones are not met
        lowest = tl.program_id(2) * share
        for other in range(lowest, tl.minimum(lowest + share, P)):
            if tl.load(offsets_ptr + other) == tl.load(offsets_ptr + other + 1):
                start = _start_of(start_ptr, b * P + other, channels, c, BC, W, COMPUTE)
                _store_state(final_ptr, b * P + other, start, channels, c, W)


@triton.jit
@no_type_check
def _give(dx_ptr, dstart_ptr, sequence, dx, row, begin, last, channels, c, W: tl.constexpr):
    """Stores the gradient of input `row` of a piece if it is one from token 0 to `last` - 1.

    Those before the piece are of its initial state, if there is one: where it begins, it is stored.
    """
    inside = c < channels
    wanted = inside & (row >= begin) & (row >= 0) & (row < last)
    tl.store(dx_ptr + row * channels + c, dx, mask=wanted)
    if dstart_ptr is not None:
        at = dstart_ptr + (sequence * (W - 1) + row - begin + W - 1) * channels + c
        before = inside & (row < begin) & (row > begin - W) & (begin >= 0) & (begin < last)
        tl.store(at, dx, mask=before)


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
    x_token,
    P,
    rows_per_group,
    segments,
    second_ptr,
    third_ptr,
    second,
    third,
    W: tl.constexpr,
    SEGMENT: tl.constexpr,
    BC: tl.constexpr,
    SILU: tl.constexpr,
    COMPUTE: tl.constexpr,
    ASM: tl.constexpr,
):
    """parts [B, segments, W + 1, C]: the gradients of the taps and, last, of the bias.

    `dy_ptr` is the gradient of the first part of y; the others' are as in the forward.
    """
    b = tl.program_id(0).to(tl.int64)
    group = b // rows_per_group
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = c < channels
    segment = tl.program_id(2)
    first = segment * SEGMENT
    T = time - first
    last = tl.minimum(SEGMENT, T)
    token, channel = b * time + first, tl.program_id(1) * BC
    if x_token is None:
        x_token = channels
    x_ptr += token * x_token
    dx_ptr += token * channels
    dy_ptr, size = _part(dy_ptr, second_ptr, third_ptr, token, channel, channels, second, third)
    if offsets_ptr is not None:
        offsets_ptr += b * (P + 1)
    piece, begin, border, after = _place(offsets_ptr, first, T, P)
    sequence = b * P + piece

    at = weight_ptr + (group * channels + c) * W
    weight = ()
    window = ()  # inputs t-W+1 .. t-1
    dxs = ()  # of them, what tokens before t gave
    dweight = ()
    nothing = ()
    for j in tl.static_range(W):
        weight = weight + (tl.load(at + j, mask=inside, other=0.0).to(COMPUTE),)
        dweight = dweight + (tl.zeros([BC], COMPUTE),)
        if j < W - 1:
            t = j - (W - 1)
            x = _input(x_ptr, x_token, start_ptr, sequence, t, begin, channels, c, W, COMPUTE)
            window = window + (x,)
            dxs = dxs + (tl.zeros([BC], COMPUTE),)
            nothing = nothing + (tl.zeros([BC], COMPUTE),)
    dbias = tl.zeros([BC], COMPUTE)
    bias = tl.zeros([BC], COMPUTE)
    if bias_ptr is not None:
        bias += tl.load(bias_ptr + group * channels + c, mask=inside, other=0.0).to(COMPUTE)

    xs = _four(x_ptr, 0, T, x_token, c, inside)
    dys = _four(dy_ptr, 0, T, size, c, inside)
    for step in range(0, last + W - 1, 4):
        xs_next = _four(x_ptr, step + 4, T, x_token, c, inside)
        dys_next = _four(dy_ptr, step + 4, T, size, c, inside)
        for i in tl.static_range(4):
            t = step + i
            if t == border:
                for j in tl.static_range(W - 1):
                    dx = dxs[j]
                    if dfinal_ptr is not None:  # the last W - 1 inputs are the final state too
                        given_at = dfinal_ptr + (sequence * (W - 1) + j) * channels + c
                        dx += tl.load(given_at, mask=inside, other=0.0).to(COMPUTE)
                    row = t + j - (W - 1)
                    _give(dx_ptr, dstart_ptr, sequence, dx, row, begin, last, channels, c, W)
                begin = t  # what comes now is for the next piece
                dxs = nothing
                window = nothing
                if offsets_ptr is not None:
                    piece, border, after = _next(offsets_ptr, piece, border, after, first, T, P)
                    sequence = b * P + tl.minimum(piece, P - 1)
                    window = _start_of(start_ptr, sequence, channels, c, BC, W, COMPUTE)
            window = window + (xs[i].to(COMPUTE),)
            dz = dys[i].to(COMPUTE)
            if SILU:
                z = bias
                for j in tl.static_range(W):
                    z += weight[j] * window[j]
                gate = _sigmoid(z, ASM)
                dz *= gate * (1.0 + z * (1.0 - gate))
            dxs = dxs + (tl.zeros([BC], COMPUTE),)
            sums = ()
            for j in tl.static_range(W):
                sums = sums + (dxs[j] + weight[j] * dz,)
            row = t - (W - 1)
            _give(dx_ptr, dstart_ptr, sequence, sums[0], row, begin, last, channels, c, W)
            dxs = sums[1:]
            dz = tl.where(t < last, dz, 0.0)  # the weights' gradients count every token once
            dbias += dz
            sums = ()
            for j in tl.static_range(W):
                sums = sums + (dweight[j] + dz * window[j],)
            dweight = sums
            window = window[1:]
        xs = xs_next
        dys = dys_next

    if dstart_ptr is not None:
        if offsets_ptr is not None:  # the state of an empty piece goes through
            share = tl.cdiv(P, segments)
            lowest = segment * share
            for other in range(lowest, tl.minimum(lowest + share, P)):
                if tl.load(offsets_ptr + other) == tl.load(offsets_ptr + other + 1):
                    given = _start_of(dfinal_ptr, b * P + other, channels, c, BC, W, COMPUTE)
                    _store_state(dstart_ptr, b * P + other, given, channels, c, W)

    parts_ptr += (b * segments + segment) * (W + 1) * channels
    for j in tl.static_range(W):
        tl.store(parts_ptr + j * channels + c, dweight[j], mask=inside)
    tl.store(parts_ptr + W * channels + c, dbias, mask=inside)


# ------------------------------------------------------------------------------------- launches


def _block(channels: int) -> int:
    """Channels of a program, which is one warp."""
    return min(power_of_two(channels), 128)


def _in_blocks(sizes: tuple[int, ...]) -> bool:
    """Whether no program would have channels of two parts of y, and there are places for all."""
    block = _block(sum(sizes))
    return len(sizes) <= 3 and all(size > 0 and size % block == 0 for size in sizes)


def _by_token(x: Tensor) -> tuple[Tensor, int | None]:
    """As `by_token`; None where nothing is between two tokens, as the kernels have it."""
    x, token = by_token(x)
    return x, None if token == x.shape[2] else token


def _has_asm(dtype: torch.dtype) -> bool:
    """Whether the sigmoid is made of a GPU's own instructions: in float32, not interpreted."""
    return dtype == torch.float32 and not triton.knobs.runtime.interpret


def _segment(rows: int, time: int, blocks: int, packed: bool) -> int:
    """Tokens of a program, a multiple of four, for rows in so many blocks of channels."""
    segment = PACKED if packed else SEGMENT
    while segment > SHORTEST and rows * blocks * triton.cdiv(time, segment) < PROGRAMS:
        segment //= 2
    return 4 * triton.cdiv(segment, 4)


def _forward(inputs: Inputs, offsets: Tensor | None, second: int, third: int) -> tuple[Tensor, ...]:
    x, weight, bias, use_silu, initial_state = inputs
    made = _empty(inputs, offsets, second, third)
    if x.numel() == 0:
        return made
    *y, state = made
    rows, time, channels = x.shape
    x, x_token = _by_token(x)
    block = _block(channels)
    blocks = triton.cdiv(channels, block)
    segment = _segment(rows, time, blocks, offsets is not None)
    with on_device_of(x):
        _forward_kernel[(rows, blocks, triton.cdiv(time, segment))](
            x,
            weight.contiguous(),
            contiguous(bias),
            contiguous(initial_state),
            y[0],
            state,
            contiguous(offsets),
            time,
            channels,
            x_token,
            in_a_row(offsets),
            rows // weight.shape[0],
            **_others(y),
            W=weight.shape[2],
            SEGMENT=segment,
            BC=block,
            SILU=use_silu,
            COMPUTE=triton_dtype(state.dtype),
            ASM=_has_asm(state.dtype),
            num_warps=1,
        )
    return made


def _empty(inputs: Inputs, offsets: Tensor | None, second: int, third: int) -> tuple[Tensor, ...]:
    """y in three parts, and the final states."""
    whole, state = SPEC.empty(inputs, in_a_row(offsets))
    sizes = (whole.shape[2] - second - third, second, third)
    return *(whole.new_empty(*whole.shape[:2], size) for size in sizes), state


def _others(y: Sequence[Tensor]) -> dict[str, Tensor | int | None]:
    """The second and the third part of y, as the kernels take them."""
    _, second, third = y
    return {
        "second_ptr": second if second.shape[2] > 0 else None,
        "third_ptr": third if second.shape[2] > 0 else None,
        "second": second.shape[2],
        "third": third.shape[2],
    }


def _backward(
    inputs: Inputs,
    offsets: Tensor | None,
    second: int,
    third: int,
    y: Tensor,
    y_second: Tensor,
    y_third: Tensor,
    state: Tensor,
    dy: Tensor,
    dy_second: Tensor,
    dy_third: Tensor,
    dstate: Tensor | None,
) -> tuple[Tensor, ...]:
    x, weight, bias, use_silu, initial_state = inputs
    grads = empty_grads(*inputs, offsets)
    dx, dweight, dbias, dstart, none = grads
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_(), dstart, none
    rows, time, channels = x.shape
    x, x_token = _by_token(x)
    groups, _, width = weight.shape
    block = _block(channels)
    blocks = triton.cdiv(channels, block)
    segment = _segment(rows, time, blocks, offsets is not None)
    segments = triton.cdiv(time, segment)
    dys = [grad.contiguous() for grad in (dy, dy_second, dy_third)]
    parts = state.new_empty(rows, segments, width + 1, channels)
    with on_device_of(x):
        _backward_kernel[(rows, blocks, segments)](
            x,
            weight.contiguous(),
            contiguous(bias),
            contiguous(initial_state),
            dys[0],
            contiguous(dstate),
            dx,
            None if initial_state is None else dstart,
            parts,
            contiguous(offsets),
            time,
            channels,
            x_token,
            in_a_row(offsets),
            rows // groups,
            segments,
            **_others(dys),
            W=width,
            SEGMENT=segment,
            BC=block,
            SILU=use_silu,
            COMPUTE=triton_dtype(state.dtype),
            ASM=_has_asm(state.dtype),
            num_warps=1,
        )
    sums = parts.view(groups, -1, width + 1, channels).sum(1)
    dweight.copy_(sums[:, :width].mT)
    if bias is not None:
        dbias.copy_(sums[:, width])
    return grads


_op = differentiable_op(
    SPEC,
    "triton",
    forward=_forward,
    backward=_backward,
    empty=_empty,
    options="Tensor? offsets, int second, int third",
    outputs=("y", "y_second", "y_third", "final_state"),
    optional_grads=("final_state",),
)
