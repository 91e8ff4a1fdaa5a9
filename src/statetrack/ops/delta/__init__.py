"""`delta_rule` and `delta_product`: transitions that are generalized Householder matrices."""

from typing import Any

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_range, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops._register import compute_dtype
from statetrack.ops.delta.reference import unit_vector
from statetrack.ops.delta.spec import SPEC, Inputs, large_state
from statetrack.ops.dplr import spec as dplr
from statetrack.ops.packing import CuSeqlens, Packing, check_start, packing_of

__all__ = ["delta_product", "delta_rule"]


def delta_rule(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time heads key"],
    v: Float[Tensor, "batch time heads value"],
    beta: Float[Tensor, "batch time heads"],
    decay: Float[Tensor, "batch time heads"] | Float[Tensor, "batch time heads key"] | None = None,
    *,
    normalize: bool = True,
    scale: float = 1.0,
    initial_state: Float[Tensor, "sequences heads key value"] | None = None,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "sequences heads key value"],
]:
    """H_t = (I - β_t k_t k_tᵀ) a_t H_{t-1} + β_t k_t v_tᵀ;  y_t = scale · H_tᵀ q_t.

    β in [0, 2] puts the eigenvalue 1 - β in [-1, 1]: β = 2 is a reflection, β = 1 forgets what was
    stored under k, β = 0 changes nothing. The gate a (`decay`) is in [-1, 1], and 1 if left out.
    It is a number for each head, or Diag(a) with one for each key dimension (Kimi Delta Attention),
    which runs as `dplr`.
    With `normalize`, q and k are divided by their norms inside and the transition is
    I - β k kᵀ/‖k‖² whatever the dtype; without it, k is used as it is.
    The state is float32, or float64 if any input is; y has the dtype of v.
    With `cu_seqlens` a row holds several sequences (`Packing`), each with its own initial and final
    state, row by row.

    >>> import torch
    >>> k = torch.tensor([1.0, 0.0]).expand(1, 3, 1, 2)
    >>> v, beta = torch.zeros(1, 3, 1, 1), torch.full((1, 3, 1), 2.0)
    >>> y, _ = delta_rule(k, k, v, beta, initial_state=torch.ones(1, 1, 2, 1))
    >>> y.flatten()
    tensor([-1.,  1., -1.])
    """
    by_key = isinstance(decay, Tensor) and decay.dim() == 4
    gate = None if by_key else decay
    packing = _check("batch time heads", q, k, v, beta, gate, initial_state, cu_seqlens)
    if decay is not None and by_key:
        sizes = dict(zip(("batch", "time", "heads", "key"), k.shape, strict=True))
        check_shape("decay", decay, "batch time heads key", sizes)
        check_devices(k=k, decay=decay)
        check_range("decay", decay, -1.0, 1.0)
        dtype = compute_dtype(q, k, v, beta, decay, initial_state)
        beta, gate = beta.to(dtype)[..., None], decay.to(dtype)
        if normalize:  # at β = 2 what is wrong with ‖k‖ is wrong with the eigenvalue -1
            q, k = unit_vector(q.to(dtype)), unit_vector(k.double())
        k = k.to(dtype)
        by_dplr = dplr.Inputs(q, beta * k, v, gate, k, -beta * gate * k, scale, initial_state)
        return run(dplr.SPEC, backend, by_dplr, packing=packing)
    k, v, beta = (part.unsqueeze(2) for part in (k, v, beta))
    inputs = Inputs(q, k, v, beta, decay, normalize, scale, initial_state)
    return run(SPEC, backend, inputs, packing=packing, large=large_state(k, v))


def delta_product(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time micro heads key"],
    v: Float[Tensor, "batch time micro heads value"],
    beta: Float[Tensor, "batch time micro heads"],
    decay: Float[Tensor, "batch time heads"] | None = None,
    *,
    normalize: bool = True,
    scale: float = 1.0,
    initial_state: Float[Tensor, "sequences heads key value"] | None = None,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "sequences heads key value"],
]:
    """The delta rule with n micro-steps per token: A(x) is a product of n Householder matrices.

    Per token: H ← a H, then H ← (I - β_j k_j k_jᵀ) H + β_j k_j v_jᵀ for j = 1..n in this order,
    then y = scale · Hᵀ q. n = 1 is `delta_rule`, which also explains the other arguments. Products
    of two reflections are rotations, so n >= 2 reaches complex eigenvalues.
    """
    packing = _check("batch time micro heads", q, k, v, beta, decay, initial_state, cu_seqlens)
    inputs = Inputs(q, k, v, beta, decay, normalize, scale, initial_state)
    return run(SPEC, backend, inputs, packing=packing, large=large_state(k, v))


def _check(
    steps: str,
    q: Any,
    k: Any,
    v: Any,
    beta: Any,
    decay: Any,
    initial_state: Any,
    cu_seqlens: CuSeqlens | None,
) -> Packing | None:
    """`steps` names the axes that k, v and beta share; returns what `cu_seqlens` says."""
    sizes: dict[str, int] = {}
    check_shape("q", q, "batch time heads key", sizes)
    check_shape("k", k, f"{steps} key", sizes)
    check_shape("v", v, f"{steps} value", sizes)
    check_shape("beta", beta, steps, sizes)
    if decay is not None:
        check_shape("decay", decay, "batch time heads", sizes)
    packing = packing_of(cu_seqlens, q)
    check_start(initial_state, "heads key value", sizes, packing)
    check_devices(q=q, k=k, v=v, beta=beta, decay=decay, initial_state=initial_state)
    check_range("beta", beta, 0.0, 2.0)
    check_range("decay", decay, -1.0, 1.0)
    return packing
