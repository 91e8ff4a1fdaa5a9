"""`device` and `dtype` of a constructor, as the modules of torch.nn take them."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import ParamSpec

import torch
from torch import nn

__all__ = ["Device", "Dtype", "device_in_use", "placed"]

Device = torch.device | str | int | None
Dtype = torch.dtype | None
P = ParamSpec("P")


def device_in_use() -> torch.device:
    """Where a new tensor goes; before 2.8 `torch.get_default_device` overlooks `with device:`."""
    return torch.empty(0).device


def placed(init: Callable[P, None]) -> Callable[P, None]:
    """For a constructor that takes the keywords `device` and `dtype`: what it makes lies there.

    The body need not look at either. All that it makes is on `device` from the start, so that one
    on `meta` takes no memory; with a `generator` of another device, the weights are drawn there and
    then moved. They are drawn in torch's default dtype and then rounded to `dtype`.
    """

    @functools.wraps(init)
    def make(*args: P.args, **kwargs: P.kwargs) -> None:
        module, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
        assert isinstance(module, nn.Module) and isinstance(dtype, torch.dtype | None)
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"dtype={dtype} must be a floating-point one, as torch.bfloat16 is")
        wanted = torch.device(device) if isinstance(device, torch.device | str | int) else None
        generator = kwargs.get("generator")
        drawn = generator.device if isinstance(generator, torch.Generator) else wanted
        with drawn if drawn is not None else nullcontext():
            init(*args, **kwargs)
        if wanted is not None or dtype is not None:
            module.to(device=wanted, dtype=dtype)

    return make
