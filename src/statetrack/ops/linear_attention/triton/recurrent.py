"""`linear_attention` with gates of either sign: the recurrence itself, its state in registers.

Letters: B batch, T time, H heads, K key, V value. One program runs one head (or a block of its
value columns, which do not see each other) of one sequence through time: H ← Diag(a) H + k vᵀ,
y = scale · Hᵀ q. Four tokens are loaded while four are computed.

Backward, with G_t the gradient of H_t: G_t = Diag(a_{t+1}) G_{t+1} + scale · q_t dy_tᵀ and

    dq_t = scale · H_t dy_t    dk_t = G_t v_t    dv_t = G_tᵀ k_t    da_t = Σ_value G_t ∘ H_{t-1}.

A gate may be 0, so H_{t-1} cannot be had from H_t: the forward saves a state every eight tokens.
The backward takes four tokens at a time, from the last to the first: it replays them from the saved
state, keeps their states in registers, and walks back. Nothing is divided by a gate, and nothing
multiplies a token with an earlier one, so zeros, signs and NaN need no care.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from statetrack.ops._triton.ahead import launch
from statetrack.ops._triton.rows import place
from statetrack.ops._triton.runtime import on_device_of, power_of_two, triton_dtype
from statetrack.ops.linear_attention.spec import Inputs
from statetrack.ops.packing import in_a_row

__all__ = ["backward", "empty_kept", "forward"]

KEEP_EVERY = 8  # tokens between saved states; the backward spells out two groups of four


# ------------------------------------------------------------------------------------- kernels


@triton.jit
@no_type_check
def _row(ptr, t, T, stride, index, SIZE: tl.constexpr, OTHER: tl.constexpr, COMPUTE: tl.constexpr):
    """Row t of a [T, SIZE] array whose rows are `stride` apart; OTHER from T on and beyond SIZE."""
    limit = tl.where(t < T, SIZE, 0)
    return tl.load(ptr + t * stride + index, mask=index < limit, other=OTHER).to(COMPUTE)


@triton.jit
@no_type_check
def _four_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    t,
    T,
    H,
    keys,
    values,
    K: tl.constexpr,
    V: tl.constexpr,
    VECTOR: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """q, k, v and a of tokens t to t+3, four vectors each (four numbers for a head's one gate)."""
    q, k, v, a = (), (), (), ()
    for i in tl.static_range(4):
        q = q + (_row(q_ptr, t + i, T, H * K, keys, K, 0.0, COMPUTE),)
        k = k + (_row(k_ptr, t + i, T, H * K, keys, K, 0.0, COMPUTE),)
        v = v + (_row(v_ptr, t + i, T, H * V, values, V, 0.0, COMPUTE),)
        if VECTOR:
            a = a + (_row(decay_ptr, t + i, T, H * K, keys, K, 1.0, COMPUTE),)
        else:
            a = a + (tl.load(decay_ptr + (t + i) * H, mask=t + i < T, other=1.0).to(COMPUTE),)
    return q, k, v, a


@triton.jit
@no_type_check
def _four(ptr, t, T, stride, index, SIZE: tl.constexpr, OTHER: tl.constexpr, COMPUTE: tl.constexpr):
    """[index, 4]: rows t to t+3 of a [T, SIZE] array whose rows are `stride` apart.

    OTHER from T on and beyond SIZE. One load for four rows: what is smaller than a warp would be
    loaded and widened again by every lane that needs it.
    """
    rows = t + tl.arange(0, 4)
    inside = (index < SIZE)[:, None] & (rows < T)[None, :]
    x = tl.load(ptr + rows[None, :] * stride + index[:, None], mask=inside, other=OTHER)
    return x.to(COMPUTE)


@triton.jit
@no_type_check
def _each(x):
    """The four columns of x."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
@no_type_check
def _gates(ptr, t, T, H, keys, K: tl.constexpr, VECTOR: tl.constexpr, COMPUTE: tl.constexpr):
    """Gates of tokens t to t+3 as [keys, 4], or the four numbers of a head; 1 from T on."""
    if VECTOR:
        return _four(ptr, t, T, H * K, keys, K, 1.0, COMPUTE)
    else:
        a0 = tl.load(ptr + t * H, mask=t < T, other=1.0).to(COMPUTE)
        a1 = tl.load(ptr + (t + 1) * H, mask=t + 1 < T, other=1.0).to(COMPUTE)
        a2 = tl.load(ptr + (t + 2) * H, mask=t + 2 < T, other=1.0).to(COMPUTE)
        a3 = tl.load(ptr + (t + 3) * H, mask=t + 3 < T, other=1.0).to(COMPUTE)
        return a0, a1, a2, a3


@triton.jit
@no_type_check
def _each_gate(a, VECTOR: tl.constexpr):
    if VECTOR:
        return _each(a)
    else:
        return a


@triton.jit
@no_type_check
def _write(state, k, v, a, VECTOR: tl.constexpr):
    """Diag(a) H + k vᵀ."""
    if VECTOR:
        return a[:, None] * state + k[:, None] * v[None, :]
    else:
        return a * state + k[:, None] * v[None, :]


@triton.jit
@no_type_check
def _four_tokens(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    dy_ptr,
    t,
    T,
    H,
    keys,
    values,
    K: tl.constexpr,
    V: tl.constexpr,
    VECTOR: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """q, k, v, a and dy of tokens t to t+3, not yet spread; none before the first token."""
    t = tl.where(t < 0, T, t)
    q = _four(q_ptr, t, T, H * K, keys, K, 0.0, COMPUTE)
    k = _four(k_ptr, t, T, H * K, keys, K, 0.0, COMPUTE)
    v = _four(v_ptr, t, T, H * V, values, V, 0.0, COMPUTE)
    dy = _four(dy_ptr, t, T, H * V, values, V, 0.0, COMPUTE)
    return q, k, v, _gates(decay_ptr, t, T, H, keys, K, VECTOR, COMPUTE), dy


# The compiler does not know that `zero` is 0. It would otherwise run the recurrence a second time,
# in a layout that suits wide stores of the state; so it stores the state as the lanes hold it.
@triton.jit(do_not_specialize=["zero"])
@no_type_check
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    start_ptr,
    y_ptr,
    final_ptr,
    kept_ptr,
    offsets_ptr,
    time,
    P,
    H,
    kept,
    zero,
    K: tl.constexpr,
    V: tl.constexpr,
    PV: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    VECTOR: tl.constexpr,
    SAVE: tl.constexpr,
    EVERY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    head = program // NV
    block = (program % NV).to(tl.int32)
    batch_row, begin, T = place(offsets_ptr, head // H, time, P)
    row = (batch_row * time + begin) * H + head % H
    slot = (batch_row * H + head % H) * kept + begin // EVERY  # sequences share no saved state
    keys = tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    at = keys.to(tl.int64)[:, None] * V + values[None, :]
    kept_at = keys.to(tl.int64)[:, None] * PV + values[None, :]
    inside = (keys < K)[:, None] & (values < V)[None, :]
    in_kept = (keys < K)[:, None] & (values < PV)[None, :]
    q_ptr += row * K
    k_ptr += row * K
    v_ptr += row * V
    y_ptr += row * V
    decay_ptr += row * (K if VECTOR else 1)
    kept_ptr += zero + (slot - 1) * K * PV
    final_ptr += zero + head * K * V

    state = tl.zeros([BK, BV], COMPUTE)
    if start_ptr is not None:
        state += tl.load(start_ptr + head * K * V + at, mask=inside, other=0.0).to(COMPUTE)
    q, k, v, a = _four_rows(
        q_ptr, k_ptr, v_ptr, decay_ptr, 0, T, H, keys, values, K, V, VECTOR, COMPUTE
    )
    for t in range(0, T, 4):
        if SAVE:
            if (t > 0) & (t % EVERY == 0):
                tl.store(kept_ptr + t // EVERY * (K * PV) + kept_at, state, mask=in_kept)
        later = _four_rows(
            q_ptr, k_ptr, v_ptr, decay_ptr, t + 4, T, H, keys, values, K, V, VECTOR, COMPUTE
        )
        for i in tl.static_range(4):
            state = _write(state, k[i], v[i], a[i], VECTOR)
            y = SCALE * tl.sum(state * q[i][:, None], 0)
            limit = tl.where(t + i < T, V, 0)
            tl.store(y_ptr + (t + i) * H * V + values, y, mask=values < limit)
        q, k, v, a = later
    tl.store(final_ptr + at, state, mask=inside)


@triton.jit
@no_type_check
def _backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    start_ptr,
    kept_ptr,
    dy_ptr,
    dfinal_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    ddecay_ptr,
    dstart_ptr,
    offsets_ptr,
    B,
    time,
    P,
    H,
    kept,
    K: tl.constexpr,
    V: tl.constexpr,
    PV: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    NV: tl.constexpr,
    SCALE: tl.constexpr,
    VECTOR: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients of one head. dq, dk and da sum over value columns: one slab per value block."""
    program = tl.program_id(0).to(tl.int64)
    head = program // NV
    block = (program % NV).to(tl.int32)
    batch_row, begin, T = place(offsets_ptr, head // H, time, P)
    row = (batch_row * time + begin) * H + head % H
    slot = (batch_row * H + head % H) * kept + begin // 8
    keys = tl.arange(0, BK)
    values = block * BV + tl.arange(0, BV)
    at = keys[:, None] * V + values[None, :]
    inside = (keys < K)[:, None] & (values < V)[None, :]
    kept_at = keys[:, None] * PV + values[None, :]
    in_kept = (keys < K)[:, None] & (values < PV)[None, :]
    slab = (
        program % NV * B * time * H + row
    )  # rows of [B, T, H] before this program's part of a sum
    gates: tl.constexpr = K if VECTOR else 1
    q_ptr += row * K
    k_ptr += row * K
    v_ptr += row * V
    decay_ptr += row * gates
    dy_ptr += row * V
    dq_ptr += slab * K
    dk_ptr += slab * K
    dv_ptr += row * V
    ddecay_ptr += slab * gates

    dstate = tl.zeros([BK, BV], COMPUTE)
    if dfinal_ptr is not None:
        dstate += tl.load(dfinal_ptr + head * K * V + at, mask=inside, other=0.0).to(COMPUTE)
    last = (T + 3) // 4 * 4 - 4  # where the last four tokens begin
    here = _four_tokens(
        q_ptr,
        k_ptr,
        v_ptr,
        decay_ptr,
        dy_ptr,
        last,
        T,
        H,
        keys,
        values,
        K,
        V,
        VECTOR,
        COMPUTE,
    )
    for step in range(0, T, 4):
        first = last - step
        before = _four_tokens(
            q_ptr,
            k_ptr,
            v_ptr,
            decay_ptr,
            dy_ptr,
            first - 4,
            T,
            H,
            keys,
            values,
            K,
            V,
            VECTOR,
            COMPUTE,
        )
        segment = first // 8
        if segment > 0:
            saved = kept_ptr + (slot + segment - 1) * K * PV + kept_at
            state = tl.load(saved, mask=in_kept, other=0.0)
        else:
            state = tl.zeros([BK, BV], COMPUTE)
            if start_ptr is not None:  # a name of its own: its dtype may be another
                given = start_ptr + head * K * V + at
                state += tl.load(given, mask=inside, other=0.0).to(COMPUTE)
        if first % 8 == 4:
            _, k, v, a, _ = before
            k, v, a = _each(k), _each(v), _each_gate(a, VECTOR)
            for i in tl.static_range(4):
                state = _write(state, k[i], v[i], a[i], VECTOR)
        q, k, v, a, dy = here
        q, k, v, a, dy = _each(q), _each(k), _each(v), _each_gate(a, VECTOR), _each(dy)
        states = ()
        for i in tl.static_range(4):
            states = states + (state,)
            state = _write(state, k[i], v[i], a[i], VECTOR)
            dq = SCALE * tl.sum(state * dy[i][None, :], 1)
            in_k = keys < tl.where(first + i < T, K, 0)
            tl.store(dq_ptr + (first + i) * H * K + keys, dq, mask=in_k)
        for i in tl.static_range(3, -1, -1):
            t = first + i
            dstate += q[i][:, None] * (SCALE * dy[i])[None, :]
            in_k = keys < tl.where(t < T, K, 0)
            in_v = values < tl.where(t < T, V, 0)
            tl.store(dk_ptr + t * H * K + keys, tl.sum(dstate * v[i][None, :], 1), mask=in_k)
            tl.store(dv_ptr + t * H * V + values, tl.sum(dstate * k[i][:, None], 0), mask=in_v)
            da = dstate * states[i]
            if VECTOR:
                tl.store(ddecay_ptr + t * H * K + keys, tl.sum(da, 1), mask=in_k)
                dstate *= a[i][:, None]
            else:
                tl.store(ddecay_ptr + t * H, tl.sum(da), mask=t < T)
                dstate *= a[i]
        here = before
    if dstart_ptr is not None:
        tl.store(dstart_ptr + head * K * V + at, dstate, mask=inside)


# ------------------------------------------------------------------------------------- launches


def _value_block(value: int, most: int) -> int:
    """Value columns of a program: a power of two, smaller where that pads less (V = 33 or 65)."""
    block = min(power_of_two(value), most)
    while block > 16 and triton.cdiv(value, block) * block > 1.25 * value:
        block //= 2
    return block


def _forward_tile(key: int, value: int) -> tuple[int, int, int]:
    """(BK, BV, warps) of a forward program: 32 keys of one value column a lane.

    At least as many keys as lanes: rows shorter than that are loaded again by every lane.
    """
    keys = max(power_of_two(key), 32)
    return keys, _value_block(value, 32), min(keys // 32, 8)


def _backward_tile(key: int, value: int) -> tuple[int, int, int]:
    """(BK, BV, warps) of a backward program: 16 numbers of a state a lane, four states at a time.

    64 keys go with 16 columns: wider tiles take more warps, which wait for one another.
    """
    keys = power_of_two(key)
    values = _value_block(value, 16 if keys == 64 else max(4096 // keys, 4))
    return keys, values, max(1, keys * values // 512)


def _kept(time: int | torch.SymInt) -> int | torch.SymInt:
    """How many states the forward saves: one before every eighth token, none before the first."""
    return (time - 1) // KEEP_EVERY


def _padded(value: int | torch.SymInt) -> int | torch.SymInt:
    """Columns of a saved state: a multiple of 16, so that wide loads are possible for any V."""
    return -(-value // 16) * 16


def forward(
    inputs: Inputs,
    offsets: Tensor | None,
    y: Tensor,
    state: Tensor,
    kept: Tensor,
    save: bool,
) -> None:
    """Fills y, the final states and, to save, the states `kept`; the inputs are contiguous."""
    q, k, v, decay, scale, initial_state = inputs
    _, time, heads, key = k.shape
    value = v.shape[-1]
    keys, values, warps = _forward_tile(key, value)
    blocks = triton.cdiv(value, values)
    with on_device_of(q):
        launch(
            _forward_kernel,
            (len(state) * heads * blocks,),
            q,
            k,
            v,
            decay,
            initial_state,
            y,
            state,
            kept,
            offsets,
            time,
            in_a_row(offsets),
            heads,
            _kept(time),
            0,
            K=key,
            V=value,
            PV=_padded(value),
            BK=keys,
            BV=values,
            NV=blocks,
            SCALE=scale,
            VECTOR=decay.shape[-1] > 1,
            SAVE=save,
            EVERY=KEEP_EVERY,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=warps,
        )


def empty_kept(inputs: Inputs, state: Tensor) -> Tensor:
    """A place for the saved states [B, H, kept, K, V padded]: packed sequences need no more."""
    _, heads, key, value = state.shape
    batch, time = inputs.k.shape[:2]
    return state.new_empty(batch, heads, _kept(time), key, _padded(value))


def backward(
    inputs: Inputs,
    offsets: Tensor | None,
    state: Tensor,
    kept: Tensor,
    dy: Tensor,
    dstate: Tensor | None,
    grads: tuple[Tensor, ...],
) -> None:
    """Fills `grads`; the inputs, dy and dstate are contiguous."""
    q, k, v, decay, scale, initial_state = inputs
    dq, dk, dv, ddecay, dstart, _ = grads
    batch, time, heads, key = k.shape
    value = v.shape[-1]
    keys, values, warps = _backward_tile(key, value)
    blocks = triton.cdiv(value, values)
    sums = [dq, dk, ddecay]
    slabs = sums
    if blocks > 1:
        slabs = [state.new_empty(blocks, *grad.shape) for grad in sums]
    with on_device_of(q):
        launch(
            _backward_kernel,
            (len(state) * heads * blocks,),
            q,
            k,
            v,
            decay,
            initial_state,
            kept,
            dy,
            dstate,
            slabs[0],
            slabs[1],
            dv,
            slabs[2],
            None if initial_state is None else dstart,
            offsets,
            batch,
            time,
            in_a_row(offsets),
            heads,
            _kept(time),
            K=key,
            V=value,
            PV=_padded(value),
            BK=keys,
            BV=values,
            NV=blocks,
            SCALE=scale,
            VECTOR=decay.shape[-1] > 1,
            COMPUTE=triton_dtype(state.dtype),
            num_warps=warps,
        )
    if blocks > 1:
        for grad, slab in zip(sums, slabs, strict=True):
            grad.copy_(slab.sum(0))
