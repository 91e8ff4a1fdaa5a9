"""`matrix_scan`: transitions that are any matrices."""

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops._register import compute_dtype
from statetrack.ops.dense.spec import SPEC, Inputs
from statetrack.ops.packing import CuSeqlens, check_start, packing_of

__all__ = ["matrix_scan"]


def matrix_scan(
    A: Float[Tensor, "batch time n n"],
    initial_state: Float[Tensor, "sequences n columns"],
    inputs: Float[Tensor, "batch time n columns"] | None = None,
    *,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time n columns"], Float[Tensor, "sequences n columns"]]:
    """H_t = A_t H_{t-1} + B_t for any matrices A_t; returns every H_t and the last.

    `A` holds A_t [batch, time, n, n], `initial_state` H_0, and `inputs` B_t, zero where left out.
    Half precision inputs are computed and returned in float32, the dtype of the state. With
    `cu_seqlens` a row holds several sequences (`Packing`), each with its own initial and final
    state, row by row.

    >>> import torch
    >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).expand(1, 3, 2, 2)
    >>> matrix_scan(swap, torch.tensor([[[1.0], [0.0]]]))[1].flatten()
    tensor([0., 1.])
    """
    sizes: dict[str, int] = {}
    check_shape("A", A, "batch time n n", sizes)
    packing = packing_of(cu_seqlens, A)
    if initial_state is None:
        raise ValueError("initial_state must be a tensor, got None: it says how many columns H has")
    check_start(initial_state, "n columns", sizes, packing)
    if inputs is not None:
        check_shape("inputs", inputs, "batch time n columns", sizes)
    check_devices(A=A, initial_state=initial_state, inputs=inputs)
    dtype = compute_dtype(A, initial_state, inputs)
    writes = None if inputs is None else inputs.to(dtype)
    given = Inputs(A.to(dtype), initial_state.to(dtype), writes)
    return run(SPEC, backend, given, packing=packing)
