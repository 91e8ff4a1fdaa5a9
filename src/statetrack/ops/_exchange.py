"""The one exchange between processes that share a sequence: everybody's tensor for everybody."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["gathered", "known_as"]

_groups: dict[str, dist.ProcessGroup] = {}


def known_as(group: dist.ProcessGroup) -> str:
    """The name by which ops find the group, in the backward pass too."""
    name = str(group.group_name)
    _groups[name] = group
    return name


@torch.library.custom_op("statetrack::gathered", mutates_args=())
def gathered(x: Tensor, group: str, size: int) -> Tensor:
    """x of every process of the group, [size, *x.shape]; all processes must call."""
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x, group=_groups[group])
    return torch.stack(parts)


@torch.library.custom_op("statetrack::scattered_sum", mutates_args=())
def _scattered_sum(x: Tensor, group: str) -> Tensor:
    """x[r] on process r, summed over the processes."""
    summed = x.clone()
    dist.all_reduce(summed, group=_groups[group])
    return summed[dist.get_rank(_groups[group])].clone()


@gathered.register_fake
def _(x: Tensor, group: str, size: int) -> Tensor:
    return x.new_empty(size, *x.shape)


@_scattered_sum.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return x.new_empty(x.shape[1:])


def _setup(ctx: Any, inputs: tuple[Tensor, str, int], output: Tensor) -> None:
    ctx.group = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _scattered_sum(grad.contiguous(), ctx.group), None, None


gathered.register_autograd(_backward, setup_context=_setup)
