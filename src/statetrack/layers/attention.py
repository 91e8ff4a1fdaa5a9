"""Causal softmax attention, with rotary positions or none: the baseline whose state grows."""

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import init
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.layers._base import Layer, LayerState
from statetrack.layers.parts import (
    RMSNorm,
    at_times,
    expect_sizes,
    heads_dividing,
    linear,
    merge_heads,
    refuse_eigen_range,
    split_heads,
)
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.layers.transitions import Transitions, not_linear
from statetrack.ops.packing import may_look

__all__ = ["Attention"]

HAS_VARLEN = torch.__version__ >= "2.11"
"""Whether PyTorch's kernel for packed sequences knows windows."""

SMALLEST_BLOCK = 64
"""Tokens: a narrower window is cut into blocks of this size, and a cache has no less room."""


class Attention(Layer):
    """softmax(q kᵀ / √dim) v over all earlier tokens. Its state is the cache of keys and values.

    `num_kv_heads` heads of keys and values serve `num_heads` heads of queries, neighbours sharing
    one. With a `window` a token sees itself and the window - 1 tokens before it. `rotary` turns the
    first `rotary_dim` coordinates of each head, all of them by default, with angles to the base
    `rotary_base`. `qk_norm` puts an RMS norm on q and on k: with a weight for each coordinate of a
    head, or over all heads as one. The `output_gate` multiplies y by σ(W x).

    The state has columns, a token in each: keys `k`, values `v`, and the token's `time`, counted
    from 1. Where `time` is 0 there is none: rows of a batch may have read different numbers of
    tokens. With a window there are at most that many columns.

    Decoding without gradients copies no cache: tokens go into spare room behind the columns, which
    doubles when it is used up. Older states stay valid; whoever continues one of them gets a copy.
    `with_room` makes a state of a fixed size, for CUDA graphs.

    >>> import torch
    >>> Attention(16, num_heads=2, rotary=False)(torch.randn(1, 3, 16))[0].shape
    torch.Size([1, 3, 16])
    """

    packs = True

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: object = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        rotary: bool = True,
        rotary_base: float = 10_000.0,
        rotary_dim: int | None = None,
        qk_norm: Literal["none", "head", "all_heads"] = "none",
        norm_eps: float = 1e-6,
        output_gate: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        refuse_eigen_range("Attention", eigen_range)
        expect_sizes(num_heads=num_heads, head_dim=head_dim)
        self.num_heads = num_heads
        self.head_dim = head_dim or heads_dividing(d_model, num_heads)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={num_kv_heads} must divide num_heads={num_heads}")
        if window is not None and window < 1:
            raise ValueError(f"window={window} must be at least 1; None sees all earlier tokens")
        self.window = window
        self.rotary = rotary
        self.rotary_base = rotary_base
        self.rotary_dim = self.head_dim if rotary_dim is None else rotary_dim
        if rotary and not (0 < self.rotary_dim <= self.head_dim and self.rotary_dim % 2 == 0):
            raise ValueError(
                f"rotary positions need an even rotary_dim within the head size {self.head_dim}, "
                f"but it is {self.rotary_dim}; change num_heads, head_dim or rotary_dim, or pass "
                "rotary=False"
            )
        if qk_norm not in ("none", "head", "all_heads"):
            raise ValueError(f"qk_norm={qk_norm!r} must be 'none', 'head' or 'all_heads'")
        self.qk_norm = qk_norm
        self.output_gate = output_gate
        queries, keys = num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.qkv_proj = linear(d_model, queries + 2 * keys)
        self.q_norm = self.k_norm = None
        if qk_norm != "none":
            per_head = qk_norm == "head"
            self.q_norm = RMSNorm(self.head_dim if per_head else queries, eps=norm_eps)
            self.k_norm = RMSNorm(self.head_dim if per_head else keys, eps=norm_eps)
        self.gate_proj = linear(d_model, queries) if output_gate else None
        self.out_proj = linear(queries, d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for proj in (self.qkv_proj, self.out_proj, self.gate_proj):
            if proj is not None:
                init.normal_(proj.weight, std=0.02, generator=generator)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    @property
    def state_size(self) -> int:
        """Numbers kept at most with a window; without one, for each token: that state grows."""
        return 2 * self.num_kv_heads * self.head_dim * (self.window or 1)

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("k", "v", "time")

    # ------------------------------------------------------------------------- room for decoding

    def empty_state(
        self,
        batch: int,
        room: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> LayerState:
        """An empty state with room for so many tokens, as `with_room` says."""
        some = self.qkv_proj.weight.new_empty(0, device=device, dtype=dtype)
        none = some.new_zeros(batch, 0, self.num_kv_heads, self.head_dim)
        time = torch.zeros(batch, 0, dtype=torch.int64, device=some.device)
        return self.with_room({"k": none, "v": none, "time": time}, room)

    @torch.no_grad()
    def with_room(self, state: LayerState, room: int) -> LayerState:
        """A copy of the state that has room for `room` tokens in all, those it holds included.

        With gradients off, its shapes never change and a step waits for nothing, so that a CUDA
        graph can hold the step. New keys and values are written into the tensors `k` and `v` of the
        state itself; `time` comes back new, and says which columns count. The state that went in
        may therefore be used again, but all that follows from it earlier is then overwritten. Clone
        the tensors into a plain dict to go on in two ways.

        With a window, no more room than that is taken or needed.
        """
        self._check_state(state, None)
        if self.window is not None:
            room = min(room, self.window)
        time = state["time"]
        rows, columns = time.shape
        most = int(time.max()) if time.numel() else 0
        if room < 1 or (most > room and room != self.window):
            raise ValueError(f"room={room} must be at least 1 and hold the {most} tokens so far")
        kept = time > (time.amax(1, keepdim=True) - room).clamp(min=0) if columns else time > 0
        slots = torch.where(kept, (time - 1) % room, room)  # what is not kept goes behind the room
        given = {**state, "time": torch.where(kept, time, 0)}
        made = {}
        for name, part in given.items():
            fresh = part.new_zeros(rows, room + 1, *part.shape[2:])
            made[name] = fresh.scatter_(1, _like(slots, part), part)[:, :room].contiguous()
        return _Roomy(made, used=most)

    # ------------------------------------------------------------------------------------ mixing

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        q, k, v = self._heads(x)
        rows = None if packing is None else _Rows.of(packing, x)
        time = torch.arange(1, x.shape[1] + 1, device=x.device).expand(x.shape[:2])
        if rows is not None:
            time = rows.time
        if state is not None:
            before = state["time"].amax(1, keepdim=True)
            time = time + (before if rows is None else before[:, 0][rows.sequence])
        if self.rotary:
            q, k = (self._rotate(part, time - 1) for part in (q, k))
        new = {"k": k, "v": v, "time": time}
        if rows is None:
            y, after = self._attend(q, new, state)
            y = at_times(y, read_at)
        else:
            y, after = self._attend_packed(q, new, state, rows, read_at)
        y = merge_heads(y)
        if self.gate_proj is not None:
            y = y * torch.sigmoid(self.gate_proj(at_times(x, read_at)))
        return self.out_proj(y), after

    def _heads(
        self, x: Float[Tensor, "batch time d_model"]
    ) -> tuple[
        Float[Tensor, "batch time heads dim"],
        Float[Tensor, "batch time kv_heads dim"],
        Float[Tensor, "batch time kv_heads dim"],
    ]:
        """q, k and v before they are turned."""
        keys = self.num_kv_heads * self.head_dim
        sizes = [self.num_heads * self.head_dim, keys, keys]
        q, k, v = self.qkv_proj(x).split(sizes, dim=-1)
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm == "all_heads":
            q, k = self.q_norm(q), self.k_norm(k)
        q = split_heads(q, self.num_heads)
        k, v = (split_heads(part, self.num_kv_heads) for part in (k, v))
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def _rotate(
        self, x: Float[Tensor, "batch time _ dim"], positions: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time _ dim"]:
        """Turns each pair of coordinates by an angle that grows with the position."""
        half = self.rotary_dim // 2
        wide = torch.promote_types(x.dtype, torch.float32)
        rates = self.rotary_base ** (-torch.arange(half, device=x.device, dtype=wide) / half)
        angles = (positions.to(wide)[..., None] * rates)[:, :, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second, rest = x.split([half, half, self.head_dim - 2 * half], dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)

    def _attend(
        self, q: Float[Tensor, "batch time heads dim"], new: LayerState, state: LayerState | None
    ) -> tuple[Float[Tensor, "batch time heads dim"], LayerState]:
        """A sequence a row: y at all times, and the state after them."""
        if state is None:
            y = _causal(q, new["k"], new["v"], self.window)
            return y, _last(new, self.window)
        parts = (q, *new.values(), *state.values())
        plain = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
        if isinstance(state, _Roomy) and not plain:
            return self._attend_in_room(q, new, state)
        if plain or torch.compiler.is_compiling() or _mapped(q):
            seen = _joined(state, new)
            after = _newest(seen, self.window)
        else:
            seen, after = _appended(state, new, self.window)
        return _masked(q, seen, new["time"], self.window), after

    def _attend_in_room(
        self, q: Float[Tensor, "batch time heads dim"], new: LayerState, state: "_Roomy"
    ) -> tuple[Float[Tensor, "batch time heads dim"], LayerState]:
        """As `_attend`, in a state of a fixed size."""
        room, count = state["time"].shape[1], q.shape[1]
        used = state.used + count
        if used > room and room != self.window:
            raise ValueError(
                f"this state has room for {room} tokens, but {used} are to be kept: ask for more "
                "(Attention.with_room)"
            )
        seen = None if count == 1 else _joined(state, new)
        after = _Roomy(state, used)
        tokens = _last(new, room)
        slots = (tokens["time"] - 1) % room
        for name in ("k", "v"):
            state[name].scatter_(1, _like(slots, state[name]), tokens[name].to(state[name].dtype))
        after["time"] = state["time"].scatter(1, slots, tokens["time"])
        return _masked(q, after if seen is None else seen, new["time"], self.window), after

    def _attend_packed(
        self,
        q: Float[Tensor, "batch time heads dim"],
        new: LayerState,
        state: LayerState | None,
        rows: "_Rows",
        read_at: Int[Tensor, "batch asked"] | None,
    ) -> tuple[Float[Tensor, "batch asked heads dim"], LayerState]:
        """Several sequences a row: each gets a row of its own, unless a kernel takes them so."""
        k, v = (rows.unpack(new[name]) for name in ("k", "v"))
        time = rows.times(state)
        ended = {"k": k, "v": v, "time": time.masked_fill(rows.padding, 0)}
        if state is None and _varlen_takes(q):
            y = at_times(_varlen(q, new["k"], new["v"], rows, self.window), read_at)
            return y, _newest(ended, self.window)
        if state is None:
            y = _causal(rows.unpack(q), k, v, self.window)
        else:
            # Padding counts on: no token sees it, and all of it sees something.
            seen = _joined(state, ended | {"time": time})
            y = _masked(rows.unpack(q), seen, time, self.window)
            ended = _joined(state, ended)
        return rows.pack(y, read_at), _newest(ended, self.window)

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        return not_linear("Attention")


# ---------------------------------------------------------------------------------- the softmax


def _causal(
    q: Float[Tensor, "batch time heads dim"],
    k: Float[Tensor, "batch time kv_heads dim"],
    v: Float[Tensor, "batch time kv_heads dim"],
    window: int | None,
) -> Float[Tensor, "batch time heads dim"]:
    """Every token sees those before it and itself, or the last `window` of them.

    With a window the sequence is cut into blocks. Each sees itself and the block before it, so that
    work and memory grow with time times window.
    """
    q, k, v = (part.transpose(1, 2) for part in (q, *_shared(k, v, q.shape[2])))
    time = q.shape[2]
    if window is None or window >= time:
        return _sdpa(q, k, v, causal=True).transpose(1, 2)
    size = min(max(window, SMALLEST_BLOCK), time)
    ahead = torch.arange(size, device=q.device)[:, None] + size  # in a block and the one before it
    seen = torch.arange(2 * size, device=q.device)
    seen = (seen <= ahead) & (seen > ahead - window)
    y = _sdpa(q[:, :, :size], k[:, :, :size], v[:, :, :size], seen[:, size:])
    if size < time:
        q, k, v = (_blocks(part, size) for part in (q, k, v))
        k, v = (torch.cat([part[:, :-1], part[:, 1:]], dim=3) for part in (k, v))
        rest = _sdpa(q[:, 1:].flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), seen)
        rest = rest.unflatten(0, (len(y), -1)).transpose(1, 2).flatten(2, 3)
        y = torch.cat([y, rest], dim=2)[:, :, :time]
    return y.transpose(1, 2)


def _blocks(
    x: Float[Tensor, "batch heads time dim"], size: int
) -> Float[Tensor, "batch blocks heads size dim"]:
    """The sequence in blocks of one size, with zeros behind its end."""
    gap = -x.shape[2] % size
    return pad(x, (0, 0, 0, gap)).unflatten(2, (-1, size)).transpose(1, 2)


def _masked(
    q: Float[Tensor, "batch time heads dim"],
    cache: LayerState,
    time: Int[Tensor, "batch time"],
    window: int | None,
) -> Float[Tensor, "batch time heads dim"]:
    """Queries at those times see the columns of the cache up to then. Each sees one at least.

    Queries that share a head of keys are rows of one product, so that no key is repeated.
    """
    held = cache["time"][:, None]
    seen = (held > 0) & (held <= time[..., None])
    if window is not None:
        seen &= held > time[..., None] - window
    k, v = (cache[name].transpose(1, 2) for name in ("k", "v"))
    sharing = q.shape[2] // k.shape[1]
    queries = q.unflatten(2, (k.shape[1], sharing)).permute(0, 2, 3, 1, 4)
    seen = seen[:, None, None].expand(-1, -1, sharing, -1, -1).flatten(2, 3)
    y = _sdpa(queries.flatten(2, 3), k, v, seen).unflatten(2, (sharing, -1))
    return y.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _shared(k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values once for each head of queries.

    PyTorch's own way to share them keeps all scores in float32, and its varlen kernel has none.
    """
    sharing = heads // k.shape[2]
    if sharing == 1:
        return k, v
    return k.repeat_interleave(sharing, dim=2), v.repeat_interleave(sharing, dim=2)


def _sdpa(
    q: Float[Tensor, "batch heads time dim"],
    k: Float[Tensor, "batch heads columns dim"],
    v: Float[Tensor, "batch heads columns dim"],
    seen: Tensor | None = None,
    *,
    causal: bool = False,
) -> Float[Tensor, "batch heads time dim"]:
    """PyTorch's attention. Its kernels cannot be vmapped over runs, its written-out way can."""
    if not _mapped(q):
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)


def _mapped(x: Tensor) -> bool:
    """Whether x is inside `torch.vmap` or another transform of torch.func.

    A compiler takes the stack of transforms for something that is never None.
    """
    if torch.compiler.is_compiling():
        return torch._C._functorch.is_batchedtensor(x)
    return torch._C._functorch.peek_interpreter_stack() is not None


# --------------------------------------------------------------------------------- the cache


class _Block:
    """Memory for tokens, a column each. Some state uses the first `filled` columns."""

    def __init__(self, state: LayerState, like: LayerState, room: int) -> None:
        self.parts = {}
        for name, part in like.items():
            self.parts[name] = part.new_empty(len(part), room, *part.shape[2:])
        self.filled = state["time"].shape[1]
        self.write(0, state)

    def write(self, begin: int, tokens: LayerState) -> None:
        for name, part in self.parts.items():
            part[:, begin : begin + tokens[name].shape[1]] = tokens[name]

    def columns(self, begin: int, end: int) -> LayerState:
        return {name: part[:, begin:end] for name, part in self.parts.items()}

    def takes(self, begin: int, new: LayerState) -> bool:
        """Whether these tokens may be written behind the column `begin`."""
        k = self.parts["k"]
        return (
            self.filled == begin
            and begin + new["k"].shape[1] <= k.shape[1]
            and k.dtype == new["k"].dtype
            and (torch.is_inference_mode_enabled() or not k.is_inference())
        )


@final
class _Cache(dict[str, Tensor]):
    """A state whose columns are those of a block from `begin` to `end`."""

    def __init__(self, block: _Block, begin: int, end: int) -> None:
        super().__init__(block.columns(begin, end))
        self.block, self.begin, self.end = block, begin, end
        self.handed_out = dict(self)

    @property
    def untouched(self) -> bool:
        """Whether it still holds the tensors that it was made with."""
        return all(self[name] is part for name, part in self.handed_out.items())


@final
class _Roomy(dict[str, Tensor]):
    """A state of a fixed size: the token of time t is in column (t - 1) mod room.

    No row of it has seen more than `used` tokens.
    """

    def __init__(self, state: LayerState, used: int) -> None:
        super().__init__(state)
        self.used = used


def _appended(
    state: LayerState, new: LayerState, window: int | None
) -> tuple[LayerState, LayerState]:
    """The columns of a state and the new ones behind them, and the state after them.

    Copies nothing where the state is the newest one of a block with room. With a window the rows of
    a block end in one column, so that the oldest columns can be left out.
    """
    held, count = state["time"].shape[1], new["time"].shape[1]
    if isinstance(state, _Cache) and state.untouched and state.block.takes(state.end, new):
        block, begin, end = state.block, state.begin, state.end
    else:
        room = max(2 * (held + count), SMALLEST_BLOCK)
        aligned = state if window is None else _by_time(state)
        block, begin, end = _Block(aligned, new, room), 0, held
    block.write(end, new)
    end += count
    block.filled = end
    seen = block.columns(begin, end)
    return seen, _Cache(block, begin if window is None else max(begin, end - window), end)


def _joined(state: LayerState, new: LayerState) -> LayerState:
    """The columns of a state and the new ones behind them, in memory of their own."""
    return {
        name: torch.cat([state[name].to(part.dtype), part], dim=1) for name, part in new.items()
    }


def _newest(state: LayerState, window: int | None) -> LayerState:
    """The last tokens of every row, wherever they are."""
    if window is None or state["time"].shape[1] <= window:
        return state
    return _last(_by_time(state), window)


def _last(state: LayerState, count: int | None) -> LayerState:
    """The last columns."""
    if count is None or state["time"].shape[1] <= count:
        return state
    return {name: part[:, -count:] for name, part in state.items()}


def _by_time(state: LayerState) -> LayerState:
    """The columns of every row in the order of time, so that empty ones come first."""
    time, order = state["time"].sort(dim=1)
    return {"k": at_times(state["k"], order), "v": at_times(state["v"], order), "time": time}


def _like(index: Tensor, part: Tensor) -> Tensor:
    """[batch, columns], made as wide as a part of a state."""
    return index.reshape(*index.shape, *(1 for _ in part.shape[2:])).expand(-1, -1, *part.shape[2:])


# ------------------------------------------------------------------------------ packed sequences


class _Rows(NamedTuple):
    """Where the tokens of packed sequences are when every sequence has a row of its own.

    Attributes:
        offsets: where the sequences of a row begin and end.
        longest: no sequence has more tokens.
        sequence: which sequence of the batch a token is in.
        time: its time there, from 1.
    """

    offsets: Int[Tensor, "batch ends"]
    longest: int
    sequence: Int[Tensor, "batch time"]
    time: Int[Tensor, "batch time"]

    @staticmethod
    def of(packing: ops.Packing, x: Tensor) -> "_Rows":
        batch, time = x.shape[:2]
        offsets, longest = packing.offsets.long(), packing.longest
        count = offsets.shape[1] - 1
        if longest >= time and count > 1 and may_look(packing.offsets):
            longest = int(offsets.diff(dim=1).max())  # waits, but all rows would have this length
        begins = torch.zeros(batch, time + 1, dtype=torch.int64, device=x.device)
        inner = offsets[:, 1:-1]
        piece = begins.scatter_add(1, inner, torch.ones_like(inner)).cumsum(1)[:, :time]
        place = torch.arange(1, time + 1, device=x.device)
        first = count * torch.arange(batch, device=x.device)[:, None]
        return _Rows(offsets, longest, piece + first, place - offsets.gather(1, piece))

    @property
    def padding(self) -> Bool[Tensor, "sequences longest"]:
        steps = torch.arange(self.longest, device=self.offsets.device)
        return steps >= self.offsets.diff(dim=1).flatten()[:, None]

    def times(self, state: LayerState | None) -> Int[Tensor, "sequences longest"]:
        """The time of every token, counted on behind the ends."""
        count = self.offsets[:, 1:].numel()
        time = torch.arange(1, self.longest + 1, device=self.offsets.device).expand(count, -1)
        return time if state is None else time + state["time"].amax(1, keepdim=True)

    def unpack(
        self, x: Float[Tensor, "batch time heads dim"]
    ) -> Float[Tensor, "sequences longest heads dim"]:
        """Each sequence in a row, with zeros behind its end."""
        steps = torch.arange(self.longest, device=self.offsets.device)
        places = (self.offsets[:, :-1, None] + steps).clamp(max=x.shape[1] - 1)
        alone = at_times(x, places.flatten(1)).reshape(-1, self.longest, *x.shape[2:])
        return alone.masked_fill(self.padding[..., None, None], 0.0)

    def pack(self, y: Tensor, read_at: Tensor | None) -> Tensor:
        """[sequences, longest, ...] as [batch, asked, ...]."""
        batch, ends = self.offsets.shape
        first = (ends - 1) * torch.arange(batch, device=y.device)[:, None]
        places = (self.sequence - first) * self.longest + self.time - 1
        places = places if read_at is None else places.gather(1, read_at)
        return at_times(y.reshape(batch, (ends - 1) * self.longest, *y.shape[2:]), places)


def _varlen_takes(q: Tensor) -> bool:
    """Whether PyTorch's kernel for packed sequences can run."""
    dim = q.shape[-1]
    return (
        HAS_VARLEN
        and q.is_cuda
        and q.dtype in (torch.float16, torch.bfloat16)
        and dim % 8 == 0
        and dim <= 256
        and not torch.compiler.is_compiling()
        and not _mapped(q)
    )


def _varlen(
    q: Float[Tensor, "batch time heads dim"],
    k: Float[Tensor, "batch time kv_heads dim"],
    v: Float[Tensor, "batch time kv_heads dim"],
    rows: _Rows,
    window: int | None,
) -> Float[Tensor, "batch time heads dim"]:
    from torch.nn.attention.varlen import varlen_attn  # it imports the compiler: a second of CPU

    batch, time = q.shape[:2]
    before = time * torch.arange(batch, device=q.device)[:, None]
    ends = (rows.offsets[:, 1:] + before).flatten()
    offsets = pad(ends, (1, 0)).int()
    q, k, v = (part.flatten(0, 1) for part in (q, *_shared(k, v, q.shape[2])))
    reach = (-1 if window is None else window - 1, 0)
    y = varlen_attn(q, k, v, offsets, offsets, rows.longest, rows.longest, window_size=reach)
    assert isinstance(y, Tensor)
    return y.unflatten(0, (batch, time))
