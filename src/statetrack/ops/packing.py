"""Several sequences end to end in one row, so that no token is padding."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Bool, Inexact, Int
from statetrack.ops._checks import check_devices, check_shape, checking_values
from statetrack.ops.context import in_order

__all__ = [
    "CuSeqlens",
    "Packing",
    "by_length",
    "check_start",
    "from_rows",
    "in_a_row",
    "in_rows",
    "last_of",
    "may_look",
    "packing_of",
    "position",
    "previous",
    "sequences_in",
]


class Packing(NamedTuple):
    """Several sequences end to end in every row of a batch: where each one begins and ends.

    Sequence s of row b is the tokens offsets[b, s] to offsets[b, s + 1] - 1. The first offset is 0
    and the last one the number of tokens; a sequence may be empty. An `initial_state` beside it
    holds one state for each sequence, row by row, as the final states do.
    Triton kernels take all sequences at once, the other backends those of one length at a time.

    `cu_seqlens` arguments take one of these, or the offsets alone as other libraries write them:
    a tensor of integers [sequences + 1], for a batch of one row.

    Attributes:
        offsets: where the sequences begin, and where the last one ends; [sequences + 1] will do for
            a batch of one row.
        longest: no sequence has more tokens than this.
    """

    offsets: Int[Tensor, "batch ends"]
    longest: int


CuSeqlens = Packing | Tensor


def in_a_row(offsets: Tensor | None) -> int | torch.SymInt:
    """How many sequences a row holds: those packed into it, or the row itself."""
    return 1 if offsets is None else offsets.shape[1] - 1


def sequences_in(x: Tensor, packing: Packing | None) -> int | torch.SymInt:
    """How many sequences x [batch, time, ...] holds."""
    return x.shape[0] * in_a_row(None if packing is None else packing.offsets)


def check_start(
    state: Tensor | None,
    axes: str,
    sizes: dict[str, int],
    packing: Packing | None,
    *,
    complex_ok: bool = False,
) -> None:
    """Checks the initial state, if any: one for each row, or for each packed sequence.

    `axes` names those of one state, as for `check_shape`, and `sizes` knows the batch.
    """
    if state is None:
        return
    lead = "batch"
    if packing is not None:
        lead, sizes["sequences"] = "sequences", sizes["batch"] * (packing.offsets.shape[1] - 1)
    check_shape("initial_state", state, f"{lead} {axes}", sizes, complex_ok=complex_ok)


def packing_of(cu_seqlens: CuSeqlens | None, x: Tensor) -> Packing | None:
    """What the argument `cu_seqlens` says about x [batch, time, ...], checked.

    Shapes are checked always. The offsets themselves are checked on a CPU, and inside
    `check_values()` on a GPU, which has to wait for it. Where a GPU need not wait, no sequence of
    bare offsets is known to be shorter than the row.
    """
    if cu_seqlens is None:
        return None
    batch, time = x.shape[:2]
    longest: int | None
    if isinstance(cu_seqlens, Packing):
        (offsets, longest), axes = (
            cu_seqlens,
            "[batch, sequences + 1], or [sequences + 1] for one row",
        )
    else:
        offsets, longest, axes = cu_seqlens, None, "[sequences + 1]"
    if not isinstance(offsets, Tensor):
        raise ValueError(
            f"cu_seqlens must be a tensor of integers {axes}, or a statetrack.ops.Packing, got "
            f"{type(offsets).__name__}"
        )
    check_devices(x=x, cu_seqlens=offsets)
    dims = 1 if longest is None else 2
    if offsets.is_floating_point() or not 1 <= offsets.dim() <= dims or offsets.shape[-1] == 0:
        raise ValueError(
            f"cu_seqlens has shape {tuple(offsets.shape)} and dtype {offsets.dtype}, but must be "
            f"integers {axes}"
        )
    offsets = offsets.reshape(-1, offsets.shape[-1])
    if len(offsets) != batch:
        raise ValueError(
            f"cu_seqlens is about {len(offsets)} rows and the batch has {batch}: put all sequences "
            "into one row, or give every row its offsets (statetrack.ops.Packing)"
        )
    free = offsets.device.type == "cpu"
    if (free or checking_values()) and offsets.numel() > 0 and may_look(offsets):
        sizes = offsets.diff(dim=1)
        whole = bool((offsets[:, 0] == 0).all()) and bool((offsets[:, -1] == time).all())
        most = time if longest is None else longest
        if not whole or bool((sizes < 0).any()) or bool((sizes > most).any()):
            raise ValueError(
                f"cu_seqlens must rise from 0 to time = {time} in every row, in steps of at most "
                f"{most}"
            )
        longest = int(sizes.max()) if longest is None else longest
    return Packing(offsets, time if longest is None else longest)


def may_look(offsets: Tensor) -> bool:
    """Whether the offsets can be read: not while something is traced, mapped or captured."""
    if torch.compiler.is_compiling() or type(offsets) is not Tensor:
        return False
    captured = offsets.is_cuda and torch.cuda.is_current_stream_capturing()
    return not captured and torch._C._functorch.peek_interpreter_stack() is None


# ------------------------------------------------------------------- one length at a time


def by_length(
    function: Callable[[Any], Any],
    sequences: tuple[str, ...],
    blank: Callable[[Tensor], Tensor],
) -> Callable[[Any, Packing], tuple[Tensor, Tensor]]:
    """`function` for each packed sequence as if alone; those of one length share a call.

    The definition of what kernels do at once. `sequences` names the inputs [batch, time, ...];
    `blank` makes the state of a sequence without tokens from a tensor of its shape.
    """

    def run(inputs: Any, packing: Packing) -> tuple[Tensor, Tensor]:
        first = getattr(inputs, sequences[0])
        begins = packing.offsets[:, :-1] + first.shape[1] * _rows_of(packing.offsets)
        begins, sizes = begins.flatten(), packing.offsets.diff(dim=1).flatten()
        if not bool(sizes.any()):  # no rows at all
            return tuple(function(inputs))
        order = sizes.argsort(stable=True)
        lengths, counts = (part.tolist() for part in sizes.unique(return_counts=True))
        chosen = dict(zip(lengths, order.split(counts), strict=True))
        idle = chosen.pop(0, None)
        tokens = torch.cat(
            [_tokens(begins[which], size).flatten() for size, which in chosen.items()]
        )
        back = tokens.argsort()
        alike = len(chosen) == 1 and idle is None  # then the tokens lie as they should
        shares = [size * len(which) for size, which in chosen.items()]
        given: dict[str, tuple[Tensor, ...] | None] = {}
        for name in sequences:
            x = getattr(inputs, name)
            if x is not None:
                x = x.flatten(0, 1)
                x = x if alike else _reordered(x, tokens, back)
            given[name] = None if x is None else x.split(shares)
        start = inputs.initial_state
        outputs, states = [], []
        for i, (size, which) in enumerate(chosen.items()):
            pieces = {
                name: None if parts is None else parts[i].unflatten(0, (len(which), size))
                for name, parts in given.items()
            }
            before = None if start is None else start.index_select(0, which)
            y, state = function(inputs._replace(**pieces, initial_state=before))
            outputs.append(y.flatten(0, 1))
            states.append(state)
        if idle is not None:
            like = states[0]
            kept = blank(like.new_empty(len(idle), *like.shape[1:]))
            if start is not None:
                kept = start.index_select(0, idle).to(like.dtype)
            states.insert(0, kept)
        y, state = torch.cat(outputs), torch.cat(states)
        y = y if alike else _reordered(y, back, tokens)
        return y.unflatten(0, first.shape[:2]), state.index_select(0, order.argsort())

    return run


class _Reorder(torch.autograd.Function):
    """x in another order; the gradient is put back rather than added up, which takes far longer."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        return x.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, back = ctx.saved_tensors
        return _reordered(grad, back, order), None, None


