"""`audit`: the eigenvalues of A(x) of a trained or compiled model, and what theorems ask of them.

The checks are the theorems in the form that is true (docs/design/theory.md): theorem 1 asks for one
layer and one token with an eigenvalue that is not a real number >= 0; theorem 2 for one layer i and
2^{i-1} of its tokens whose product has an eigenvalue that is not real. Both come weak (such an
eigenvalue exists) and strong (one exists that does not fade, |λ| >= 1 - eta): the proofs give the
strong form. Both are about repeating one letter. A word of several can turn the state where none of
its letters does, as ab does for (abab)*: Lemma P sees that, where there is a machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from statetrack._typing import Int
from statetrack.analysis.observe import Observed, observe
from statetrack.analysis.periods import MAX_PERIODS, PeriodCheck, period_checks
from statetrack.analysis.spectra import (
    MAX_FACTORS,
    ComplexArray,
    FloatArray,
    eigenvalues,
    eigenvalues_in_double,
    gates,
    lifetime,
    product_norm,
    products,
)
from statetrack.automata import Machine
from statetrack.automata.machine import IntArray, Word
from statetrack.compiler.network import CompiledRNN
from statetrack.config import Config
from statetrack.layers import Layer
from statetrack.layers.transitions import DiagonalTransitions, HouseholderTransitions
from statetrack.models import Tagger

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Audit", "Finding", "LayerAudit", "audit"]

TOLERANCE = 1e-3  # a double eigenvalue splits by the root of a rounding error
RESOLUTION = 1e-6
"""An eigenvalue of a float32 transition that is nearer to 1, or to the circle, may be on it."""
MIN_PROBE, MAX_PROBE = 64, 4096
"""Tokens of the word that is read if none is given: twice as many as there are, within these."""
MAX_WINDOWS = 256
"""Of products that have to be multiplied out; others are all looked at."""
MAX_NORMS = 64
"""Products whose norm is looked at."""


@dataclass(frozen=True, kw_only=True)
class Finding(Config):
    """Whether a theorem's condition holds, and where it was seen.

    Attributes:
        weak, strong: the condition, and the same with an eigenvalue that does not fade.
        where: the layer, position and eigenvalue of the best witness, or None.
    """

    weak: bool
    strong: bool
    where: str | None

    def __str__(self) -> str:
        if not self.weak:
            return "not met on the tokens read"
        return f"met {'' if self.strong else 'only weakly '}by {self.where}"


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """One layer on one word.

    Attributes:
        name: where the layer sits in the model.
        kind: its class.
        eigenvalues: `[time, heads, key]` of A(x_t).
        gates: `[time, numbers]`, β of every Householder, or the diagonal a itself.
        gate_name: `"beta"` or `"a"`.
        window: how many consecutive tokens the products below have.
        products: `[windows, heads, key]`, eigenvalues of A(x_{t+window-1}) … A(x_t) for the times t
            in `starts`.
        starts: all times, or where there are too many, some at equal distances.
        growth: the largest norm of a product, which eigenvalues do not show; of at most `MAX_NORMS`
            of them.
    """

    name: str
    kind: str
    eigenvalues: ComplexArray
    gates: FloatArray
    gate_name: str
    window: int
    products: ComplexArray
    starts: IntArray
    growth: float

    @property
    def num_windows(self) -> int:
        """How many products there are, looked at or not."""
        return len(self.eigenvalues) - self.window + 1

    @property
    def lowest(self) -> float:
        """The smallest real part."""
        return float(self.eigenvalues.real.min())

    @property
    def lifetime(self) -> float:
        """Tokens until the slowest eigenvalue that is not 1 has faded to a hundredth.

        Infinite if it is on the circle, or if all are 1, up to `RESOLUTION`.
        """
        away = np.abs(self.eigenvalues[np.abs(self.eigenvalues - 1) > RESOLUTION])
        slowest = float(away.max()) if away.size else 1.0
        return math.inf if slowest > 1 - RESOLUTION else lifetime(slowest)


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` found; `str()` of it is a page of text, `plot()` a picture.

    Attributes:
        layers: one entry for each layer with transitions, first layer first.
        tokens: names of what was read, one for each time.
        theorem1, theorem2: the conditions in their corrected form.
        periods: Lemma P for the machine given, empty without one.
    """

    layers: tuple[LayerAudit, ...]
    tokens: tuple[str, ...]
    theorem1: Finding
    theorem2: Finding
    periods: tuple[PeriodCheck, ...]

    def text(self) -> str:
        """The findings in words."""
        lines = [
            f"on {len(self.tokens)} tokens, {len(set(self.tokens))} different; what is not seen on "
            "them is not ruled out:"
        ]
        for layer in self.layers:
            values = layer.eigenvalues
            turning = int((np.abs(values.imag) > TOLERANCE).sum())
            lines.append(
                f"  {layer.name} ({layer.kind}): real parts {values.real.min():.4f} to "
                f"{values.real.max():.4f}, largest modulus {np.abs(values).max():.4f}, "
                f"{turning} of {values.size} not real"
            )
            lines.append(
                f"    {layer.gate_name} from {layer.gates.min():.4f} to {layer.gates.max():.4f}; "
                f"slowest fading to 1 %: {_tokens(layer.lifetime)}"
            )
            turning = int((np.abs(layer.products.imag) > TOLERANCE).sum())
            seen, of = len(layer.starts), layer.num_windows
            share = f"all {of}" if seen == of else f"{seen} of the {of}"
            norms = "" if seen <= MAX_NORMS else f" of {MAX_NORMS} of them"
            lines.append(
                f"    {share} products of {layer.window}: {turning} of {layer.products.size} "
                f"eigenvalues not real, largest norm{norms} {layer.growth:.4f}"
            )
        lines.append(f"theorem 1 (counting one letter modulo 2): {self.theorem1}")
        lines.append(f"theorem 2 (the same modulo 3, or what is no power of 2): {self.theorem2}")
        lines += [str(period) for period in self.periods]
        if len(self.periods) == MAX_PERIODS:
            lines.append(f"(of the machine's groups, these {MAX_PERIODS} words were looked at)")
        return "\n".join(lines)

    __str__ = text

    def plot(self) -> Figure:
        """A matplotlib figure: the spectrum in the complex plane, and β or a for each token."""
        from statetrack.analysis.plot import spectrum_figure

        return spectrum_figure(self)


