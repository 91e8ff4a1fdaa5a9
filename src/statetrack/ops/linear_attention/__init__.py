"""`linear_attention`: diagonal transitions of either sign, outer-product writes."""

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_range, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops.linear_attention.spec import SPEC, Inputs
from statetrack.ops.packing import CuSeqlens, check_start, packing_of

__all__ = ["linear_attention"]


def linear_attention(
    q: Float[Tensor, "batch time groups key"],
    k: Float[Tensor, "batch time groups key"],
    v: Float[Tensor, "batch time heads value"],
    decay: Float[Tensor, "batch time heads gate"],
    *,
    scale: float = 1.0,
    initial_state: Float[Tensor, "sequences heads key value"] | None = None,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "sequences heads key value"],
]:
    """H_t = Diag(a_t) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t.

    Groups of neighbouring heads may share q and k: of G groups, where G divides H, group g serves
    the heads g·H/G … (g+1)·H/G - 1 of v. In Mamba2 G is 1, or few; G = H is a q and a k per head.
    `decay` is always by head. It has one gate per key dimension (GLA) or one per head (last axis of
    size 1: Mamba2, mLSTM), each in [-1, 1]. A gate of exactly 0 resets the state, a negative one
    flips its sign; no value is special. The state is float32, or float64 if any input is; y has the
    dtype of v.
    With `cu_seqlens` a row holds several sequences (`Packing`), each with its own initial and final
    state, row by row.

    >>> import torch
    >>> one, bits = torch.ones(1, 4, 1, 1), torch.tensor([1.0, 0.0, 1.0, 1.0]).reshape(1, 4, 1, 1)
    >>> start = torch.ones(1, 1, 1, 1)
    >>> linear_attention(one, 0 * one, one, 1 - 2 * bits, initial_state=start)[0].flatten()
    tensor([-1., -1.,  1., -1.])
    """
    sizes: dict[str, int] = {}
    check_shape("q", q, "batch time groups key", sizes)
    check_shape("k", k, "batch time groups key", sizes)
    check_shape("v", v, "batch time heads value", sizes)
    _check_groups(sizes["groups"], v)
    per_head = isinstance(decay, Tensor) and decay.dim() == 4 and decay.shape[-1] == 1
    check_shape("decay", decay, f"batch time heads {1 if per_head else 'key'}", sizes)
    packing = packing_of(cu_seqlens, q)
    check_start(initial_state, "heads key value", sizes, packing)
    check_devices(q=q, k=k, v=v, decay=decay, initial_state=initial_state)
    check_range("decay", decay, -1.0, 1.0)
    return run(SPEC, backend, Inputs(q, k, v, decay, scale, initial_state), packing=packing)


def _check_groups(groups: int, v: Tensor) -> None:
    heads = v.shape[2]
    if groups != heads and (groups < 1 or heads % groups):
        raise ValueError(
            f"v has shape {tuple(v.shape)}, but its {heads} heads must be a multiple of the "
            f"{groups} groups of q and k: give q and k one group, {heads}, or as many as divide "
            f"{heads}"
        )
