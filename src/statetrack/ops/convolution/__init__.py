"""`short_convolution`: what a token takes from the few before it, channel by channel."""

from typing import Literal, get_args, overload

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops.convolution.spec import SPEC, Inputs
from statetrack.ops.packing import CuSeqlens, check_start, packing_of

__all__ = ["Activation", "short_convolution"]

Activation = Literal["silu"]
ACTIVATIONS = get_args(Activation)


@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: CuSeqlens | None = None,
    sizes: None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: CuSeqlens | None = None,
    sizes: tuple[int, ...] | None,
    backend: Backend = "auto",
) -> tuple[Tensor | tuple[Tensor, ...], Tensor]: ...


def short_convolution(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None = None,
    *,
    activation: Activation | None = None,
    initial_state: Float[Tensor, "sequences past channels"] | None = None,
    cu_seqlens: CuSeqlens | None = None,
    sizes: tuple[int, ...] | None = None,
    backend: Backend = "auto",
) -> tuple[
    Float[Tensor, "batch time channels"] | tuple[Float[Tensor, "batch time _"], ...],
    Float[Tensor, "sequences past channels"],
]:
    """z_t = bias + Σ_j weight[:, j] ∘ x_{t-width+1+j} for j = 0..width-1; y = z, or z·σ(z).

    `activation` says which: None, or `silu`.
    The last column of `weight` meets the token itself. The state holds the last width - 1 inputs
    (past = width - 1), zeros unless given; it is float32, or float64 if any input is, as are the
    sums; y has the dtype of x. With `cu_seqlens` a row holds several sequences (`Packing`): no
    token looks back into another one, and each has its own initial and final state, row by row.
    With `sizes` y is cut along its channels into tensors of these sizes.

    >>> import torch
    >>> x, difference = torch.tensor([[[1.0], [3.0], [6.0]]]), torch.tensor([[-1.0, 1.0]])
    >>> short_convolution(x, difference)[0].flatten()
    tensor([1., 2., 3.])
    """
    found: dict[str, int] = {}
    check_shape("x", x, "batch time channels", found)
    check_shape("weight", weight, "channels width", found)
    if found["width"] < 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: width must be at least 1")
    if bias is not None:
        check_shape("bias", bias, "channels", found)
    packing = packing_of(cu_seqlens, x)
    found["past"] = found["width"] - 1
    check_start(initial_state, "past channels", found, packing)
    check_devices(x=x, weight=weight, bias=bias, initial_state=initial_state)
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is not 'silu' or None")
    if sizes is not None and sum(sizes) != found["channels"]:
        raise ValueError(f"sizes={sizes} must add up to channels = {found['channels']}")
    inputs = Inputs(x, weight, bias, activation == "silu", initial_state)
    return run(SPEC, backend, inputs, packing=packing, sizes=sizes)
