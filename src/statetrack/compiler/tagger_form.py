"""What both passes to taggers share: a recurrence from zero, and the projections that give it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from statetrack.compiler.program import FloatArray

__all__ = ["DRIFT", "LOWEST", "MARGIN", "MAX_PARAMETERS", "Factor", "Form", "tables"]

MARGIN = 4.0
"""By how much the right score is above the others, with exact β."""
DRIFT = 1 / 64
"""The share of what is stored that may fade within `max_length` letters."""
LOWEST = -0.2
"""The least value that is written; SiLU goes down to -0.278."""
RESET_LOGIT = 12.0
"""Softplus of it is what a reset takes off the logarithm of the gate."""
MAX_PARAMETERS = 2**24


@dataclass(frozen=True)
class Factor:
    """H' <- (I - β k kᵀ) H' + β k vᵀ with a unit vector k."""

    k: FloatArray
    v: FloatArray
    beta: float


@dataclass(frozen=True)
class Form:
    """The recurrence of a one-layer program from zero: for each letter a gate and its factors.

    `start` `[rows, columns]` is what has been taken off the program's states.
    """

    start: FloatArray
    gates: tuple[float, ...]
    factors: tuple[tuple[Factor, ...], ...]

    @property
    def rows(self) -> int:
        return len(self.start)

    @property
    def columns(self) -> int:
        return self.start.shape[1]

    @property
    def householders(self) -> int:
        return max(1, *map(len, self.factors))

    def step(self, h: FloatArray, letter: int) -> FloatArray:
        h = self.gates[letter] * h
        for factor in self.factors[letter]:
            h = h + factor.beta * np.outer(factor.k, factor.v - h.T @ factor.k)
        return h


def tables(form: Form, queries: FloatArray, eta: float) -> dict[str, FloatArray]:
    """What each projection gives for each letter `[letters, channels]`.

    β is at least 2η and at most 2(1 - η), so that its sigmoid has a gradient.
    """
    heads, micro, letters = len(queries), form.householders, len(form.gates)
    k = np.zeros((letters, micro, form.rows))
    k[:, :, 0] = 1.0  # of factors that do nothing
    v = np.zeros((letters, micro, form.columns))
    beta = np.full((letters, micro), math.log(eta))
    for letter, factors in enumerate(form.factors):
        for j, factor in enumerate(factors):
            k[letter, j], v[letter, j] = factor.k, inverse_silu(factor.v)
            share = min(max(factor.beta / 2, eta / (1 + eta)), 1 / (1 + eta))
            beta[letter, j] = math.log(share / (1 - share))
    gate = np.where(np.array(form.gates) < 1, RESET_LOGIT, math.log(math.expm1(eta)))

    def each_head(table: FloatArray) -> FloatArray:
        """[letters, micro, d] as [letters, micro·heads·d]."""
        return table[:, :, None].repeat(heads, axis=2).reshape(letters, -1)

    q = np.broadcast_to(queries.reshape(-1), (letters, queries.size))
    return {
        "qkv_proj.weight": np.concatenate([q, each_head(k), each_head(v)], axis=1),
        "beta_proj.weight": each_head(beta[..., None]),
        "decay_proj.weight": gate[:, None].repeat(heads, axis=1),
    }


def inverse_silu(v: FloatArray) -> FloatArray:
    """z with z·σ(z) = v for v >= LOWEST, on the rising branch, by bisection."""
    low, high = np.full_like(v, -1.2), np.abs(v) + 1.0
    for _ in range(60):
        z = (low + high) / 2
        below = z / (1 + np.exp(-z)) < v
        low, high = np.where(below, z, low), np.where(below, high, z)
    return np.where(v == 0, 0.0, (low + high) / 2)
