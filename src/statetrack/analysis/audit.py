"""`audit`: the eigenvalues of A(x) of a trained or compiled model, and what theorems ask of them.

The checks are the theorems in the form that is true (docs/theory.md): theorem 1 asks for one layer
and one token with an eigenvalue that is not a real number >= 0; theorem 2 for one layer i and
2^{i-1} of its tokens whose product has an eigenvalue that is not real. Both come weak (such an
eigenvalue exists) and strong (one exists that does not fade, |λ| >= 1 - eta): the proofs give the
strong form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statetrack.automata import Machine, facts
from statetrack.automata.permutation_group import cycles
from statetrack.compiler.network import CompiledRNN
from statetrack.layers import Layer
from statetrack.layers.transitions import (
    DiagonalTransitions,
    HouseholderTransitions,
    RankOneTransitions,
    Transitions,
)
from statetrack.models import Tagger

ComplexArray = NDArray[np.complex128]
FloatArray = NDArray[np.float64]

TOLERANCE = 1e-3  # a double eigenvalue splits by the root of a rounding error
MAX_WINDOWS = 64
MAX_PROBE = 256
MAX_PERIODS = 6
MAX_PERIOD_WORD = 4096


@dataclass(frozen=True)
class Finding:
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
            return "not met"
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
        products: `[windows, heads, key]`, eigenvalues of A(x_{t+window-1}) … A(x_t) for t = 0, 1, …
        growth: the largest entry of a product in norm, which eigenvalues do not show.
    """

    name: str
    kind: str
    eigenvalues: ComplexArray
    gates: FloatArray
    gate_name: str
    window: int
    products: ComplexArray
    growth: float

    @property
    def lowest(self) -> float:
        """The smallest real part."""
        return float(self.eigenvalues.real.min())

    @property
    def horizon(self) -> float:
        """Tokens until the slowest eigenvalue that is not 1 has faded to a hundredth."""
        away = np.abs(self.eigenvalues[np.abs(self.eigenvalues - 1) > TOLERANCE])
        return horizon(float(away.max())) if away.size else 0.0


@dataclass(frozen=True)
class PeriodCheck:
    """Lemma P on one word u of a machine's groups: does the model have the period it needs?

    Attributes:
        word: u, in letters.
        order: how many u's bring the machine's state back.
        periods: for each layer, the period its eigenvalues of modulus 1 give to powers of u, or
            None where its inputs were not periodic.
        enough: whether `order` divides the product of the periods.
    """

    word: tuple[str, ...]
    order: int
    periods: tuple[int | None, ...]
    enough: bool

    def __str__(self) -> str:
        shown = " x ".join("?" if p is None else str(p) for p in self.periods)
        verdict = "enough" if self.enough else "not enough"
        return f"word {''.join(self.word)}: order {self.order}, periods {shown}: {verdict}"


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
        lines = [f"on {len(self.tokens)} tokens:"]
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
                f"slowest fading: {_tokens(layer.horizon)} to 1 %"
            )
            turning = int((np.abs(layer.products.imag) > TOLERANCE).sum())
            lines.append(
                f"    products of {layer.window}: {turning} of {layer.products.size} eigenvalues "
                f"not real, largest norm {layer.growth:.4f}"
            )
        lines.append(f"theorem 1 (leaving the star-free languages): {self.theorem1}")
        lines.append(f"theorem 2 (counting beyond powers of two): {self.theorem2}")
        lines += [str(period) for period in self.periods]
        return "\n".join(lines)

    __str__ = text

    def plot(self) -> Any:
        """A matplotlib figure: the spectrum in the complex plane, and β or a for each token."""
        from statetrack.analysis.plot import spectrum_figure

        return spectrum_figure(self)


def horizon(modulus: float, remaining: float = 0.01) -> float:
    """Tokens until a component with eigenvalue of this modulus has shrunk to `remaining`.

    >>> round(horizon(0.99))
    458
    >>> horizon(1.0)
    inf
    """
    if modulus >= 1 - 1e-9:  # what a double precision eigenvalue of modulus 1 may come out as
        return math.inf
    if modulus <= 0:
        return 1.0
    return math.log(1 / remaining) / -math.log(modulus)


