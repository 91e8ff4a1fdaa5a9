"""What every layer is."""

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.eigenvalues import EigenRange
from statetrack.layers.parts import at_times
from statetrack.layers.transitions import Transitions
from statetrack.ops._checks import check_shape
from statetrack.ops.context import in_use
from statetrack.ops.packing import may_look, sequences_in

__all__ = ["Fold", "Layer", "LayerState", "Shared", "expect_mask"]

LayerState = dict[str, Tensor]


class Shared(NamedTuple):
    """What the layers of a stack hand on to later ones, beside their outputs.

    Attributes:
        values: the values v of the first layer that gave any; None before it.
        tokens: the tokens that the model reads; None where it was given vectors.
    """

    values: Float[Tensor, "batch time features"] | None = None
    tokens: Int[Tensor, "batch time"] | None = None


class Fold(NamedTuple):
    """A norm whose output linear maps alone read, so that its weight may go into theirs.

    Other factors may come in between. The norm has one weight per channel and no bias.

    Attributes:
        norm: a module of the layer, or None for the norm that the block puts before the layer.
        readers: all maps that read it. Nothing else may.
    """

    norm: nn.Module | None
    readers: tuple[nn.Module, ...]


class Layer(nn.Module, ABC):
    """A sequence mixer: x [batch, time, d_model] in, y of the same shape and a state out.

    The state is a dict of tensors with a leading batch axis; `None` is the empty state. A sequence
    cut in two, with the state handed over, gives the same answer as one run whole. Layers change
    none of their tensors and never branch on data.

    A layer of your own is a subclass. Its constructor takes `d_model` and then its options, each
    with a name and, if it can be left out, a default; a constructor with a parameter `depth` is
    told its place in the stack, from 0.0 to 1.0. One with `device` and `dtype` under the decorator
    `layers.placement.placed` takes them as the modules of torch.nn do. A layer must have

    - `_mix(x, state, read_at, packing)`: `forward` on checked input;
    - `state_size`: how many numbers it keeps for one sequence;
    - `reset_parameters(generator)`: draws all weights;

    and it may have

    - `state_keys`, the names in its state, if they are not just `"recurrent"`;
    - `packs = True`, if `_mix` takes several sequences in a row (`ops.Packing`), with a state for
      each, and itself reads at the times `read_at` alone; otherwise both are None whenever `_mix`
      is called;
    - `splits = True`, if several processes may share a sequence (`ops.context_parallel`): whatever
      `_mix` does from token to token it leaves to ops and to `ops.packing.previous` and `last_of`;
    - `_transitions(x, state)`: `transitions` on checked input, for looking at its eigenvalues;
    - `_mix_shared(x, state, read_at, packing, shared)`, if it hands on something to later layers of
      its stack (`Shared`);
    - `folds`, which makes training many runs at once on a GPU faster.

    `statetrack.layers.register` makes it known by name.

    >>> class Sum(Layer):
    ...     def _mix(self, x, state, read_at, packing):
    ...         before = 0 if state is None else state["recurrent"][:, None]
    ...         y = before + x.cumsum(1)
    ...         return y, {"recurrent": y[:, -1]}
    ...     @property
    ...     def state_size(self):
    ...         return self.d_model
    ...     def reset_parameters(self, generator=None):
    ...         pass
    >>> y, state = Sum(2)(torch.ones(1, 3, 2))
    >>> state["recurrent"]
    tensor([[3., 3.]])
    """

    packs: ClassVar[bool] = False
    splits: ClassVar[bool] = False

    def __init__(self, d_model: int) -> None:
        super().__init__()
        if d_model < 1:
            raise ValueError(f"d_model={d_model} must be at least 1")
        self.d_model = d_model

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None = None,
        *,
        read_at: Int[Tensor, "batch asked"] | None = None,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        shared: Shared | None = None,
    ) -> (
        tuple[Float[Tensor, "batch asked d_model"], LayerState]
        | tuple[Float[Tensor, "batch asked d_model"], LayerState, Shared]
    ):
        """Mixes a whole sequence; y at every time, or at the times `read_at` alone.

        `mask` is True at the tokens of a sequence and False at padding, which may stand on the
        left, on the right or on both sides. Outputs and state are those of each sequence by itself,
        and y is zero at padding. With `cu_seqlens` a row holds several sequences (`ops.Packing`),
        for layers that pack; the state, before and after, is then that of each of them.
        Inside a stack, `shared` is what earlier layers handed on, and comes back as a third result
        for later ones.
        """
        check_shape("x", x, "batch time d_model", {"d_model": self.d_model})
        if read_at is not None:
            _check_times(read_at, x)
        packing = ops.packing_of(cu_seqlens, x)
        if packing is not None:
            self._check_packing(mask)
        count = sequences_in(x, packing)
        self._check_state(state, count)
        if in_use():
            self._check_cut(mask)
        if mask is not None:
            y, after, given = self._mix_masked(x, state, mask, shared or Shared())
            y = at_times(y, read_at)
        elif self.packs:
            y, after, given = self._mix_shared(x, state, read_at, packing, shared or Shared())
        else:
            y, after, given = self._mix_shared(x, state, None, None, shared or Shared())
            y = at_times(y, read_at)
        self._check_state(after, count)
        return (y, after) if shared is None else (y, after, given)

    @final
    def step(
        self, x_t: Float[Tensor, "batch d_model"], state: LayerState | None = None
    ) -> tuple[Float[Tensor, "batch d_model"], LayerState]:
        """One token of decoding: the same function as `forward` on a sequence of length one."""
        y, state = self(x_t.unsqueeze(1), state)
        return y.squeeze(1), state

    @abstractmethod
    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        """`forward` on checked input; `read_at` and `packing` are None unless the layer `packs`."""

    def _mix_shared(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
        shared: Shared,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState, Shared]:
        """`_mix` with what earlier layers handed on, and what goes on from here: the same, unless a
        layer says otherwise.
        """
        return *self._mix(x, state, read_at, packing), shared

    @property
    @abstractmethod
    def state_size(self) -> int:
        """How many numbers the state holds for one sequence."""

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the initial weights."""

    @property
    def state_keys(self) -> tuple[str, ...]:
        """The names of the tensors in the state."""
        return ("recurrent",)

    @final
    def transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None = None
    ) -> Transitions:
        """A(x_t) and B(x_t) of the recurrence H_t = A(x_t) H_{t-1} + B(x_t) for every token.

        H is `state["recurrent"]`, as [batch, heads, key, value].
        """
        check_shape("x", x, "batch time d_model", {"d_model": self.d_model})
        self._check_state(state, len(x))
        return self._transitions(x, state)

    def _transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> Transitions:
        """`transitions` on checked input."""
        raise ValueError(
            f"{type(self).__name__} has no transitions to look at: give the class a method "
            "_transitions(x, state) that returns a statetrack.layers.Transitions"
        )

    def with_room(self, state: LayerState, room: int) -> LayerState:
        """A copy of the state that keeps its shapes until `room` tokens are read in all.

        A CUDA graph of decoding needs that. Only a state that grows has to make room.
        """
        self._check_state(state, None)
        return {key: part.clone() for key, part in state.items()}

    def folds(self) -> list[Fold]:
        """Norms whose weights may go into the maps that read them; none unless declared."""
        return []

    @final
    def extra_repr(self) -> str:
        """The options that are kept by name."""
        kept = vars(self)
        names = [name for name in inspect.signature(type(self)).parameters if name in kept]
        return ", ".join(f"{name}={_written(kept[name])}" for name in names)

    def _check_state(self, state: LayerState | None, count: int | torch.SymInt | None) -> None:
        """Its names, and that it is about so many sequences, if their number is known."""
        if state is None:
            return
        name = type(self).__name__
        if set(state) != set(self.state_keys):
            known = ", ".join(map(repr, self.state_keys)) or "nothing"
            raise ValueError(
                f"the state of {name} holds {known}, but this one "
                f"holds {', '.join(map(repr, state)) or 'nothing'}; None is the empty state"
            )
        for key, part in state.items():
            if not isinstance(part, Tensor):
                raise ValueError(
                    f"state[{key!r}] of {name} must be a tensor, got {type(part).__name__}; None "
                    "in place of the whole state is the empty one"
                )
            if count is None or torch.compiler.is_compiling():  # comparing would fix the number
                continue
            if part.dim() == 0 or part.shape[0] != count:
                raise ValueError(
                    f"state[{key!r}] of {name} has shape {tuple(part.shape)}, but must be "
                    f"[{count}, ...]: one for each row, or for each packed sequence, row by row"
                )

    def _check_cut(self, mask: Tensor | None) -> None:
        if not self.splits:
            raise ValueError(
                f"{type(self).__name__} needs all tokens of a sequence in one process: leave out "
                "context_parallel, or take a layer that is linear in its state"
            )
        if mask is not None:
            raise ValueError(
                "padding cannot be cut across processes: leave out mask or context_parallel"
            )

    def _check_packing(self, mask: Tensor | None) -> None:
        if not self.packs:
            raise ValueError(
                f"{type(self).__name__} does not take packed sequences; give each sequence a "
                "row of its own, with a mask if they differ in length"
            )
        if mask is not None:
            raise ValueError(
                "packed sequences leave no room for padding: leave out mask, or cu_seqlens"
            )

    def _mix_masked(
        self, x: Tensor, state: LayerState | None, mask: Tensor, shared: Shared
    ) -> tuple[Float[Tensor, "batch time d_model"], LayerState, Shared]:
        """`forward` without the padding: all sequences packed, or those of one length at a time."""
        expect_mask(mask, x)
        if not len(mask):
            return self._mix_shared(x, state, None, None, shared)
        sizes = mask.sum(1)
        if not bool(sizes.all()):
            row = int(sizes.argmin())
            raise ValueError(f"row {row} of the mask has no token: leave that sequence out")
        if self.packs:
            offsets = pad(sizes.cumsum(0), (1, 0))[None]
            packing = ops.Packing(offsets, int(sizes.max()))
            own = Shared(*(None if part is None else part[mask][None] for part in shared))
            y, after, given = self._mix_shared(x[mask][None], state, None, packing, own)
            handed = None if given.values is None else _spread(given.values[0], mask)
            return _spread(y[0], mask), after, Shared(handed, shared.tokens)
        outputs, states, order, values = [], [], [], []
        for size in sizes.unique().tolist():
            rows = (sizes == size).nonzero().flatten()
            tokens = x[rows][mask[rows]].unflatten(0, (len(rows), size))
            before = None if state is None else {key: part[rows] for key, part in state.items()}
            own = Shared(
                *(
                    None if part is None else part[rows][mask[rows]].unflatten(0, (len(rows), size))
                    for part in shared
                )
            )
            y, after, given = self._mix_shared(tokens, before, None, None, own)
            outputs.append(_spread(y.flatten(0, 1), mask[rows]))
            if given.values is not None:
                values.append(_spread(given.values.flatten(0, 1), mask[rows]))
            states.append(after)
            order.append(rows)
        back = torch.cat(order).argsort()
        joined = {key: _stacked([part[key] for part in states])[back] for key in self.state_keys}
        given = Shared(torch.cat(values)[back] if values else None, shared.tokens)
        return torch.cat(outputs)[back], joined, given


def _check_times(read_at: Tensor, x: Tensor) -> None:
    """Whether these are times of x; their values where looking at them is free."""
    if read_at.is_floating_point() or read_at.shape[:-1] != x.shape[:1]:
        raise ValueError(
            f"read_at has shape {tuple(read_at.shape)} and dtype {read_at.dtype}, but must be "
            f"integers [batch, asked] with batch = {len(x)}"
        )
    if read_at.numel() and read_at.device.type == "cpu" and may_look(read_at):
        first, last = (int(end) for end in read_at.aminmax())
        if first < 0 or last >= x.shape[1]:
            raise ValueError(
                f"read_at has the time {first if first < 0 else last}, but must be within 0 to "
                f"{x.shape[1] - 1}"
            )


def expect_mask(mask: Tensor, x: Tensor) -> None:
    """Whether it is one about x [batch, time, ...]."""
    if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}, but must be bool "
            f"{list(x.shape[:2])}, True at tokens and False at padding"
        )


def _spread(
    y: Float[Tensor, "tokens d_model"], mask: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time d_model"]:
    """The tokens at their places, with zeros at padding."""
    return y.new_zeros(*mask.shape, y.shape[-1]).masked_scatter(mask[..., None], y)


def _stacked(parts: list[Tensor]) -> Tensor:
    """One batch; what grows with a sequence is filled up with zeros at its end."""
    if parts[0].dim() == 1:
        return torch.cat(parts)
    longest = max(part.shape[1] for part in parts)
    fill = [[0, 0] * (part.dim() - 2) + [0, longest - part.shape[1]] for part in parts]
    return torch.cat([pad(part, gap) for part, gap in zip(parts, fill, strict=True)])


def _written(value: Any) -> str:
    return repr(value.pair if isinstance(value, EigenRange) else value)
