"""What A(x_t) and B(x_t) of a layer are, for looking at eigenvalues and for checking the layer.

    H_t = A(x_t) H_{t-1} + B(x_t),      H [batch, heads, key, value]

`dense()` builds the matrices, so keep batch, time and heads small.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from statetrack._typing import Float, Inexact

__all__ = [
    "DenseTransitions",
    "DiagonalTransitions",
    "HouseholderTransitions",
    "RankOneTransitions",
    "RotationTransitions",
    "Transitions",
    "not_linear",
]


class Transitions(ABC):
    """The state transitions of one layer on one batch of sequences."""

    @abstractmethod
    def eigenvalues(self) -> Inexact[Tensor, "batch time heads key"]:
        """The eigenvalues of A(x_t); complex where they can be."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "batch time heads key key"]:
        """A(x_t) as matrices."""

    @abstractmethod
    def writes(self) -> Float[Tensor, "batch time heads key value"]:
        """B(x_t)."""


@dataclass(frozen=True)
class DiagonalTransitions(Transitions):
    """A = Diag(a), B = k vᵀ; the eigenvalues are a itself."""

    decay: Float[Tensor, "batch time heads key"]
    k: Float[Tensor, "batch time heads key"]
    v: Float[Tensor, "batch time heads value"]

    def eigenvalues(self) -> Inexact[Tensor, "batch time heads key"]:
        return self.decay

    def dense(self) -> Float[Tensor, "batch time heads key key"]:
        return torch.diag_embed(self.decay)

    def writes(self) -> Float[Tensor, "batch time heads key value"]:
        return self.k[..., :, None] * self.v[..., None, :]


@dataclass(frozen=True)
class RotationTransitions(Transitions):
    """h ← λ h + b in complex numbers: in each head the plane is turned by arg λ and scaled by |λ|.

    H is (Re h, Im h); the real matrix [[Re λ, -Im λ], [Im λ, Re λ]] has the eigenvalues λ and λ̄.
    """

    decay: Inexact[Tensor, "batch time heads"]
    inputs: Inexact[Tensor, "batch time heads"]

    def eigenvalues(self) -> Inexact[Tensor, "batch time heads key"]:
        return torch.stack([self.decay, self.decay.conj()], dim=-1)

    def dense(self) -> Float[Tensor, "batch time heads key key"]:
        real, imag = self.decay.real, self.decay.imag
        return torch.stack([real, -imag, imag, real], dim=-1).unflatten(-1, (2, 2))

    def writes(self) -> Float[Tensor, "batch time heads key value"]:
        return torch.stack([self.inputs.real, self.inputs.imag], dim=-1)[..., None]


@dataclass(frozen=True)
class HouseholderTransitions(Transitions):
    """A = a · (I - β_n k_n k_nᵀ) … (I - β_1 k_1 k_1ᵀ), and the writes of the n steps.

    One factor has the eigenvalues 1 and 1 - β. A product of n has rank n away from I,
    so all but n eigenvalues are 1 and the others are those of an n × n matrix.
    """

    k: Float[Tensor, "batch time micro heads key"]
    v: Float[Tensor, "batch time micro heads value"]
    beta: Float[Tensor, "batch time micro heads"]
    decay: Float[Tensor, "batch time heads"] | None = None

    def eigenvalues(self) -> Inexact[Tensor, "batch time heads key"]:
        k, beta = self.k.transpose(2, 3), self.beta.transpose(2, 3)  # [batch time heads micro ...]
        micro, key = k.shape[-2], k.shape[-1]
        if micro > key:
            return torch.linalg.eigvals(self.dense())
        if micro == 1:
            moved = 1 - beta * (k * k).sum(-1)
        else:
            # The product is I - Kᵀ W with rows W_j = β_j k_j (I - …); its other eigenvalues are
            # those of I - W Kᵀ, and (I + L) W = diag(β) K with L the strict lower part of
            # diag(β) K Kᵀ. Both stay n × n.
            gram = beta[..., None] * (k @ k.transpose(-1, -2))
            unit = torch.eye(micro, dtype=k.dtype, device=k.device)
            solved = torch.linalg.solve_triangular(
                unit + gram.tril(-1), gram, upper=False, unitriangular=True
            )
            moved = torch.linalg.eigvals(unit - solved)
        ones = torch.ones(*moved.shape[:-1], key - micro, dtype=moved.dtype, device=moved.device)
        values = torch.cat([moved, ones], dim=-1)
        return values if self.decay is None else self.decay[..., None] * values

    def dense(self) -> Float[Tensor, "batch time heads key key"]:
        eye = torch.eye(self.k.shape[-1], dtype=self.k.dtype, device=self.k.device)
        matrix = eye.expand(*self.beta[:, :, 0].shape, *eye.shape)
        if self.decay is not None:
            matrix = self.decay[..., None, None] * matrix
        return self._apply(matrix, write=False)

    def writes(self) -> Float[Tensor, "batch time heads key value"]:
        key, value = self.k.shape[-1], self.v.shape[-1]
        zero = self.v.new_zeros(*self.beta[:, :, 0].shape, key, value)
        return self._apply(zero, write=True)

    def _apply(self, h: Tensor, *, write: bool) -> Tensor:
        """The n micro-steps on [batch, time, heads, key, columns]."""
        for j in range(self.k.shape[2]):
            k, beta = self.k[:, :, j], self.beta[:, :, j, :, None, None]
            error = -(k[..., None, :] @ h)
            if write:
                error = error + self.v[:, :, j, :, None, :]
            h = h + beta * k[..., :, None] * error
        return h


@dataclass(frozen=True)
class RankOneTransitions(Transitions):
    """A = Diag(w) - κ (a∘κ)ᵀ with a >= 0, B = k vᵀ.

    Diag(√a) A Diag(√a)⁻¹ = Diag(w) - (√a∘κ)(√a∘κ)ᵀ is symmetric, so every eigenvalue is real.
    """

    w: Float[Tensor, "batch time heads key"]
    kappa: Float[Tensor, "batch time heads key"]
    a: Float[Tensor, "batch time heads key"]
    k: Float[Tensor, "batch time heads key"]
    v: Float[Tensor, "batch time heads value"]

    def eigenvalues(self) -> Inexact[Tensor, "batch time heads key"]:
        z = self.a.sqrt() * self.kappa
        return torch.linalg.eigvalsh(torch.diag_embed(self.w) - z[..., :, None] * z[..., None, :])

    def dense(self) -> Float[Tensor, "batch time heads key key"]:
        removed = self.kappa[..., :, None] * (self.a * self.kappa)[..., None, :]
        return torch.diag_embed(self.w) - removed

    def writes(self) -> Float[Tensor, "batch time heads key value"]:
        return self.k[..., :, None] * self.v[..., None, :]


@dataclass(frozen=True)
class DenseTransitions(Transitions):
    """A is any matrix, and nothing is written."""

    matrix: Float[Tensor, "batch time heads key key"]
    columns: int

    def eigenvalues(self) -> Inexact[Tensor, "batch time heads key"]:
        return torch.linalg.eigvals(self.matrix)

    def dense(self) -> Float[Tensor, "batch time heads key key"]:
        return self.matrix

    def writes(self) -> Float[Tensor, "batch time heads key value"]:
        return self.matrix.new_zeros(*self.matrix.shape[:-1], self.columns)


def not_linear(name: str) -> NoReturn:
    """The answer of layers whose state does not evolve linearly."""
    raise ValueError(
        f"{name} has no transitions: its next state is not a linear function of the last, so there "
        "is no A(x) to look at"
    )