def audit(
    model: nn.Module,
    inputs: Any = None,
    *,
    machine: Machine | None = None,
    eta: float = 1e-3,
) -> Audit:
    """The transitions of every layer of a model on one word.

    Args:
        model: a `Tagger`, a `CompiledRNN`, a single `Layer`, or any module that takes tokens
            [1, time] and holds layers.
        inputs: for a layer, x [1, time, d_model]; for a model a word: a string or letter numbers if
            there is a machine, else token numbers. Left out, a random word with every token in it.
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
        with torch.no_grad():
            seen = [("layer", model, model.transitions(x))]
        return _audit(seen, names, eta, ())
    word, names = _word(model, inputs, machine)
    seen = [(name, layer, transitions) for name, layer, transitions, _ in _observe(model, word)]
    periods = () if machine is None else _periods(model, machine, eta)
    return _audit(seen, names, eta, periods)


def _audit(
    seen: Sequence[tuple[str, Layer, Transitions]],
    names: tuple[str, ...],
    eta: float,
    periods: tuple[PeriodCheck, ...],
) -> Audit:
    layers = []
    for index, (name, layer, transitions) in enumerate(seen):
        gate_name, gates = _gates(transitions)
        window = min(2**index, len(names))
        products, growth = _products(transitions, window)
        layers.append(
            LayerAudit(
                name=name,
                kind=type(layer).__name__,
                eigenvalues=_spectrum(transitions),
                gates=gates,
                gate_name=gate_name,
                window=window,
                products=products,
                growth=growth,
            )
        )
    first = _finding([(a, a.eigenvalues, 1) for a in layers], eta, negative_counts=True)
    second = _finding([(a, a.products, a.window) for a in layers], eta, negative_counts=False)
    return Audit(tuple(layers), names, first, second, periods)


def _finding(
    spectra: Sequence[tuple[LayerAudit, ComplexArray, int]], eta: float, *, negative_counts: bool
) -> Finding:
    """The eigenvalue off the allowed line that fades least."""
    best: tuple[float, str] | None = None
    for layer, values, window in spectra:
        off = np.abs(values.imag) > TOLERANCE
        if negative_counts:
            off |= values.real < -TOLERANCE
        if off.any():
            modulus = np.where(off, np.abs(values), -1.0)
            time, head, _ = np.unravel_index(int(modulus.argmax()), modulus.shape)
            value = values[np.unravel_index(int(modulus.argmax()), modulus.shape)]
            span = f"token {time}" if window == 1 else f"tokens {time} to {time + window - 1}"
            where = f"{layer.name}, {span}, head {head}: {_number(value)}"
            if best is None or modulus.max() > best[0]:
                best = (float(modulus.max()), where)
    if best is None:
        return Finding(False, False, None)
    return Finding(True, best[0] >= 1 - eta, best[1])


# -- spectra ------------------------------------------------------------------------------------


def _spectrum(transitions: Transitions) -> ComplexArray:
    """Eigenvalues [time, heads, key] of the one word, in double precision where they are solved."""
    closed = isinstance(transitions, DiagonalTransitions | RankOneTransitions)
    if isinstance(transitions, HouseholderTransitions) and transitions.k.shape[2] == 1:
        closed = True
    if closed:
        values = transitions.eigenvalues()[0]
        values = values.to(torch.complex128)
    else:
        values = torch.linalg.eigvals(transitions.dense()[0].double())
    return np.asarray(values.cpu().numpy())


def _products(transitions: Transitions, window: int) -> tuple[ComplexArray, float]:
    """Eigenvalues [windows, heads, key] of products over consecutive tokens, and their norm."""
    if isinstance(transitions, DiagonalTransitions):
        decay = transitions.decay[0].double()
        count = min(MAX_WINDOWS, len(decay) - window + 1)
        product = torch.stack([decay[t : t + window].prod(0) for t in range(count)])
        values = product.to(torch.complex128).cpu().numpy()
        return np.asarray(values), float(product.abs().max())
    count = MAX_WINDOWS + window - 1
    dense = transitions.dense()[0, :count].double()
    windows = range(min(MAX_WINDOWS, len(dense) - window + 1))
    product = torch.stack([_chain(dense[t : t + window]) for t in windows])
    norm = torch.linalg.matrix_norm(product, ord=2).max()
    return np.asarray(torch.linalg.eigvals(product).cpu().numpy()), float(norm)


def _chain(matrices: Tensor) -> Tensor:
    """A_last … A_first of matrices [time, heads, key, key]."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


def _gates(transitions: Transitions) -> tuple[str, FloatArray]:
    if isinstance(transitions, HouseholderTransitions):
        return "beta", np.asarray(transitions.beta[0].flatten(1).double().cpu().numpy())
    if isinstance(transitions, DiagonalTransitions):
        return "a", np.asarray(transitions.decay[0].flatten(1).double().cpu().numpy())
    if isinstance(transitions, RankOneTransitions):
        return "a", np.asarray(transitions.w[0].flatten(1).double().cpu().numpy())
    diagonal = transitions.dense()[0].diagonal(dim1=-2, dim2=-1)
    return "a", np.asarray(diagonal.flatten(1).double().cpu().numpy())


# -- running models -----------------------------------------------------------------------------


def _word(model: nn.Module, inputs: Any, machine: Machine | None) -> tuple[Tensor, tuple[str, ...]]:
    if inputs is None:
        size = machine.num_letters if machine is not None else _vocabulary(model)
        rng = np.random.default_rng(0)
        length = min(MAX_PROBE, max(MAX_WINDOWS, 2 * size))
        every = rng.permutation(size)[:length]
        inputs = np.concatenate([every, rng.integers(0, size, length - len(every))])
    if isinstance(inputs, Tensor):
        inputs = inputs.cpu().numpy()
    letters = np.asarray(inputs) if machine is None else machine.encode(inputs)
    if letters.ndim == 2 and len(letters) == 1:
        letters = letters[0]
    if letters.ndim != 1 or not len(letters) or letters.dtype.kind not in "iu":
        raise ValueError("audit reads one word of at least one token, as token numbers")
    names = letters.tolist() if machine is None else [machine.alphabet[x] for x in letters.tolist()]
    return torch.from_numpy(letters.astype(np.int64))[None], tuple(map(str, names))