def audit(
    model: nn.Module,
    inputs: Word | Tensor | None = None,
    *,
    machine: Machine | None = None,
    eta: float = 1e-3,
) -> Audit:
    """The transitions of every layer of a model on one word.

    Args:
        model: a `Tagger`, a `CompiledRNN`, a single `Layer`, or any module that takes tokens
            [1, time] and holds layers.
        inputs: for a layer, x [1, time, d_model]; for a model a word: a string or letter numbers if
            there is a machine, else token numbers. Left out, a random word with every token in it,
            as far as there are at most `MAX_PROBE`; with a machine one that stays out of sinks.
        machine: adds Lemma P for words of the machine's groups; its letters are the tokens. A
            `CompiledRNN` brings its own.
        eta: an eigenvalue of modulus at least 1 - eta does not fade.

    >>> from statetrack.compiler import compile
    >>> found = audit(compile(Machine.from_regex("(aa)*", "a")))
    >>> found.theorem1.strong, found.theorem2.weak
    (True, False)
    """
    if isinstance(model, CompiledRNN) and machine is None:
        machine = model.machine
    if isinstance(model, Layer):
        if not isinstance(inputs, Tensor) or inputs.dim() != 3:
            raise ValueError("to audit one layer, give inputs x [1, time, d_model]")
        x, names = inputs[:1], tuple(str(t) for t in range(inputs.shape[1]))
        return _audit([Observed("layer", model, x)], names, eta, ())
    word, names = _word(model, inputs, machine)
    seen = observe(model, word)
    periods = () if machine is None else period_checks(model, machine, eta)
    return _audit(seen, names, eta, periods)


def _audit(
    observed: Sequence[Observed],
    names: tuple[str, ...],
    eta: float,
    periods: tuple[PeriodCheck, ...],
) -> Audit:
    layers = [_layer_audit(seen, min(2**index, len(names))) for index, seen in enumerate(observed)]
    every = np.arange(len(names))
    first = _finding([(a, a.eigenvalues, every, 1) for a in layers], eta, negative_counts=True)
    second = _finding(
        [(a, a.products, a.starts, a.window) for a in layers], eta, negative_counts=False
    )
    return Audit(tuple(layers), names, first, second, periods)


def _layer_audit(seen: Observed, window: int) -> LayerAudit:
    transitions = seen.transitions()
    gate_name, gate_values = gates(transitions)
    count = seen.x.shape[1] - window + 1
    closed = isinstance(transitions, DiagonalTransitions) or (
        isinstance(transitions, HouseholderTransitions)
        and transitions.k.shape[2] * window <= MAX_FACTORS
    )
    starts = _spread(count, count if closed or window == 1 else MAX_WINDOWS)
    if window == 1:
        values = eigenvalues(transitions)
    else:
        values = eigenvalues_in_double(products(transitions, starts.tolist(), window))
    some = starts[_spread(len(starts), MAX_NORMS)]
    return LayerAudit(
        name=seen.name,
        kind=type(seen.layer).__name__,
        eigenvalues=eigenvalues(transitions),
        gates=gate_values,
        gate_name=gate_name,
        window=window,
        products=values,
        starts=starts,
        growth=product_norm(products(transitions, some.tolist(), window)),
    )


