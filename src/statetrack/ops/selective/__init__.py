"""`selective_scan`: diagonal transitions from a step size, Mamba's scan."""

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_range, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops.packing import CuSeqlens, check_start, packing_of
from statetrack.ops.selective.spec import SPEC, Inputs

__all__ = ["selective_scan"]


def selective_scan(
    u: Float[Tensor, "batch time channels"],
    delta: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels state"],
    B: Float[Tensor, "batch time state"],
    C: Float[Tensor, "batch time state"],
    D: Float[Tensor, "channels"] | None = None,
    *,
    low: float = -1.0,
    initial_state: Float[Tensor, "sequences channels state"] | None = None,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "sequences channels state"]]:
    """Mamba's scan: h_t = a_t ∘ h_{t-1} + Δ_t u_t B_t, a = low + (1 - low)·exp(Δ A); y = h·C + D u.

    `delta` is Δ, and `B` and `C` are shared by all channels. Δ >= 0 and A <= 0, so that exp(Δ A) is
    in [0, 1] and a in [low, 1]. `low = 0` is Mamba as published, `low = -1` lets a state flip its
    sign. The state is float32, or float64 if any input is; y has the dtype of u. With `cu_seqlens`
    a row holds several sequences (`Packing`), each with its own initial and final state, row by
    row.
    """
    sizes: dict[str, int] = {}
    check_shape("u", u, "batch time channels", sizes)
    check_shape("delta", delta, "batch time channels", sizes)
    check_shape("A", A, "channels state", sizes)
    check_shape("B", B, "batch time state", sizes)
    check_shape("C", C, "batch time state", sizes)
    if D is not None:
        check_shape("D", D, "channels", sizes)
    packing = packing_of(cu_seqlens, u)
    check_start(initial_state, "channels state", sizes, packing)
    check_devices(u=u, delta=delta, A=A, B=B, C=C, D=D, initial_state=initial_state)
    if not -1.0 <= low < 1.0:
        raise ValueError(f"low={low} must be at least -1 and below 1")
    check_range("delta", delta, 0.0, float("inf"))
    check_range("A", A, float("-inf"), 0.0)
    return run(SPEC, backend, Inputs(u, delta, A, B, C, D, low, initial_state), packing=packing)
