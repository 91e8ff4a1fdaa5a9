"""`dplr`: transitions that are a diagonal plus a matrix of rank one."""

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_range, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops.dplr.spec import SPEC, Inputs
from statetrack.ops.packing import CuSeqlens, check_start, packing_of

__all__ = ["dplr"]


def dplr(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time heads key"],
    v: Float[Tensor, "batch time heads value"],
    decay: Float[Tensor, "batch time heads key"],
    left: Float[Tensor, "batch time heads key"],
    right: Float[Tensor, "batch time heads key"],
    *,
    scale: float = 1.0,
    initial_state: Float[Tensor, "sequences heads key value"] | None = None,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "sequences heads key value"],
]:
    """H_t = (Diag(a_t) + l_t r_tᵀ) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t.

    Diagonal plus low rank. The gate a (`decay`) has a number for every key dimension, each in
    [-1, 1]. `left` and `right` are taken as they are, so the eigenvalues are the caller's care.
    With unit vectors κ, k and ‖k‖ = 1,

    ====================  =  ======  ========  =======
    layer                 a  l       r         written
    ====================  =  ======  ========  =======
    Kimi Delta Attention  a  k       -β (a∘k)  β k vᵀ
    RWKV-7                w  -(a∘κ)  κ         k vᵀ
    ====================  =  ======  ========  =======

    and `delta_rule` with a gate per key dimension is the first of them. The state is float32, or
    float64 if any input is; y has the dtype of v. With `cu_seqlens` a row holds several sequences
    (`Packing`), each with its own initial and final state, row by row.

    >>> import torch
    >>> one = torch.tensor([1.0, 0.0]).expand(1, 3, 1, 2)
    >>> v, start = torch.zeros(1, 3, 1, 1), torch.ones(1, 1, 2, 1)
    >>> y, _ = dplr(one, one, v, torch.ones_like(one), one, -2 * one, initial_state=start)
    >>> y.flatten()
    tensor([-1.,  1., -1.])
    """
    sizes: dict[str, int] = {}
    check_shape("q", q, "batch time heads key", sizes)
    check_shape("k", k, "batch time heads key", sizes)
    check_shape("v", v, "batch time heads value", sizes)
    for name, x in (("decay", decay), ("left", left), ("right", right)):
        check_shape(name, x, "batch time heads key", sizes)
    packing = packing_of(cu_seqlens, q)
    check_start(initial_state, "heads key value", sizes, packing)
    check_devices(q=q, k=k, v=v, decay=decay, left=left, right=right, initial_state=initial_state)
    check_range("decay", decay, -1.0, 1.0)
    inputs = Inputs(q, k, v, decay, left, right, scale, initial_state)
    return run(SPEC, backend, inputs, packing=packing)
