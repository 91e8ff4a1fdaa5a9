"""Every layer with its sequence on several processes, for test_base.py."""

from typing import Any

import torch
import torch.distributed as dist

from statetrack import ops
from tests.helpers import relative_error
from tests.layers.cases import SIZES, build, sequence
from tests.ops.processes import segment, summed


def all_layers() -> dict[str, dict[str, float] | str]:
    """By layer: the greatest relative errors on this process, or why it refused."""
    return {name: _compared(name) for name in SIZES}


def _compared(name: str) -> dict[str, float] | str:
    layer, x = _layer(name), sequence(40)
    before = {key: part.detach() for key, part in layer(sequence(5, seed=3))[1].items()}
    weights = [weight for weight in layer.parameters() if weight.requires_grad]
    x.requires_grad_()
    y, after = layer(x, before)
    wanted = torch.autograd.grad(y.cos().sum(), [x, *weights])

    part = segment(x.shape[1])
    own = x[:, part].detach().requires_grad_()
    try:
        with ops.context_parallel(dist.group.WORLD):
            found, end = layer(own, before)
    except ValueError as error:
        return str(error)
    got = torch.autograd.grad(found.cos().sum(), [own, *weights])
    errors = {"y": relative_error(found, y[:, part])}
    errors["x"] = relative_error(got[0], wanted[0][:, part])
    errors |= {key: relative_error(end[key], value) for key, value in after.items()}
    for (label, _), have, want in zip(layer.named_parameters(), got[1:], wanted[1:], strict=True):
        errors[label] = relative_error(summed(have), want)
    return errors


def _layer(name: str) -> Any:
    options = {"backend": "torch"} if name not in ("ChannelMix", "LSTM", "Attention") else {}
    return build(name, **options)
