"""Upper bounds on what rounding does to one layer of the delta family, for each token.

Assumed: IEEE arithmetic rounded to nearest, with unit roundoff u, sums in any order, and sigmoid,
SiLU, exp, softplus and square roots within 4u of their value, relatively. So γ(n) = n u / (1 - n u)
bounds the relative error of n operations in a row, and of a sum of n products against the sum of
their absolute values. Matrix products are not done in a lower precision. Nothing is known here of
kernels on a GPU.

What is bounded, for one token and each head (Frobenius norms):

- `inputs`: the layer computes k, v, β and the gate with rounding, so it takes a step with slightly
  other factors;
- `step`: the recurrence itself, letter by letter, as the loops of the reference and of numba do;
- `chunk`: the recurrence in chunks of matrix products, as the backend `torch` does; for a chunk,
  not for a token. The inverse in it is float64 there. Its entries are at most β, because no
  transition makes anything larger.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.analysis.one_layer import Factors, OneLayer
from statetrack.ops.delta.torch import CHUNK_ROWS, ONE_CHUNK_ROWS

__all__ = ["Rounding", "gamma", "product_error", "rounding_of", "unit_roundoff"]

FUNCTION = 4
"""Relative error of an elementary function, in units of u."""
SILU_SLOPE = 1.1


def unit_roundoff(dtype: torch.dtype) -> float:
    """u of float32 or float64; others are not bounded here."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"rounding is bounded for float32 and float64 weights, not for {dtype}")
    return torch.finfo(dtype).eps / 2


def gamma(n: int, u: float) -> float:
    """γ(n) = n u / (1 - n u).

    >>> gamma(10, 1e-3)
    0.010101010101010102
    """
    assert n * u < 1
    return n * u / (1 - n * u)


def product_error(weight: Tensor, x: Float[Tensor, "tokens d_model"], u: float) -> Tensor:
    """Of W x, where x comes out of a norm over its numbers; products with zero are exact."""
    terms = [gamma(2 * int(count) + 12, u) for count in (x != 0).sum(dim=1)]
    return x.new_tensor(terms)[:, None] * (x.abs() @ weight.abs().mT)


@dataclass(frozen=True)
class Rounding:
    """Bounds on the errors of H for every token and head.

    Attributes:
        inputs, step: for one token `[tokens, heads]`.
        read: of y = Hᵀq for every token `[tokens, heads]`.
        held, value, beta: the largest state inside a token `[heads]`, ‖v‖ and β.
        micro, key: micro-steps of a token, and numbers in a key.
        u: the unit roundoff.
    """

    inputs: Float[Tensor, "tokens heads"]
    step: Float[Tensor, "tokens heads"]
    read: Float[Tensor, "tokens heads"]
    held: Float[Tensor, "heads"]
    value: float
    beta: float
    micro: int
    key: int
    u: float

    def chunk(self, rows: int) -> Float[Tensor, "heads"]:
        """Of the state after a chunk of so many rows (docs/design/certificates.md)."""
        row_sum = 1 + self.beta * (rows - 1)
        both = self.value + self.held
        error = gamma(rows + 8, self.u) * row_sum * both
        error = error + gamma(self.key + 8, self.u) * self.held + 4 * self.u * both
        written = gamma(rows + 8, self.u) * (self.held + rows * self.beta * both)
        return self.beta * rows * error + written

    def in_chunks(self, tokens: int) -> Float[Tensor, "heads"]:
        """Of all chunks of a word, that of the letter that is read included."""
        rows = tokens * self.micro
        if rows <= ONE_CHUNK_ROWS:
            return self.chunk(rows)
        return self.chunk(max(ONE_CHUNK_ROWS, CHUNK_ROWS + self.micro)) * (1 + rows / CHUNK_ROWS)


