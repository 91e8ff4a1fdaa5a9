"""`diagonal_scan` and `selective_scan`: transitions that are diagonal matrices."""

from torch import Tensor

from statetrack._typing import Float, Inexact
from statetrack.ops._checks import check_devices, check_range, check_shape
from statetrack.ops._dispatch import Backend, implementation, run
from statetrack.ops._pieces import Pieces, check_pieces
from statetrack.ops._register import compute_dtype

__all__ = ["diagonal_scan", "selective_scan"]


def diagonal_scan(
    decay: Inexact[Tensor, "batch time *dim"],
    inputs: Inexact[Tensor, "batch time *dim"],
    initial_state: Inexact[Tensor, "batch *dim"] | None = None,
    *,
    backend: Backend = "auto",
) -> tuple[Inexact[Tensor, "batch time *dim"], Inexact[Tensor, "batch *dim"]]:
    """h_t = a_t ∘ h_{t-1} + x_t, elementwise; returns every h_t and the last.

    `decay` holds any numbers with |a| <= 1, real of either sign or complex. Half precision inputs
    are computed and returned in float32, the dtype of the state.

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
    if initial_state is not None:
        state_axes = " ".join(["batch", *axes[2:]])
        check_shape("initial_state", initial_state, state_axes, sizes, complex_ok=True)
    check_devices(decay=decay, inputs=inputs, initial_state=initial_state)
    check_range("decay", decay, 0.0 if decay.is_complex() else -1.0, 1.0)
    dtype = compute_dtype(decay, inputs, initial_state)
    start = None if initial_state is None else initial_state.to(dtype)
    scan = implementation("diagonal_scan", backend, inputs.device)
    states, final_state = scan(decay.to(dtype), inputs.to(dtype), start)
    return states, final_state


def selective_scan(
    u: Float[Tensor, "batch time channels"],
    delta: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels state"],
    B: Float[Tensor, "batch time state"],
    C: Float[Tensor, "batch time state"],
    D: Float[Tensor, "channels"] | None = None,
    *,
    low: float = -1.0,
    initial_state: Float[Tensor, "batch channels state"] | None = None,
    pieces: Pieces | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "sequences channels state"]]:
    """Mamba's scan: h_t = a_t ∘ h_{t-1} + Δ_t u_t B_t, a = low + (1 - low)·exp(Δ A); y = h·C + D u.

    Δ >= 0 and A <= 0, so that exp(Δ A) is in [0, 1] and a in [low, 1]. `low = 0` is Mamba as
    published, `low = -1` lets a state flip its sign. The state is float32, or float64 if any input
    is; y has the dtype of u. With `pieces` a row holds several sequences (`Pieces`), and the states
    are those after each of them, row by row.
    """
    sizes: dict[str, int] = {}
    check_shape("u", u, "batch time channels", sizes)
    check_shape("delta", delta, "batch time channels", sizes)
    check_shape("A", A, "channels state", sizes)
    check_shape("B", B, "batch time state", sizes)
    check_shape("C", C, "batch time state", sizes)
    if D is not None:
        check_shape("D", D, "channels", sizes)
    if initial_state is not None:
        check_shape("initial_state", initial_state, "batch channels state", sizes)
    check_devices(u=u, delta=delta, A=A, B=B, C=C, D=D, initial_state=initial_state)
    if not -1.0 <= low < 1.0:
        raise ValueError(f"low={low} must be at least -1 and below 1")
    check_range("delta", delta, 0.0, float("inf"))
    check_range("A", A, float("-inf"), 0.0)
    check_pieces(pieces, u, initial_state)
    inputs = (u, delta, A, B, C, D, low, initial_state)
    return run("selective_scan", backend, *inputs, pieces=pieces)
