"""`diagonal_scan`: transitions that are diagonal matrices."""

from torch import Tensor

from statetrack._typing import Inexact
from statetrack.ops._checks import check_devices, check_range, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops._register import compute_dtype
from statetrack.ops.diagonal.spec import SPEC, Inputs
from statetrack.ops.packing import CuSeqlens, check_start, packing_of

__all__ = ["diagonal_scan"]


def diagonal_scan(
    decay: Inexact[Tensor, "batch time *dim"],
    inputs: Inexact[Tensor, "batch time *dim"],
    initial_state: Inexact[Tensor, "sequences *dim"] | None = None,
    *,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[Inexact[Tensor, "batch time *dim"], Inexact[Tensor, "sequences *dim"]]:
    """h_t = a_t ∘ h_{t-1} + x_t, elementwise; returns every h_t and the last.

    `decay` holds any numbers with |a| <= 1, real of either sign or complex. Half precision inputs
    are computed and returned in float32, the dtype of the state. With `cu_seqlens` a row holds
    several sequences (`Packing`), each with its own initial and final state, row by row.

    >>> import torch
    >>> bits = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    >>> diagonal_scan(1 - 2 * bits, torch.zeros(1, 4), torch.ones(1))[0]  # (-1)^(number of ones)
    tensor([[-1., -1.,  1., -1.]])
    """
    sizes: dict[str, int] = {}
    rank = decay.dim() if isinstance(decay, Tensor) else 2
    axes = ["batch", "time", *(f"dim{i}" for i in range(rank - 2))]
    check_shape("decay", decay, " ".join(axes), sizes, complex_ok=True)
    check_shape("inputs", inputs, " ".join(axes), sizes, complex_ok=True)
    packing = packing_of(cu_seqlens, inputs)
    check_start(initial_state, " ".join(axes[2:]), sizes, packing, complex_ok=True)
    check_devices(decay=decay, inputs=inputs, initial_state=initial_state)
    check_range("decay", decay, 0.0 if decay.is_complex() else -1.0, 1.0)
    dtype = compute_dtype(decay, inputs, initial_state)
    start = None if initial_state is None else initial_state.to(dtype)
    return run(SPEC, backend, Inputs(decay.to(dtype), inputs.to(dtype), start), packing=packing)
