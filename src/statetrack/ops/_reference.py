"""The definitions: each recurrence written as one loop over time, in any precision.

Slow on purpose. Every faster version is judged against these, in float64, in the forward pass and
in every gradient. All functions take what `statetrack.ops` hands them after its checks; letters as
in docs/notation.md: H is the state, A its transition, T the number of tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, silu

from statetrack._typing import Float, Inexact
from statetrack.ops._register import compute_dtype

__all__ = [
    "delta_product",
    "diagonal_scan",
    "linear_attention",
    "matrix_scan",
    "selective_scan",
    "short_convolution",
    "slstm_scan",
    "unit_vector",
]

NORM_FLOOR = 1e-12  # a key shorter than this counts as no key at all: no write and no gradient


def diagonal_scan(
    decay: Inexact[Tensor, "batch time *dim"],
    inputs: Inexact[Tensor, "batch time *dim"],
    initial_state: Inexact[Tensor, "batch *dim"] | None,
) -> tuple[Inexact[Tensor, "batch time *dim"], Inexact[Tensor, "batch *dim"]]:
    """h_t = a_t ∘ h_{t-1} + x_t, real or complex; returns every h_t."""
    h = torch.zeros_like(inputs[:, 0]) if initial_state is None else initial_state
    states = []
    for t in range(inputs.shape[1]):
        h = decay[:, t] * h + inputs[:, t]
        states.append(h)
    return torch.stack(states, dim=1), h


def selective_scan(
    u: Float[Tensor, "batch time channels"],
    delta: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels state"],
    B: Float[Tensor, "batch time state"],
    C: Float[Tensor, "batch time state"],
    D: Float[Tensor, "channels"] | None,
    low: float,
    initial_state: Float[Tensor, "batch channels state"] | None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch channels state"]]:
    """h_t = a_t ∘ h_{t-1} + Δ_t B_t u_t with a = low + (1-low)·exp(Δ A); y = h·C + D u."""
    dtype = compute_dtype(u, delta, A, B, C, D, initial_state)
    x, delta, A, B, C = u.to(dtype), delta.to(dtype), A.to(dtype), B.to(dtype), C.to(dtype)
    h = x.new_zeros(*x[:, 0].shape, A.shape[1]) if initial_state is None else initial_state
    outputs = []
    for t in range(x.shape[1]):
        a = low + (1 - low) * torch.exp(delta[:, t, :, None] * A)
        h = a * h + (delta[:, t] * x[:, t])[:, :, None] * B[:, t, None, :]
        y = (h * C[:, t, None, :]).sum(-1)
        outputs.append(y if D is None else y + D.to(dtype) * x[:, t])
    return torch.stack(outputs, dim=1).to(u.dtype), h


def linear_attention(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time heads key"],
    v: Float[Tensor, "batch time heads value"],
    decay: Float[Tensor, "batch time heads gate"],
    scale: float,
    initial_state: Float[Tensor, "batch heads key value"] | None,
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "batch heads key value"],
]:
    """H_t = Diag(a_t) H_{t-1} + k_t v_tᵀ;  y_t = scale · H_tᵀ q_t. One gate per head or per key."""
    dtype = compute_dtype(q, k, v, decay, initial_state)
    q, k, value, decay = q.to(dtype), k.to(dtype), v.to(dtype), decay.to(dtype)
    h = _zeros(k[:, 0], value[:, 0]) if initial_state is None else initial_state
    outputs = []
    for t in range(q.shape[1]):
        h = decay[:, t, :, :, None] * h + k[:, t, :, :, None] * value[:, t, :, None, :]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", h, q[:, t]))
    return torch.stack(outputs, dim=1).to(v.dtype), h


def delta_product(
    q: Float[Tensor, "batch time heads key"],
    k: Float[Tensor, "batch time micro heads key"],
    v: Float[Tensor, "batch time micro heads value"],
    beta: Float[Tensor, "batch time micro heads"],
    decay: Float[Tensor, "batch time heads"] | None,
    normalize_keys: bool,
    scale: float,
    initial_state: Float[Tensor, "batch heads key value"] | None,
) -> tuple[
    Float[Tensor, "batch time heads value"],
    Float[Tensor, "batch heads key value"],
]:
    """Per token H ← a H, then H ← (I - β_j k_j k_jᵀ) H + β_j k_j v_jᵀ for j = 1..n; y = scale·Hᵀq.

    With `normalize_keys`, q and every k are first divided by their norms.
    """
    dtype = compute_dtype(q, k, v, beta, decay, initial_state)
    q, k, value, beta = q.to(dtype), k.to(dtype), v.to(dtype), beta.to(dtype)
    if normalize_keys:
        q, k = unit_vector(q), unit_vector(k)
    h = _zeros(k[:, 0, 0], value[:, 0, 0]) if initial_state is None else initial_state
    outputs = []
    for t in range(q.shape[1]):
        if decay is not None:
            h = decay[:, t, :, None, None].to(dtype) * h
        for j in range(k.shape[2]):
            error = value[:, t, j] - torch.einsum("bhkv,bhk->bhv", h, k[:, t, j])
            h = h + torch.einsum("bhk,bhv->bhkv", beta[:, t, j, :, None] * k[:, t, j], error)
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", h, q[:, t]))
    return torch.stack(outputs, dim=1).to(v.dtype), h


def matrix_scan(
    A: Float[Tensor, "batch time n n"],
    initial_state: Float[Tensor, "batch n columns"],
    inputs: Float[Tensor, "batch time n columns"] | None,
) -> tuple[Float[Tensor, "batch time n columns"], Float[Tensor, "batch n columns"]]:
    """H_t = A_t H_{t-1} + B_t for any matrices; returns every H_t."""
    h = initial_state
    states = []
    for t in range(A.shape[1]):
        h = A[:, t] @ h if inputs is None else A[:, t] @ h + inputs[:, t]
        states.append(h)
    return torch.stack(states, dim=1), h


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
        c, n, m, h = initial_state.unbind(1)
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


def short_convolution(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None,
    use_silu: bool,
    initial_state: Float[Tensor, "batch past channels"] | None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch past channels"]]:
    """z_t = bias + Σ_j weight_j ∘ x_{t-width+1+j}; y = z or silu(z). State: width - 1 inputs."""
    dtype = compute_dtype(x, weight, bias, initial_state)
    weight = weight.to(dtype)
    width = weight.shape[1]
    start = (
        x.new_zeros(x.shape[0], width - 1, x.shape[2]) if initial_state is None else initial_state
    )
    window = start.to(dtype)
    outputs = []
    for t in range(x.shape[1]):
        window = torch.cat([window, x[:, t : t + 1].to(dtype)], dim=1)  # the last `width` inputs
        z = torch.einsum("bjc,cj->bc", window, weight)
        z = z if bias is None else z + bias.to(dtype)
        outputs.append(silu(z) if use_silu else z)
        window = window[:, 1:]
    return torch.stack(outputs, dim=1).to(x.dtype), window


def unit_vector(x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
    """x / ‖x‖ along the last axis, and zero with zero gradient where ‖x‖ is at most NORM_FLOOR."""
    squared = (x * x).sum(-1, keepdim=True)
    long_enough = squared > NORM_FLOOR**2
    inverse = torch.where(long_enough, squared, 1.0).rsqrt()
    return torch.where(long_enough, inverse, 0.0) * x


def _zeros(key: Tensor, value: Tensor) -> Tensor:
    """An empty state [batch, heads, key, value]."""
    return key.new_zeros(*key.shape, value.shape[-1])
