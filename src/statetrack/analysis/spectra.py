"""Eigenvalues of A(x_t) and of its products over consecutive tokens, and what they say."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statetrack._typing import Float, Inexact, Int
from statetrack.analysis.observe import observe
from statetrack.layers.transitions import (
    DenseTransitions,
    DiagonalTransitions,
    HouseholderTransitions,
    RankOneTransitions,
    Transitions,
)

__all__ = [
    "MAX_DOTS",
    "ComplexArray",
    "Dot",
    "FloatArray",
    "dots",
    "eigenvalues",
    "eigenvalues_in_double",
    "eigenvalues_on",
    "gates",
    "lifetime",
    "lowest_on",
    "product_norm",
    "products",
]

ComplexArray = NDArray[np.complex128]
FloatArray = NDArray[np.float64]

MAX_DOTS = 300
MAX_FACTORS = 8
"""Products of more Householders are multiplied out before they are solved for eigenvalues."""


def eigenvalues(transitions: Transitions) -> ComplexArray:
    """Those of A(x_t) on the first sequence, [time, heads, key], in double precision.

    Where there is a closed form, directions that a token leaves alone have exactly 1.
    """
    return eigenvalues_in_double(_in_double(transitions))


def eigenvalues_in_double(exact: Transitions) -> ComplexArray:
    """The same of transitions that are in double precision already, as `products` gives them."""
    if isinstance(exact, HouseholderTransitions) and exact.k.shape[2] > MAX_FACTORS:
        exact = DenseTransitions(exact.dense(), columns=1)
    return np.asarray(exact.eigenvalues()[0].to(torch.complex128).cpu().numpy())


def _in_double(transitions: Transitions) -> Transitions:
    """The same A(x_t) in double precision, so that solving for eigenvalues adds no error."""
    match transitions:
        case DiagonalTransitions(decay, k, v):
            return DiagonalTransitions(decay.double(), k.double(), v.double())
        case HouseholderTransitions(k, v, beta, decay):
            wide = None if decay is None else decay.double()
            return HouseholderTransitions(k.double(), v.double(), beta.double(), wide)
        case RankOneTransitions(w, kappa, a, k, v):
            return RankOneTransitions(
                w.double(), kappa.double(), a.double(), k.double(), v.double()
            )
        case _:  # whatever else there is, as matrices
            return DenseTransitions(transitions.dense().double(), columns=1)


def eigenvalues_on(
    model: nn.Module, words: Iterable[Int[Tensor, "_"]]
) -> dict[str, Inexact[Tensor, "tokens heads keys"]]:
    """Layer -> the eigenvalues of A(x_t) over all tokens of `words`, one after the other.

    They come from each layer's own formula, in the precision of the model. That is cheap for many
    words; `eigenvalues` is for one word and exact.
    """
    found: dict[str, list[Tensor]] = {}
    for word in words:
        for seen in observe(model, word):
            values = seen.transitions().eigenvalues()[0].to(torch.complex128)
            found.setdefault(seen.name, []).append(values)
    return {name: torch.cat(values) for name, values in found.items()}


def lowest_on(
    model: nn.Module, words: Iterable[Int[Tensor, "_"]]
) -> dict[str, Float[Tensor, "tokens heads"]]:
    """Layer -> the smallest real part of the eigenvalues of A(x_t), for every token and head.

    For DeltaNet that is 1 - β, the eigenvalue along the key. As cheap as `eigenvalues_on`, and
    small enough for long texts. Layers without transitions, such as attention, are left out.
    """
    found: dict[str, list[Tensor]] = {}
    for word in words:
        for seen in observe(model, word):
            try:
                values = seen.transitions().eigenvalues()[0]
            except ValueError:  # its next state is not a linear function of the last
                continue
            found.setdefault(seen.name, []).append(values.real.float().amin(-1).cpu())
    return {name: torch.cat(values) for name, values in found.items()}


def gates(transitions: Transitions) -> tuple[str, FloatArray]:
    """What the layer chose for each token, [time, numbers]: β, or the diagonal a of A(x_t)."""
    if isinstance(transitions, HouseholderTransitions):
        name, values = "beta", transitions.beta
    elif isinstance(transitions, DiagonalTransitions):
        name, values = "a", transitions.decay
    elif isinstance(transitions, RankOneTransitions):
        name, values = "a", transitions.w
    else:
        name, values = "a", transitions.dense().diagonal(dim1=-2, dim2=-1)
    return name, np.asarray(values[0].flatten(1).double().cpu().numpy())


# -- products -----------------------------------------------------------------------------------


def products(transitions: Transitions, starts: Sequence[int], window: int) -> Transitions:
    """A(x_{t+window-1}) … A(x_t) on the first sequence for every t of `starts`, in double.

    The products take the place of the tokens. A product of Householders is again one, with more
    factors, and a product of diagonals a diagonal; others become matrices.
    """
    exact = _in_double(transitions)
    times = torch.as_tensor(starts)[:, None] + torch.arange(window)  # [products, window]
    match exact:
        case DiagonalTransitions(decay):
            product = decay[0][times.to(decay.device)].prod(dim=1)[None]
            return DiagonalTransitions(product, torch.zeros_like(product), product[..., :0])
        case HouseholderTransitions(k, v, beta, decay):
            times = times.to(k.device)
            return HouseholderTransitions(
                k[0][times].flatten(1, 2)[None],
                v[0][times].flatten(1, 2)[None],
                beta[0][times].flatten(1, 2)[None],
                None if decay is None else decay[0][times].prod(dim=1)[None],
            )
        case _:
            dense = exact.dense()[0]
            chains = [_chain(dense[start : start + window]) for start in starts]
            return DenseTransitions(torch.stack(chains)[None], columns=1)


def product_norm(found: Transitions) -> float:
    """The greatest norm of what `products` gave, which eigenvalues do not show."""
    if isinstance(found, DiagonalTransitions):
        return float(found.decay.abs().max())
    return float(torch.linalg.matrix_norm(found.dense(), 2).max())


def _chain(matrices: Float[Tensor, "time heads key key"]) -> Float[Tensor, "heads key key"]:
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


# -- in words and pictures ----------------------------------------------------------------------


def lifetime(modulus: float, remaining: float = 0.01) -> float:
    """Tokens until a component with eigenvalue of this modulus has shrunk to `remaining`.

    >>> round(lifetime(0.99))
    458
    >>> lifetime(1.0)
    inf
    """
    if modulus >= 1 - 1e-9:  # what a double precision eigenvalue of modulus 1 may come out as
        return math.inf
    if modulus <= remaining:
        return 1.0
    return math.log(1 / remaining) / -math.log(modulus)


class Dot(NamedTuple):
    """Eigenvalues of one layer that are nearly alike: where they are, and their share of all.

    Layers are counted from 1.
    """

    layer: int
    real: float
    imag: float
    share: float


def dots(layers: Sequence[Inexact[Tensor, "_"]]) -> tuple[Dot, ...]:
    """The eigenvalues of each layer, gathered on a grid, by layer and place.

    The grid is the finest of a few that leaves at most `MAX_DOTS`. If even the coarsest leaves more
    (a great many layers), the rarest are left out.
    """
    total = sum(len(values) for values in layers)
    found: list[Dot] = []
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        found = [
            Dot(layer, real, imag, round(count / total, 7))
            for layer, values in enumerate(layers, 1)
            for real, imag, count in _grid(values, step)
        ]
        if len(found) <= MAX_DOTS:
            break
    return tuple(sorted(sorted(found, key=lambda dot: -dot.share)[:MAX_DOTS]))


def _grid(values: Inexact[Tensor, "_"], step: float) -> list[tuple[float, float, int]]:
    """Every place of the grid that has values, and how many."""
    places, counts = torch.unique(
        torch.view_as_real(values).div(step).round(), dim=0, return_counts=True
    )
    return [
        (round(real * step, 6) + 0.0, round(imag * step, 6) + 0.0, count)
        for (real, imag), count in zip(places.tolist(), counts.tolist(), strict=True)
    ]