def _spread(count: int, most: int) -> IntArray:
    """`0 .. count-1`, or `most` of them at equal distances, the first and the last among them.

    >>> _spread(3, 5).tolist(), _spread(9, 3).tolist()
    ([0, 1, 2], [0, 4, 8])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def _finding(
    spectra: Sequence[tuple[LayerAudit, ComplexArray, IntArray, int]],
    eta: float,
    *,
    negative_counts: bool,
) -> Finding:
    """The eigenvalue off the allowed line that fades least."""
    best: tuple[float, str] | None = None
    for layer, values, starts, window in spectra:
        off = np.abs(values.imag) > TOLERANCE
        if negative_counts:
            off |= values.real < -TOLERANCE
        if off.any():
            modulus = np.where(off, np.abs(values), -1.0)
            place, head, _ = np.unravel_index(int(modulus.argmax()), modulus.shape)
            value = values[np.unravel_index(int(modulus.argmax()), modulus.shape)]
            time = starts[place]
            span = f"token {time}" if window == 1 else f"tokens {time} to {time + window - 1}"
            where = f"{layer.name}, {span}, head {head}: {_number(value)}"
            if best is None or modulus.max() > best[0]:
                best = (float(modulus.max()), where)
    if best is None:
        return Finding(weak=False, strong=False, where=None)
    return Finding(weak=True, strong=best[0] >= 1 - eta, where=best[1])


def _word(
    model: nn.Module, inputs: Word | Tensor | None, machine: Machine | None
) -> tuple[Int[Tensor, "time"], tuple[str, ...]]:
    if inputs is None:
        rng = np.random.default_rng(0)
        size = machine.num_letters if machine is not None else _vocabulary(model)
        length = min(MAX_PROBE, max(MIN_PROBE, 2 * size))
        if machine is None:
            every = rng.permutation(size)[:length]
            inputs = np.concatenate([every, rng.integers(0, size, length - len(every))])
        else:
            inputs = _probe(machine, length, rng)
    if isinstance(inputs, Tensor):
        inputs = inputs.cpu().numpy()
    letters = np.asarray(inputs) if machine is None else machine.encode(inputs)
    if letters.ndim == 2 and len(letters) == 1:
        letters = letters[0]
    if letters.ndim != 1 or not len(letters) or letters.dtype.kind not in "iu":
        raise ValueError("audit reads one word of at least one token, as token numbers")
    names = letters.tolist() if machine is None else [machine.alphabet[x] for x in letters.tolist()]
    return torch.from_numpy(letters.astype(np.int64)), tuple(map(str, names))


def _probe(machine: Machine, length: int, rng: np.random.Generator) -> IntArray:
    """A word that stays out of sinks and reads every letter, new ones first.

    Letters that only lead into sinks, or that the walk never came to, are at the end.
    """
    sink = (machine.delta == np.arange(machine.num_states)[:, None]).all(axis=1)
    fresh = np.ones(machine.num_letters, dtype=bool)
    word: list[int] = []
    state = 0
    while len(word) < length:
        stays = ~sink[machine.delta[state]]
        options = np.flatnonzero(stays & fresh)
        if not len(options):
            options = np.flatnonzero(stays)
        if not len(options):
            break
        letter = int(rng.choice(options))
        fresh[letter] = False
        word.append(letter)
        state = int(machine.delta[state, letter])
    left = rng.permutation(np.flatnonzero(fresh))[: max(1, length // 2)]
    filled = rng.integers(0, machine.num_letters, max(0, length - len(word) - len(left)))
    return np.concatenate([np.array(word[: length - len(left)], dtype=np.int64), left, filled])


def _vocabulary(model: nn.Module) -> int:
    if isinstance(model, Tagger):
        return model.config.vocab_size
    raise ValueError("this model does not say how many tokens it has; give inputs")


def _number(value: complex) -> str:
    if abs(value.imag) <= TOLERANCE:
        return f"{value.real:.4f}"
    return f"{value.real:.4f}{value.imag:+.4f}i"


def _tokens(count: float) -> str:
    if math.isinf(count):
        return "for ever, as far as float32 shows"
    return "1 token" if round(count) == 1 else f"{count:.0f} tokens"
