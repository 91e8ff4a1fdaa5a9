"""Parts that layers are built from: norms, the short convolution, projections, heads."""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import init

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers.placement import device_in_use
from statetrack.ops._triton import available
from statetrack.ops.convolution import Activation

__all__ = [
    "HeadNorm",
    "LayerNorm",
    "RMSNorm",
    "ShortConvolution",
    "at_times",
    "expect_qk_eps",
    "expect_sizes",
    "has_hooks",
    "heads_dividing",
    "in_halves",
    "in_kernels",
    "is_plain",
    "linear",
    "merge_heads",
    "of_few_rows",
    "projected",
    "refuse_eigen_range",
    "reset_linear",
    "split_heads",
    "unit_length",
    "wide",
    "wide_projection",
]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis, in float32 whatever comes in.

    With `groups` the axis is cut into so many equal parts, each of which has a mean of its own.
    """

    def __init__(self, dim: int, *, eps: float, groups: int = 1) -> None:
        super().__init__()
        self.eps, self.groups = eps, groups
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
        if self._has_kernel(x):
            return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.groups == 1:
            normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        else:
            parts = wide.unflatten(-1, (self.groups, -1))
            scale = torch.rsqrt(parts.square().mean(-1, keepdim=True) + self.eps)
            normed = (parts * scale).flatten(-2)
        return (normed * self.weight).to(x.dtype)

    def _has_kernel(self, x: Tensor) -> bool:
        """Whether PyTorch's own kernel does it, where no compiler makes one."""
        return in_kernels(x) and self.groups == 1 and x.dtype == self.weight.dtype

    def extra_repr(self) -> str:
        groups = "" if self.groups == 1 else f", groups={self.groups}"
        return f"{len(self.weight)}, eps={self.eps:g}{groups}"


class LayerNorm(nn.Module):
    """Mean 0 and variance 1 over the last axis, then a weight, and a bias if asked; in float32."""

    def __init__(self, dim: int, *, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = nn.functional.layer_norm(wide, wide.shape[-1:], eps=self.eps) * self.weight
        return (normed if self.bias is None else normed + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps:g}"


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

    def extra_repr(self) -> str:
        heads, dim = self.weight.shape
        return f"{heads}, {dim}, eps={self.eps:g}"


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
        history: Float[Tensor, "sequences past dim"] | None,
        *,
        activation: Activation | None,
        packing: ops.Packing | None = None,
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
            cu_seqlens=packing,
            sizes=sizes,
        )

    def extra_repr(self) -> str:
        dim, width = self.weight.shape
        return f"{dim}, width={width}, bias={self.bias is not None}"


def in_halves(
    module: nn.Module, x: Tensor, second_at: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The two halves of module(x), as products of their own: those of one would be copied later.

    The second one at the times `second_at` alone, if given. A module that is not just a projection
    any more, because it was wrapped or has hooks, is called.
    """
    if not is_plain(module):
        first, second = module(x).chunk(2, dim=-1)
        return first, at_times(second, second_at)
    first, second = module.weight.chunk(2)
    return nn.functional.linear(x, first), nn.functional.linear(at_times(x, second_at), second)


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is a projection without bias, and calling it does nothing else."""
    return type(module) is nn.Linear and module.bias is None and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Whether calling it does more than its class says."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    replaced = "forward" in vars(module)  # how accelerate brings offloaded weights
    return any(hooks) or replaced


def of_few_rows(x: Tensor, *modules: nn.Module) -> bool:
    """Whether `few_rows` may do these projections of x: in decoding, of a few sequences."""
    if not in_kernels(x) or torch.is_autocast_enabled(x.device.type):
        return False
    from statetrack.ops._triton.few import LEAST_ROWS

    few = x.shape[:-1].numel() <= LEAST_ROWS
    return few and all(is_plain(one) and one.weight.dtype == x.dtype for one in modules)


def projected(
    module: nn.Module, x: Float[Tensor, "batch time features"]
) -> Float[Tensor, "batch time outputs"]:
    """module(x), for a few tokens in decoding by a kernel of ours."""
    if of_few_rows(x, module):
        from statetrack.ops._triton.few import few_rows

        assert isinstance(module, nn.Linear)
        return few_rows(x, module.weight)
    found: Tensor = module(x)
    return found


def in_kernels(x: Tensor) -> bool:
    """Whether kernels without a derivative may do it: on a GPU, where nobody asks for one.

    A compiler makes its own, and torch.func cannot look into them.
    """
    return (
        x.is_cuda
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and x.dtype != torch.float64
        and available()
    )


def wide_projection(
    module: nn.Module, x: Float[Tensor, "batch time features"], *, sigmoid: bool = False
) -> Float[Tensor, "batch time outputs"]:
    """module(x) in float32, or float64 if x is; or its sigmoid."""
    if in_kernels(x) and is_plain(module) and not torch.is_autocast_enabled(x.device.type):
        from statetrack.ops._triton.few import FEW_OUTPUTS, FEW_ROWS, few_outputs

        weight = module.weight
        few = len(weight) <= FEW_OUTPUTS and x.shape[0] * x.shape[1] <= FEW_ROWS
        if few and weight.dtype == x.dtype:
            return few_outputs(x, weight, sigmoid=sigmoid)
    y = wide(module(x))
    return torch.sigmoid(y) if sigmoid else y


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
    return nn.utils.skip_init(
        nn.Linear, in_features, out_features, bias=bias, device=device_in_use()
    )


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


def wide(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x in float32, or float64 if it is: gates are computed in it whatever autocast says."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def expect_sizes(**sizes: int | None) -> None:
    """Refuses sizes below 1; None is the default."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be at least 1; leave it out for the default")


def expect_qk_eps(qk_eps: float) -> float:
    if qk_eps < 0:
        raise ValueError(f"qk_eps={qk_eps} must be at least 0, which is unit norm")
    return qk_eps


def unit_length(x: Float[Tensor, "*shape dim"], eps: float = 0.0) -> Float[Tensor, "*shape dim"]:
    """x / √(‖x‖² + eps) in float32; of length 1, whatever ‖x‖ is, where eps is 0."""
    if not eps:
        return ops.unit_vector(x)
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def refuse_eigen_range(name: str, eigen_range: object) -> None:
    """For layers that have no state-transition matrix to speak of."""
    if eigen_range is not None:
        raise ValueError(
            f"{name} takes no eigen_range (got {eigen_range!r}): it is not linear in its state, so "
            "it has no transition matrix whose eigenvalues could be set; leave the argument out"
        )