def _vocabulary(model: nn.Module) -> int:
    if isinstance(model, Tagger):
        return model.config.vocab_size
    raise ValueError("this model does not say how many tokens it has; give inputs")


def _observe(model: nn.Module, word: Tensor) -> list[tuple[str, Layer, Transitions, Tensor]]:
    """Name, layer, its transitions on the word and its inputs [time, d_model], in running order."""
    calls: dict[str, tuple[Layer, Tensor, Any]] = {}
    hooks = []

    def watch(name: str, layer: Layer) -> Any:
        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            calls[name] = (layer, args[0], args[1] if len(args) > 1 else None)

        return layer.register_forward_pre_hook(before)

    for name, module in model.named_modules():
        if isinstance(module, Layer):
            hooks.append(watch(name, module))
    if not hooks:
        raise ValueError(f"{type(model).__name__} holds no layer of statetrack.layers to audit")
    device = next(iter([*model.parameters(), *model.buffers()])).device
    try:
        with torch.no_grad():
            model(word.to(device))
    finally:
        for hook in hooks:
            hook.remove()
    with torch.no_grad():
        return [
            (name, layer, layer.transitions(x, state), x[0].float())
            for name, (layer, x, state) in calls.items()
        ]


# -- Lemma P ------------------------------------------------------------------------------------


def _periods(model: nn.Module, machine: Machine, eta: float) -> tuple[PeriodCheck, ...]:
    """Lemma P for generators of the machine's groups, each on powers of its word."""
    found = []
    for permutator in facts(machine).permutators:
        for generator, u in zip(permutator.group.generators, permutator.words, strict=True):
            longest = max(cycles(generator), key=len)
            start = permutator.states[longest[0]]
            order = len(longest)
            repeats = 4 * order + 8
            if order < 2 or repeats * len(u) > MAX_PERIOD_WORD:
                continue
            prefix = _path(machine, start)
            word = torch.tensor([*prefix, *list(u) * repeats])[None]
            periods = _layer_periods(model, word, len(prefix), len(u), repeats, eta)
            known = math.prod(p or 1 for p in periods)
            enough = None not in periods and known % order == 0
            letters = tuple(str(machine.alphabet[a]) for a in u)
            found.append(PeriodCheck(letters, order, periods, enough))
            if len(found) == MAX_PERIODS:
                return tuple(found)
    return tuple(found)


def _layer_periods(
    model: nn.Module, word: Tensor, prefix: int, length: int, repeats: int, eta: float
) -> tuple[int | None, ...]:
    """For each layer the period of the product over one period of its inputs; None if none."""
    periods: list[int | None] = []
    for _, _, transitions, x in _observe(model, word):
        blocks = x[prefix:].reshape(repeats, -1)
        period = _period(blocks[repeats // 2 :])
        if period is None:
            periods.append(None)
            continue
        last = period * length
        if isinstance(transitions, DiagonalTransitions):
            values = transitions.decay[0, -last:].double().prod(0).to(torch.complex128)
        else:
            values = torch.linalg.eigvals(_chain(transitions.dense()[0, -last:].double()))
        around = values[values.abs() >= 1 - eta].flatten().cpu().numpy()
        periods.append(_turns(np.asarray(around), 4 * repeats))
    return tuple(periods)


def _period(blocks: Tensor) -> int | None:
    """The smallest p with blocks[i] = blocks[i + p] throughout."""
    count = len(blocks)
    for p in range(1, count // 2 + 1):
        if torch.allclose(blocks[:-p], blocks[p:], rtol=1e-3, atol=1e-3):
            return p
    return None


def _turns(values: ComplexArray, limit: int) -> int | None:
    """The smallest power that brings all these eigenvalues back to 1."""
    angles = np.angle(values)
    for power in range(1, limit + 1):
        turned = np.abs(np.exp(1j * power * angles) - 1)
        if (turned < 0.02).all():
            return power
    return None


def _path(machine: Machine, state: int) -> list[int]:
    """A shortest word from the start to a state."""
    found: dict[int, list[int]] = {0: []}
    queue = [0]
    for q in queue:
        for letter, target in enumerate(machine.delta[q].tolist()):
            if target not in found:
                found[target] = [*found[q], letter]
                queue.append(target)
    return found[state]


def _number(value: complex) -> str:
    if abs(value.imag) <= TOLERANCE:
        return f"{value.real:.4f}"
    return f"{value.real:.4f}{value.imag:+.4f}i"


def _tokens(count: float) -> str:
    return "for ever" if math.isinf(count) else f"{count:.0f} tokens"
