"""`slstm_scan`: the non-linear recurrence of the sLSTM."""

from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._checks import check_devices, check_shape
from statetrack.ops._dispatch import Backend, run
from statetrack.ops.packing import CuSeqlens, check_start, packing_of
from statetrack.ops.slstm.spec import SPEC, Inputs

__all__ = ["slstm_scan"]


def slstm_scan(
    gates: Float[Tensor, "batch time 4 heads dim"],
    R: Float[Tensor, "4 heads dim dim"],
    initial_state: Float[Tensor, "sequences 4 heads dim"] | None = None,
    *,
    cu_seqlens: CuSeqlens | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time heads dim"], Float[Tensor, "sequences 4 heads dim"]]:
    """The sLSTM recurrence from the gates' input part W x + b (order z, i, f, o) and R.

    The gates are `gates[t] + h_{t-1} R` per head (h is a row vector), then

        c_t = f c_{t-1} + i tanh(z),   n_t = f n_{t-1} + i,   h_t = σ(o) c_t / n_t,

    where f = σ(f̃) and i = exp(ĩ), with c and n kept divided by e^m so that nothing overflows.
    Returns every h_t in the dtype of `gates` and the state (c, n, m, h), float32 or, if any input
    is, float64. The stabiliser m carries no gradient: h does not depend on it.
    With `cu_seqlens` a row holds several sequences (`Packing`), each with its own initial and final
    state, row by row.
    """
    sizes: dict[str, int] = {}
    check_shape("gates", gates, "batch time 4 heads dim", sizes)
    check_shape("R", R, "4 heads dim dim", sizes)
    packing = packing_of(cu_seqlens, gates)
    check_start(initial_state, "4 heads dim", sizes, packing)
    check_devices(gates=gates, R=R, initial_state=initial_state)
    return run(SPEC, backend, Inputs(gates, R, initial_state), packing=packing)