def _reordered(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    moved: Tensor = _Reorder.apply(x, order, back)
    return moved


def _tokens(begins: Tensor, size: int) -> Tensor:
    """The places of `size` tokens from each of these places on."""
    return begins[:, None] + torch.arange(size, device=begins.device)


def _rows_of(offsets: Tensor) -> Tensor:
    """[batch, 1]: 0, 1, 2, .."""
    return torch.arange(len(offsets), device=offsets.device)[:, None]


# ----------------------------------------------------- tensors by sequence, without looking


def _owner(packing: Packing, time: int) -> Int[Tensor, "batch time"]:
    """Which sequence of its row a token belongs to: how many have begun, but for the first."""
    begins = packing.offsets[:, 1:-1].long()
    marks = begins.new_zeros(len(begins), time + 1)  # an empty sequence may begin behind the row
    return marks.scatter_add(1, begins, torch.ones_like(begins))[:, :-1].cumsum(1)


def position(packing: Packing, time: int) -> Int[Tensor, "batch time"]:
    """How many tokens of its sequence come before each token."""
    first = packing.offsets.gather(1, _owner(packing, time))
    return torch.arange(time, device=first.device) - first


def previous(
    x: Inexact[Tensor, "batch time *dim"],
    before: Inexact[Tensor, "sequences *dim"],
    packing: Packing | None,
) -> Inexact[Tensor, "batch time *dim"]:
    """What came before each token of its sequence; before the first one, `before`."""
    if packing is None:
        first, _ = in_order(x[:, -1], before)
        return torch.cat([first[:, None], x[:, :-1]], dim=1)
    time = x.shape[1]
    own = before.unflatten(0, (len(x), -1))
    own = own.gather(1, _spread(_owner(packing, time), own))
    shifted = torch.cat([x[:, :1], x[:, :-1]], dim=1)
    return torch.where(_spread(position(packing, time) == 0, x), own, shifted)


def last_of(
    x: Inexact[Tensor, "batch time *dim"],
    before: Inexact[Tensor, "sequences *dim"],
    packing: Packing | None,
) -> Inexact[Tensor, "sequences *dim"]:
    """x at the last token of each sequence; `before` where a sequence has none."""
    if packing is None:
        return in_order(x[:, -1], before)[1]
    end = packing.offsets[:, 1:]
    found = x.gather(1, _spread((end - 1).clamp(min=0).long(), x)).flatten(0, 1)
    return torch.where(_spread((packing.offsets.diff(dim=1) > 0).flatten(), found), found, before)


def in_rows(
    x: Inexact[Tensor, "batch time *dim"], packing: Packing
) -> Inexact[Tensor, "sequences longest *dim"]:
    """A row for each sequence, with zeros behind it: for what walks through time anyway."""
    places, inside = _places(packing, x.shape[1])
    taken = x.gather(1, _spread(places.flatten(1), x)).unflatten(1, places.shape[1:])
    return torch.where(_spread(inside, taken), taken, 0).flatten(0, 1)


def from_rows(
    rows: Inexact[Tensor, "sequences longest *dim"], packing: Packing, time: int
) -> Inexact[Tensor, "batch time *dim"]:
    """The tokens of `in_rows` back in their places."""
    batch, longest = len(packing.offsets), rows.shape[1]
    places = _owner(packing, time) * longest + position(packing, time)
    flat = rows.unflatten(0, (batch, -1)).flatten(1, 2)
    return flat.gather(1, _spread(places, flat))


def _places(
    packing: Packing, time: int
) -> tuple[Int[Tensor, "batch sequences longest"], Bool[Tensor, "batch sequences longest"]]:
    """Where each token of each sequence lies in its row, and whether there is one."""
    offsets, longest = packing
    if longest >= time and offsets.numel() > 0 and may_look(offsets):
        longest = int(offsets.diff(dim=1).max())
    ahead = torch.arange(longest, device=offsets.device)
    places = offsets[:, :-1, None].long() + ahead
    return places.clamp(max=time - 1), ahead < offsets.diff(dim=1)[..., None]


def _spread(index: Tensor, like: Tensor) -> Tensor:
    """`index` for all features of `like`, whose leading axes it has."""
    features = like.shape[index.dim() :]
    return index.reshape(*index.shape, *(1 for _ in features)).expand(*index.shape, *features)
