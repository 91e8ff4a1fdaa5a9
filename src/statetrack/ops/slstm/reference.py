"""The definition of `slstm_scan`: one loop over time, in any precision."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from statetrack._typing import Float
from statetrack.ops._register import compute_dtype

__all__ = ["slstm_scan"]


def slstm_scan(
    gates: Float[Tensor, "batch time 4 heads dim"],
    R: Float[Tensor, "4 heads dim dim"],
    initial_state: Float[Tensor, "batch 4 heads dim"] | None,
) -> tuple[Float[Tensor, "batch time heads dim"], Float[Tensor, "batch 4 heads dim"]]:
    """The sLSTM: gates z, i, f, o are W x + R h_{t-1}, with an exponential input gate.

    c_t = f c_{t-1} + i tanh(z),  n_t = f n_{t-1} + i,  h_t = σ(o) c_t / n_t,  i = e^ĩ, f = σ(f̃).
    c and n are kept divided by e^m, m_t = max(log f + m_{t-1}, ĩ), so that nothing overflows; h
    does not depend on m, so m carries no gradient. The state is (c, n, m, h), empty with m = -∞.
    """
    dtype = compute_dtype(gates, R, initial_state)
    if initial_state is None:
        c, n, h = (gates.new_zeros(gates[:, 0, 0].shape, dtype=dtype) for _ in range(3))
        m = torch.full_like(c, -torch.inf)
    else:
        c, n, m, h = initial_state.to(dtype).unbind(1)
    outputs = []
    for t in range(gates.shape[1]):
        recurrent = torch.einsum("bhd,ghde->bghe", h, R.to(dtype))
        z, i, f, o = (gates[:, t].to(dtype) + recurrent).unbind(1)
        keep = logsigmoid(f) + m.detach()
        m = torch.maximum(keep, i).detach()
        f_m, i_m = torch.exp(keep - m), torch.exp(i - m)
        c, n = f_m * c + i_m * torch.tanh(z), f_m * n + i_m
        h = torch.sigmoid(o) * c / n
        outputs.append(h)
    return torch.stack(outputs, dim=1).to(gates.dtype), torch.stack([c, n, m, h], dim=1)
