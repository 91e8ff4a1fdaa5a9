"""`selective_scan` with the state in registers: one kernel forward, one backward.

Letters: B batch, T time, C channels, N state size per channel. One program runs a block of channels
of one batch row through time, four tokens at a time: while four are computed, the next four are
loaded. With E = exp(Δ A) the eigenvalue is a = E + low (1 - E), which is exactly 1 where Δ = 0.

The forward saves the state before every fourth token. The backward takes the groups of four from
the last to the first: it replays a group from its saved state, keeping the four states and the four
E in registers, and then walks back through them. Nothing is divided by a, so a = 0 is no special
case. Sums over channels (dB, dC) and over the batch (dA, dD) leave the kernel as one part per
program and are added up outside: the result does not depend on the order of programs.

Where a row holds P sequences (`Packing`), a program runs one of them. Its saved states begin at
slot ⌊first token / 4⌋ + its index of the row's ⌈T/4⌉ + P - 1, so that no two sequences share one.

Few long sequences are cut into segments (_triton/segments.py), whose maps take a kernel more in
each direction. A segment begins at a multiple of four, so that the saved states are the same.
"""

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._register import differentiable_op, empty_grads, per_group
from statetrack.ops._triton.ahead import compiled_ahead, launch
from statetrack.ops._triton.rows import fetch, place
from statetrack.ops._triton.runtime import (
    by_token,
    check_version,
    contiguous,
    on_device_of,
    power_of_two,
    triton_dtype,
)
from statetrack.ops._triton.segments import join, places, segment_at, segment_length
from statetrack.ops.packing import Packing, in_a_row
from statetrack.ops.selective.spec import SPEC, Inputs, in_groups

__all__ = ["selective_scan"]

LOG2_E = tl.constexpr(1 / math.log(2))
LOG_2 = tl.constexpr(math.log(2))
GROUP = 4  # tokens between saved states; the kernels take four steps at a time
REGISTERS = 168  # at most, for a thread of a backward program: 12 of them share a multiprocessor
ENOUGH = 640  # programs that are not worth cutting in time
PROGRAMS = 32 * 132  # wanted of those that are
SHORTEST = 32  # tokens of a segment


