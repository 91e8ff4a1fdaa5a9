"""`matrix_scan`: transitions that are any matrices."""

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops._register import compute_dtype
from statetrack.ops.dense.spec import SPEC, Inputs

__all__ = ["matrix_scan"]


def matrix_scan(
    A: Float[Tensor, "batch time n n"],
    initial_state: Float[Tensor, "batch n columns"],
    inputs: Float[Tensor, "batch time n columns"] | None = None,
    *,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time n columns"], Float[Tensor, "batch n columns"]]:
    """H_t = A_t H_{t-1} + B_t for any matrices A_t; returns every H_t and the last.

    Half precision inputs are computed and returned in float32, the dtype of the state.

    >>> import torch
    >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).expand(1, 3, 2, 2)
    >>> matrix_scan(swap, torch.tensor([[[1.0], [0.0]]]))[1].flatten()
    tensor([0., 1.])
    """
    sizes: dict[str, int] = {}
    check_shape("A", A, "batch time n n", sizes)
    check_shape("initial_state", initial_state, "batch n columns", sizes)
    if inputs is not None:
        check_shape("inputs", inputs, "batch time n columns", sizes)
    check_devices(A=A, initial_state=initial_state, inputs=inputs)
    dtype = compute_dtype(A, initial_state, inputs)
    writes = None if inputs is None else inputs.to(dtype)
    return run(SPEC, backend, Inputs(A.to(dtype), initial_state.to(dtype), writes))