def rounding_of(
    model: OneLayer, factors: Factors, largest: Float[Tensor, "heads"], u: float
) -> Rounding:
    """The bounds, if no state between two tokens is larger than `largest` in a head."""
    layer = model.layer
    _, x = model.inputs()
    micro, heads, key = factors.k.shape[1:]
    parts = _pre_activation_errors(model, u)

    raw_q, raw_k, raw_v, error_q, error_k, error_v = parts
    if layer.qk_silu:
        error_q = SILU_SLOPE * error_q + FUNCTION * u * _silu(raw_q).abs()
        error_k = SILU_SLOPE * error_k + FUNCTION * u * _silu(raw_k).abs()
        raw_q, raw_k = _silu(raw_q), _silu(raw_k)
    off_q = 2 * error_q.norm(dim=-1) / raw_q.norm(dim=-1) + gamma(key + 8, u)
    off_k = 2 * error_k.norm(dim=-1) / raw_k.norm(dim=-1) + gamma(key + 8, u)
    off_v = (SILU_SLOPE * error_v + FUNCTION * u * factors.v.abs()).norm(dim=-1)
    shared = heads // layer.num_heads
    off_q, off_k = (z.repeat_interleave(shared, dim=-1) for z in (off_q, off_k))

    unit = factors.beta / layer.eigen_range.width
    logit_error = product_error(layer.beta_proj.weight, x, u)
    logit_error = logit_error.unflatten(-1, (micro, heads))
    off_beta = layer.eigen_range.width * (
        (unit * (1 - unit)).clamp(min=0) * logit_error.exp() * logit_error
        + (FUNCTION + 2) * u * unit
    )
    if layer.range_gate is not None:  # of β = (1 - low·tanh g)·σ, what the first factor is off by
        off_beta = off_beta + (FUNCTION + 4) * u
    sizes = factors.v.norm(dim=-1)
    beta = factors.beta

    # every micro-step: the state before it is at most `held`
    held = largest.expand(len(x), heads).clone()
    inputs, step = _gate_error(model, factors, held, u)
    for j in range(micro):
        b, k, v = beta[:, j], off_k[:, j], off_v[:, j]
        changed = off_beta[:, j] + (b + off_beta[:, j]) * (2 * k + k**2)
        written = off_beta[:, j] * sizes[:, j]
        written = written + (b + off_beta[:, j]) * (k * sizes[:, j] + v * (1 + k))
        inputs = inputs + changed * held + written
        after = held + b * (sizes[:, j] + held)
        done = b * (gamma(key + 12, u) * held + gamma(12, u) * sizes[:, j]) + 2 * u * after
        step = step + done
        held = held + b * sizes[:, j]
    scale = 1 / math.sqrt(layer.head_dim)
    return Rounding(
        inputs=inputs,
        step=step,
        read=scale * (off_q + gamma(key + 8, u)) * held,
        held=held.amax(dim=0),
        value=float(sizes.max()),
        beta=float(beta.max()),
        micro=micro,
        key=key,
        u=u,
    )


def _pre_activation_errors(model: OneLayer, u: float) -> tuple[Tensor, ...]:
    """q, k and v before they are squashed or normalised, and how far off each may be."""
    layer = model.layer
    _, x = model.inputs()
    micro = layer.num_householders
    keys, values = layer.num_heads * layer.head_dim, layer.num_value_heads * layer.value_dim
    sizes = (keys, micro * keys, micro * values)
    found = []
    exact: Tensor = layer.qkv_proj(x)
    for z in (exact, product_error(layer.qkv_proj.weight, x, u)):
        q, k, v = z.split(sizes, dim=-1)
        found += [
            q.unflatten(-1, (layer.num_heads, layer.head_dim)),
            k.unflatten(-1, (micro, layer.num_heads, layer.head_dim)),
            v.unflatten(-1, (micro, layer.num_value_heads, layer.value_dim)),
        ]
    return tuple(found)


def _gate_error(
    model: OneLayer, factors: Factors, held: Tensor, u: float
) -> tuple[Float[Tensor, "tokens heads"], Float[Tensor, "tokens heads"]]:
    """What the gate adds to `inputs` and to `step`."""
    layer = model.layer
    if layer.decay_proj is None or layer.A_log is None or layer.dt_bias is None:
        return torch.zeros_like(held), torch.zeros_like(held)
    _, x = model.inputs()
    rate = layer.A_log.exp()
    logit = layer.decay_proj(x) + layer.dt_bias
    error = product_error(layer.decay_proj.weight, x, u) + u * logit.abs()
    exponent = -factors.decay.clamp(min=1e-300).log()
    off = rate * error * torch.sigmoid(logit + error) + (3 * FUNCTION) * u * exponent
    relative = torch.expm1(off) + FUNCTION * u
    return factors.decay * relative * held, u * held


def _silu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(z)