def selective_scan(inputs: Inputs, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
    """See `statetrack.ops.selective_scan`."""
    check_version()
    offsets, longest = (None, inputs.u.shape[1]) if packing is None else packing
    y, state, _ = _op(*in_groups(inputs), torch.is_grad_enabled(), offsets, longest)
    return y, state


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def load_row(ptr, t, T, step, size, index, COMPUTE: tl.constexpr):
    """Row t of a [T, size] array at `index`, each row `step` numbers on; zeros from T on."""
    limit = tl.where(t < T, size, 0)
    return tl.load(ptr + t * step + index, mask=index < limit, other=0.0).to(COMPUTE)


@triton.jit
@no_type_check
def load_four(ptr, t, T, step, size, index, COMPUTE: tl.constexpr):
    """Rows t to t+3."""
    x0 = load_row(ptr, t, T, step, size, index, COMPUTE)
    x1 = load_row(ptr, t + 1, T, step, size, index, COMPUTE)
    x2 = load_row(ptr, t + 2, T, step, size, index, COMPUTE)
    x3 = load_row(ptr, t + 3, T, step, size, index, COMPUTE)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def store_four(ptr, t, T, size, index, x):
    """Rows t to t+3 at once: a store of its own for each would wait for the one before."""
    rows = tl.join(tl.join(x[0], x[2]), tl.join(x[1], x[3]))
    at = t + 2 * tl.arange(0, 2)[None, :, None] + tl.arange(0, 2)[None, None, :]
    inside = (index < size)[:, None, None] & (at < T)
    tl.store(ptr + at * size + index[:, None, None], rows, mask=inside)


@triton.jit
@no_type_check
def _eigenvalue(delta, log2_decay, LOW: tl.constexpr):
    """(a, E = exp(Δ A)), with A in units of log 2."""
    E = tl.exp2(delta[:, None] * log2_decay)
    if LOW == 0.0:
        a = E
    elif LOW == -1.0:
        a = 2.0 * E - 1.0  # one instruction
    else:
        a = E + LOW * (1.0 - E)
    return a, E


@triton.jit
@no_type_check
def _step(h, u, delta, log2_decay, B, LOW: tl.constexpr):
    """(the next state, E = exp(Δ A)), with A in units of log 2."""
    a, E = _eigenvalue(delta, log2_decay, LOW)
    return a * h + (delta * u)[:, None] * B[None, :], E


@triton.jit
@no_type_check
def _first_slot(b, row, first, time, P):
    """Where the saved states of sequence b begin."""
    return row * ((time + 3) // 4 + P - 1) + first // 4 + (b - row * P)


@triton.jit
@no_type_check
def _walk(offsets_ptr, unit, time, P, places, segment):
    """What a program walks: a sequence, or a segment of one.

    (sequence, row, first token, how many, slot of its first saved state, number of the segment,
    whether it is the last).
    """
    if segment is None:
        sequence = unit
        row, first, T = place(offsets_ptr, unit, time, P)
        slot = _first_slot(sequence, row, first, time, P)
        index = 0
        last = True
    else:
        row, sequence, index, first, T, last = segment_at(
            offsets_ptr, unit, time, P, places, segment
        )
        slot = _first_slot(sequence, row, first - index * segment, time, P) + index * segment // 4
    return sequence, row, first, T, slot, index, last


@triton.jit(do_not_specialize=["places", "segment"])
@no_type_check
def _maps_kernel(
    x_ptr,
    delta_ptr,
    A_ptr,
    w_ptr,
    product_ptr,
    added_ptr,
    offsets_ptr,
    time,
    channels,
    P,
    rows_per_group,
    places,
    segment,
    w_token: tl.constexpr,
    N: tl.constexpr,
    BC: tl.constexpr,
    BN: tl.constexpr,
    LOW: tl.constexpr,
    REVERSE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The map of a segment: h ← a h + Δ x w, or in reverse dh ← a (dh + x w), from zero."""
    blocks = tl.cdiv(channels, BC)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.arange(0, BN)
    at = c[:, None] * N + n[None, :]
    inside = (c < channels)[:, None] & (n < N)[None, :]
    size = channels * N
    b, row, first, T, slot, index, last = _walk(offsets_ptr, unit, time, P, places, segment)
    if (index == 0) if REVERSE else last:  # nothing comes after it
        return
    group = b // rows_per_group
    token = row * time + first
    x_ptr += token * channels
    delta_ptr += token * channels
    w_ptr += token * w_token
    log2_decay = tl.load(A_ptr + group * size + at, mask=inside, other=0.0).to(COMPUTE) * LOG2_E
    h = tl.zeros([BC, BN], COMPUTE)
    product = tl.full([BC, BN], 1.0, COMPUTE)

    groups = (T + 3) // 4
    begin = tl.maximum(groups - 1, 0) * 4 if REVERSE else 0
    x = load_four(x_ptr, begin, T, channels, channels, c, COMPUTE)
    delta = load_four(delta_ptr, begin, T, channels, channels, c, COMPUTE)
    w = load_four(w_ptr, begin, T, w_token, N, n, COMPUTE)
    for i in range(groups):
        ahead = tl.maximum((groups - 2 - i) * 4, 0) if REVERSE else (i + 1) * 4
        next_x = load_four(x_ptr, ahead, T, channels, channels, c, COMPUTE)
        next_delta = load_four(delta_ptr, ahead, T, channels, channels, c, COMPUTE)
        next_w = load_four(w_ptr, ahead, T, w_token, N, n, COMPUTE)
        for j in tl.static_range(3 if REVERSE else 0, -1 if REVERSE else 4, -1 if REVERSE else 1):
            a, E = _eigenvalue(delta[j], log2_decay, LOW)
            if REVERSE:
                h = a * (h + x[j][:, None] * w[j][None, :])
            else:
                h = a * h + (delta[j] * x[j])[:, None] * w[j][None, :]
            product *= a
        x, delta, w = next_x, next_delta, next_w
    tl.store(product_ptr + unit * size + at, product, mask=inside)
    tl.store(added_ptr + unit * size + at, h, mask=inside)


@triton.jit(do_not_specialize=["places", "segment"])
@no_type_check
def _forward_kernel(
    u_ptr,
    delta_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    D_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    kept_ptr,
    offsets_ptr,
    time,
    channels,
    P,
    rows_per_group,
    places,
    segment,
    BC_token: tl.constexpr,
    N: tl.constexpr,
    BC: tl.constexpr,
    BN: tl.constexpr,
    LOW: tl.constexpr,
    SAVE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`start` holds a state for each program's walk, `final` one for each sequence."""
    blocks = tl.cdiv(channels, BC)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.arange(0, BN)
    at = c[:, None] * N + n[None, :]
    inside = (c < channels)[:, None] & (n < N)[None, :]
    size = channels * N

    b, row, first, T, slot, index, last = _walk(offsets_ptr, unit, time, P, places, segment)
    group = b // rows_per_group
    token = row * time + first
    u_ptr += token * channels
    delta_ptr += token * channels
    y_ptr += token * channels
    B_ptr += token * BC_token
    C_ptr += token * BC_token
    log2_decay = tl.load(A_ptr + group * size + at, mask=inside, other=0.0).to(COMPUTE) * LOG2_E
    h = tl.zeros([BC, BN], COMPUTE)
    if start_ptr is not None:
        h += tl.load(start_ptr + unit * size + at, mask=inside, other=0.0).to(COMPUTE)
    D = tl.zeros([BC], COMPUTE)
    if D_ptr is not None:
        D += tl.load(D_ptr + group * channels + c, mask=c < channels, other=0.0).to(COMPUTE)

    kept_at = kept_ptr + slot * size + at
    u = load_four(u_ptr, 0, T, channels, channels, c, COMPUTE)
    delta = load_four(delta_ptr, 0, T, channels, channels, c, COMPUTE)
    B = load_four(B_ptr, 0, T, BC_token, N, n, COMPUTE)
    C = load_four(C_ptr, 0, T, BC_token, N, n, COMPUTE)
    for t in range(0, T, 4):
        if SAVE:
            tl.store(kept_at, h, mask=inside)
            kept_at += size
        next_u = load_four(u_ptr, t + 4, T, channels, channels, c, COMPUTE)
        next_delta = load_four(delta_ptr, t + 4, T, channels, channels, c, COMPUTE)
        next_B = load_four(B_ptr, t + 4, T, BC_token, N, n, COMPUTE)
        next_C = load_four(C_ptr, t + 4, T, BC_token, N, n, COMPUTE)
        y = ()
        for i in tl.static_range(4):
            h, _ = _step(h, u[i], delta[i], log2_decay, B[i], LOW)
            y = y + (tl.sum(h * C[i][None, :], 1) + D * u[i],)
        store_four(y_ptr, t, T, channels, c, y)
        u, delta, B, C = next_u, next_delta, next_B, next_C
    if last:
        tl.store(final_ptr + b * size + at, h, mask=inside)


@triton.jit
@no_type_check
def _step_back(dh, dA, dD, before, after, E, u, delta, log2_decay, B, C, D, dy, LOW: tl.constexpr):
    """One token of the backward: (dh, dA, dD) before it, and its du, dΔ, dB and dC.

    dA is without the factor 1 - low, which is the same for all tokens.
    """
    dh += dy[:, None] * C[None, :]
    dC = tl.sum(dy[:, None] * after, 0)
    dB = tl.sum((delta * u)[:, None] * dh, 0)
    dwrite = tl.sum(dh * B[None, :], 1)
    decayed = E * dh
    dexponent = decayed * before
    du = delta * dwrite + D * dy
    ddelta = u * dwrite + ((1.0 - LOW) * LOG_2) * tl.sum(dexponent * log2_decay, 1)
    dA += delta[:, None] * dexponent
    if LOW == 0.0:
        dh = decayed
    else:
        dh = (1.0 - LOW) * decayed + LOW * dh  # a dh
    return dh, dA, dD + dy * u, du, ddelta, dB, dC


@triton.jit(do_not_specialize=["places", "segment"])
@no_type_check
def _backward_kernel(
    u_ptr,
    delta_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    D_ptr,
    kept_ptr,
    dy_ptr,
    dfinal_ptr,
    du_ptr,
    ddelta_ptr,
    dA_ptr,
    dB_ptr,
    dC_ptr,
    dD_ptr,
    dstart_ptr,
    offsets_ptr,
    time,
    channels,
    P,
    rows_per_group,
    batch,
    places,
    segment,
    BC_token: tl.constexpr,
    N: tl.constexpr,
    BC: tl.constexpr,
    BN: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    ASM: tl.constexpr,
):
    """dA and dD are one part per sequence or segment, dB and dC one per channel block.

    `dfinal` holds a gradient for each program's walk, `dstart` one for each sequence.
    """
    blocks = tl.cdiv(channels, BC)
    unit = (tl.program_id(0) // blocks).to(tl.int64)
    block = (tl.program_id(0) % blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    n = tl.arange(0, BN)
    at = c[:, None] * N + n[None, :]
    inside = (c < channels)[:, None] & (n < N)[None, :]
    size = channels * N

    b, row, first, T, slot, index, last = _walk(offsets_ptr, unit, time, P, places, segment)
    group = b // rows_per_group
    token = row * time + first
    u_ptr += token * channels
    delta_ptr += token * channels
    dy_ptr += token * channels
    du_ptr += token * channels
    ddelta_ptr += token * channels
    B_ptr += token * BC_token
    C_ptr += token * BC_token
    dB_ptr += (block * batch * time + token) * N
    dC_ptr += (block * batch * time + token) * N
    log2_decay = tl.load(A_ptr + group * size + at, mask=inside, other=0.0).to(COMPUTE) * LOG2_E
    D = tl.zeros([BC], COMPUTE)
    if D_ptr is not None:
        D += tl.load(D_ptr + group * channels + c, mask=c < channels, other=0.0).to(COMPUTE)
    dh = tl.zeros([BC, BN], COMPUTE)
    if dfinal_ptr is not None:
        dh = tl.load(dfinal_ptr + unit * size + at, mask=inside, other=0.0).to(COMPUTE)
    dA = tl.zeros([BC, BN], COMPUTE)
    dD = tl.zeros([BC], COMPUTE)

    groups = (T + 3) // 4
    saved_ptr = kept_ptr + slot * size
    kept_at = saved_ptr + at
    for i in range(groups):
        t = (groups - 1 - i) * 4
        h = (tl.load(kept_at + (t // 4) * size, mask=inside, other=0.0),)
        u = load_four(u_ptr, t, T, channels, channels, c, COMPUTE)
        delta = load_four(delta_ptr, t, T, channels, channels, c, COMPUTE)
        B = load_four(B_ptr, t, T, BC_token, N, n, COMPUTE)
        C = load_four(C_ptr, t, T, BC_token, N, n, COMPUTE)
        dy = load_four(dy_ptr, t, T, channels, channels, c, COMPUTE)
        if ASM:  # the four tokens before these: their turn would begin with waiting for memory
            earlier = tl.maximum(t - 4, 0)
            fetch(saved_ptr + (earlier // 4) * size + tl.minimum(c, channels - 1) * N)
            rows = tl.minimum(earlier + tl.arange(0, 4), T - 1)
            fetch(u_ptr + rows * channels + block * BC)
            fetch(delta_ptr + rows * channels + block * BC)
            fetch(dy_ptr + rows * channels + block * BC)
            fetch(B_ptr + rows * BC_token)
            fetch(C_ptr + rows * BC_token)
        E = ()
        for i in tl.static_range(4):
            after, decay = _step(h[i], u[i], delta[i], log2_decay, B[i], LOW)
            h, E = h + (after,), E + (decay,)
        du, ddelta, dB, dC = (), (), (), ()
        for j in tl.static_range(3, -1, -1):
            dh, dA, dD, du_j, ddelta_j, dB_j, dC_j = _step_back(
                dh,
                dA,
                dD,
                h[j],
                h[j + 1],
                E[j],
                u[j],
                delta[j],
                log2_decay,
                B[j],
                C[j],
                D,
                dy[j],
                LOW,
            )
            du, ddelta, dB, dC = (du_j,) + du, (ddelta_j,) + ddelta, (dB_j,) + dB, (dC_j,) + dC
        store_four(du_ptr, t, T, channels, c, du)
        store_four(ddelta_ptr, t, T, channels, c, ddelta)
        store_four(dB_ptr, t, T, N, n, dB)
        store_four(dC_ptr, t, T, N, n, dC)
    tl.store(dA_ptr + unit * size + at, (1.0 - LOW) * dA, mask=inside)
    if dD_ptr is not None:
        tl.store(dD_ptr + unit * channels + c, dD, mask=c < channels)
    if dstart_ptr is not None:
        if index == 0:
            tl.store(dstart_ptr + b * size + at, dh, mask=inside)


@triton.jit
@no_type_check
def _sum_kernel(parts_ptr, dB_ptr, dC_ptr, size, count, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    """dB and dC, of `size` numbers each, from `count` parts [2, count, size] of both."""
    which = tl.program_id(1)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = parts_ptr + which.to(tl.int64) * count * size + i
    total = tl.zeros([BLOCK], COMPUTE)
    for _ in range(count):
        total += tl.load(at, mask=i < size, other=0.0)
        at += size
    if which == 0:
        tl.store(dB_ptr + i, total, mask=i < size)
    else:
        tl.store(dC_ptr + i, total, mask=i < size)


# ------------------------------------------------------------------------------------- launches


def _alike(B: Tensor, C: Tensor) -> tuple[Tensor, Tensor, int]:
    """B and C with the numbers from one token to the next, the same for both."""
    (B, token), (C, other) = by_token(B), by_token(C)
    if token == other:
        return B, C, token
    return B.contiguous(), C.contiguous(), B.shape[-1]


def _block(channels: int, state: int, elements: int) -> int:
    """Channels per program, which is one warp: few enough that a lane holds little."""
    return max(1, min(power_of_two(channels), elements // power_of_two(state)))


def _forward(
    inputs: Inputs, save: bool, offsets: Tensor | None, longest: int
) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, low, initial_state = inputs
    results = _empty(inputs, save, offsets, longest)
    y, state, kept = results
    if state.numel() == 0:
        return results
    _, time, channels = u.shape
    size = A.shape[-1]
    block = _block(channels, size, 256)
    blocks = triton.cdiv(channels, block)
    B, C, BC_token = _alike(B, C)
    u, delta, A = u.contiguous(), delta.contiguous(), A.contiguous()
    offsets, start = contiguous(offsets), contiguous(initial_state)
    segment = _segment(u, blocks, longest)
    with on_device_of(u):
        if segment is not None:
            given = (u, delta, A, B, start, offsets, state, low, segment, block, BC_token)
            start = _starts(*given, reverse=False)
        walks = len(state) if start is None or segment is None else math.prod(start.shape[:3])
        launch(
            _forward_kernel,
            (walks * blocks,),
            u,
            delta,
            A,
            B,
            C,
            contiguous(D),
            start,
            y,
            state,
            kept,
            offsets,
            time,
            channels,
            in_a_row(offsets),
            len(state) // A.shape[0],
            None if segment is None else walks // len(u),
            segment,
            BC_token=BC_token,
            N=size,
            BC=block,
            BN=power_of_two(size),
            LOW=low,
            SAVE=save,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=1,
        )
    return results


def _segment(u: Tensor, blocks: int, longest: int) -> int | None:
    """Tokens of a segment, None where sequences are not cut."""
    batch, time, _ = u.shape
    return segment_length(
        batch * time,
        longest,
        blocks,
        enough=ENOUGH,
        wanted=PROGRAMS,
        multiple=GROUP,
        least=SHORTEST,
    )


def _starts(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    w: Tensor,
    start: Tensor | None,
    offsets: Tensor | None,
    state: Tensor,
    low: float,
    segment: int,
    block: int,
    w_token: int,
    *,
    reverse: bool,
) -> Tensor:
    """What every segment begins with, [batch, 1, places, C, N]; x and w as in `_maps_kernel`."""
    batch, time, channels = x.shape
    size = A.shape[-1]
    count = places(time, offsets, segment)
    product = state.new_empty(batch, 1, count, channels, size)
    starts = torch.empty_like(product)
    launch(
        _maps_kernel,
        (batch * count * triton.cdiv(channels, block),),
        x,
        delta,
        A,
        w,
        product,
        starts,
        offsets,
        time,
        channels,
        in_a_row(offsets),
        len(state) // A.shape[0],
        count,
        segment,
        w_token=w_token,
        N=size,
        BC=block,
        BN=power_of_two(size),
        LOW=low,
        REVERSE=reverse,
        COMPUTE=triton_dtype(state.dtype),
        num_warps=1,
    )
    join(product, starts, start, offsets, time, segment, reverse=reverse)
    return starts


def _empty(inputs: Inputs, save: bool, offsets: Tensor | None, longest: int) -> tuple[Tensor, ...]:
    """The results and the saved states [B, ⌈T/4⌉ + P - 1, C, N]."""
    y, state = SPEC.empty(inputs, in_a_row(offsets))
    batch, time, _ = y.shape
    slots = -(-time // GROUP) + in_a_row(offsets) - 1
    return y, state, state.new_empty(batch, slots, *state.shape[1:]) if save else state.new_empty(0)


def _backward(
    inputs: Inputs,
    save: bool,
    offsets: Tensor | None,
    longest: int,
    y: Tensor,
    state: Tensor,
    kept: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
) -> tuple[Tensor, ...]:
    u, delta, A, B, C, D, low, initial_state = inputs
    grads = empty_grads(*inputs, offsets)
    du, ddelta, dA, dB, dC, dD, dstart, none = grads
    batch, time, channels = u.shape
    size = A.shape[-1]
    if state.numel() == 0:
        return du, ddelta, dA.zero_(), dB, dC, dD.zero_(), dstart, none
    block = _block(channels, size, 256)
    blocks = triton.cdiv(channels, block)
    parts = state.new_empty(2, blocks, batch, time, size)  # of dB and dC
    B, C, BC_token = _alike(B, C)
    u, delta, A, dy = u.contiguous(), delta.contiguous(), A.contiguous(), dy.contiguous()
    offsets, end = contiguous(offsets), contiguous(dstate)
    segment = _segment(u, blocks, longest)
    with on_device_of(u):
        if segment is not None:
            given = (dy, delta, A, C, end, offsets, state, low, segment, block, BC_token)
            end = _starts(*given, reverse=True)
        walks = len(state) if end is None or segment is None else math.prod(end.shape[:3])
        dA_walks = state.new_empty(walks, channels, size)
        dD_walks = None if D is None else state.new_empty(walks, channels)
        launch(
            _backward_kernel,
            (walks * blocks,),
            u,
            delta,
            A,
            B,
            C,
            contiguous(D),
            kept,
            dy,
            end,
            du,
            ddelta,
            dA_walks,
            parts[0],
            parts[1],
            dD_walks,
            None if initial_state is None else dstart,
            offsets,
            time,
            channels,
            in_a_row(offsets),
            len(state) // A.shape[0],
            batch,
            None if segment is None else walks // batch,
            segment,
            BC_token=BC_token,
            N=size,
            BC=block,
            BN=power_of_two(size),
            LOW=low,
            COMPUTE=triton_dtype(state.dtype),
            ASM=not triton.knobs.runtime.interpret,
            num_warps=1,
            maxnreg=REGISTERS,
        )
        numbers = batch * time * size
        launch(
            _sum_kernel,
            (triton.cdiv(numbers, 1024), 2),
            parts,
            dB,
            dC,
            numbers,
            blocks,
            BLOCK=1024,
            COMPUTE=triton_dtype(state.dtype),
        )
    dA = per_group(dA_walks, len(A)).to(A.dtype)
    if D is not None and dD_walks is not None:
        dD = per_group(dD_walks, len(D)).to(D.dtype)
    return du, ddelta, dA, dB, dC, dD, dstart, none


_op = differentiable_op(
    SPEC,
    "triton",
    forward=compiled_ahead(_forward, _backward, num_outputs=2, used=1),
    backward=_backward,
    empty=_empty,
    options="bool save, Tensor? offsets, int longest",
    saved=("kept",),
    optional_grads=("final_state",),
)
