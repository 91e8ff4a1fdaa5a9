"""What every layer is, and the few parts that several layers share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers.transitions import Transitions
from statetrack.ops._checks import check_shape
from statetrack.ops.convolution import Activation

__all__ = [
    "HeadNorm",
    "Layer",
    "LayerInPieces",
    "LayerState",
    "RMSNorm",
    "ShortConvolution",
    "at_times",
    "heads_dividing",
    "in_halves",
    "linear",
    "merge_heads",
    "refuse_eigen_range",
    "reset_linear",
    "split_heads",
]

LayerState = dict[str, Tensor]


class Layer(nn.Module, ABC):
    """A sequence mixer: x [batch, time, d_model] in, y of the same shape and a state out.

    The state is a dict of tensors with a leading batch axis; `None` is the empty state. A sequence
    cut in two, with the state handed over, gives the same answer as one run whole. Layers change
    none of their tensors and never branch on data.

    `projected` names what linear maps alone read, "x" or a norm of the layer, and those maps. Other
    factors may come in between.

    Those built on `LayerInPieces` also mix rows that hold several sequences each (`ops.Pieces`);
    the state that comes back is then that after each of them.
    """

    projected: Mapping[str, tuple[str, ...]] = {}

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
        pieces: ops.Pieces | None = None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        """Mixes a whole sequence; y at every time, or at the times `read_at` alone."""
        check_shape("x", x, "batch time d_model", {"d_model": self.d_model})
        if read_at is not None and (
            read_at.is_floating_point() or read_at.shape[:-1] != x.shape[:1]
        ):
            raise ValueError(
                f"read_at has shape {tuple(read_at.shape)} and dtype {read_at.dtype}, but must be "
                f"integers [batch, asked] with batch = {len(x)}"
            )
        if pieces is None and read_at is None:
            return self._mix(x, state)
        if pieces is not None and state is not None:
            raise ValueError("pieces start from an empty state: leave out state, or pieces")
        return self._mix_some(x, state, read_at, pieces)

    @abstractmethod
    def _mix(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> tuple[Float[Tensor, "batch time d_model"], LayerState]:
        """`forward` on checked input."""

    def _mix_some(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        pieces: ops.Pieces | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        """`forward` on checked input, for some times or of several sequences in a row."""
        if pieces is not None:
            name = type(self).__name__
            raise ValueError(
                f"{name} has no kernel for pieces; give each sequence a row of its own"
            )
        y, state = self._mix(x, state)
        return at_times(y, read_at), state

    @abstractmethod
    def transitions(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None = None
    ) -> Transitions:
        """A(x_t) and B(x_t) of the recurrence H_t = A(x_t) H_{t-1} + B(x_t) for every token.

        H is `state["recurrent"]`, as [batch, heads, key, value].
        """

    @property
    @abstractmethod
    def state_size(self) -> int:
        """How many numbers the state holds for one sequence."""

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the initial weights."""

    def step(
        self, x_t: Float[Tensor, "batch d_model"], state: LayerState | None = None
    ) -> tuple[Float[Tensor, "batch d_model"], LayerState]:
        """One token of decoding: the same function as `forward` on a sequence of length one."""
        y, state = self(x_t.unsqueeze(1), state)
        return y.squeeze(1), state


class LayerInPieces(Layer):
    """A layer whose rows may hold several sequences."""

    def _mix(
        self, x: Float[Tensor, "batch time d_model"], state: LayerState | None
    ) -> tuple[Float[Tensor, "batch time d_model"], LayerState]:
        return self._mix_some(x, state, None, None)

    @abstractmethod
    def _mix_some(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        pieces: ops.Pieces | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        """`forward` on checked input; what follows the recurrence at the times `read_at` alone."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis, in float32 whatever comes in."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


class HeadNorm(nn.Module):
    """Each head to mean 0 and variance 1, then one weight per channel (a group norm over heads)."""

    def __init__(self, num_heads: int, head_dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_heads, head_dim))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.ones_(self.weight)

    def forward(
        self, x: Float[Tensor, "batch time heads dim"]
    ) -> Float[Tensor, "batch time heads dim"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return (centred * scale * self.weight).to(x.dtype)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution over the last `width` tokens, with its history as state."""

    def __init__(self, dim: int, width: int, *, bias: bool) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"conv_size={width} must be at least 1 here; 0 turns it off")
        self.width = width
        self.weight = nn.Parameter(torch.empty(dim, width))
        self.bias = nn.Parameter(torch.empty(dim)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.width**-0.5
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound, generator=generator)

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        history: Float[Tensor, "batch past dim"] | None,
        *,
        activation: Activation | None,
        pieces: ops.Pieces | None = None,
        sizes: tuple[int, ...] | None = None,
    ) -> tuple[
        Float[Tensor, "batch time dim"] | tuple[Float[Tensor, "batch time _"], ...],
        Float[Tensor, "sequences past dim"],
    ]:
        """The convolution, in parts of these sizes if any, and its last width - 1 inputs."""
        return ops.short_convolution(
            x,
            self.weight,
            self.bias,
            activation=activation,
            initial_state=history,
            pieces=pieces,
            sizes=sizes,
        )


def in_halves(
    module: nn.Module, x: Tensor, second_at: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The two halves of module(x), as products of their own: those of one would be copied later.

    The second one at the times `second_at` alone, if given. A module that is not just a projection
    any more, because it was wrapped or has hooks, is called.
    """
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    if type(module) is not nn.Linear or module.bias is not None or any(hooks):
        first, second = module(x).chunk(2, dim=-1)
        return first, at_times(second, second_at)
    first, second = module.weight.chunk(2)
    return nn.functional.linear(x, first), nn.functional.linear(at_times(x, second_at), second)


def at_times(
    x: Float[Tensor, "batch time *features"], read_at: Int[Tensor, "batch asked"] | None
) -> Float[Tensor, "batch asked *features"]:
    """x at the times `read_at` of each row; all of it where there are none."""
    if read_at is None:
        return x
    places = read_at.reshape(*read_at.shape, *(1 for _ in x.shape[2:]))
    return x.gather(1, places.expand(-1, -1, *x.shape[2:]))


def linear(in_features: int, out_features: int, *, bias: bool = False) -> nn.Linear:
    """A projection whose weights its owner draws in `reset_parameters`."""
    device = torch.get_default_device()
    return nn.utils.skip_init(nn.Linear, in_features, out_features, bias=bias, device=device)


def reset_linear(module: nn.Linear, generator: torch.Generator | None) -> None:
    """PyTorch's own draw for a linear layer: uniform within 1/sqrt(in_features)."""
    bound = module.in_features**-0.5
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound, generator=generator)


def split_heads(
    x: Float[Tensor, "batch time features"], num_heads: int
) -> Float[Tensor, "batch time heads dim"]:
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads))


def merge_heads(
    x: Float[Tensor, "batch time heads dim"],
) -> Float[Tensor, "batch time features"]:
    return x.flatten(-2)


def heads_dividing(d_model: int, num_heads: int) -> int:
    """The head size when `num_heads` equal heads share `d_model`."""
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(f"num_heads={num_heads} must divide d_model={d_model}")
    return d_model // num_heads


def refuse_eigen_range(name: str, eigen_range: object) -> None:
    """For layers that have no state-transition matrix to speak of."""
    if eigen_range is not None:
        raise ValueError(
            f"{name} takes no eigen_range (got {eigen_range!r}): it is not linear in its state, so "
            "it has no transition matrix whose eigenvalues could be set; leave the argument out"
        )
