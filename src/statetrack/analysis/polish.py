"""`polish`: a trained one-layer network, repaired so that it follows its machine exactly.

A trained network drifts because its reflections are not quite reflections and do not quite fit
together. Setting β to 2 alone does not help: H ↦ H - 2k(kᵀH - vᵀ) are affine maps that must also
meet the same states. So keys, values and β of every token are moved until they do:

    minimise Σ ‖A(a) H_q + B(a) - H_{δ(q, a)}‖² and what margins lack,

with H_q along the machine's shortest words (Levenberg-Marquardt, float64). The result is written
back into the projections, with the smallest change that gives it. What comes out is an ordinary
tagger of the same config. It is accepted only if the residual, the margins and words say so.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn.functional import silu, softplus

from statetrack import ops
from statetrack._typing import Float
from statetrack.analysis.black_box import Alphabet, Model
from statetrack.analysis.lstar import Hypothesis
from statetrack.analysis.one_layer import (
    Factors,
    Graph,
    OneLayer,
    follow,
    one_layer,
    tagger_of,
)
from statetrack.analysis.probes import every_word, mixture
from statetrack.automata import Machine
from statetrack.layers._gates import range_share
from statetrack.models import Tagger
from statetrack.tasks import Task

__all__ = ["Polish", "polish"]

NEAR_END = 0.1
"""β within so much of 0 and 2 is set to that."""
GATE = 0.01
"""A gate within so much of 1 is set to 1."""
FAR = 20.0
"""A logit at which a sigmoid is 0 or 1, up to the rounding of float32."""
STEPS = 60
PATIENCE = 8
"""Steps within which the loss must halve."""
ENOUGH = 1e-26
"""Σ of squares at which nothing is left to repair."""
MARGINS = 0.1
"""The weight of what a margin lacks, beside what a letter misses."""
MAX_JACOBIAN = 2**26
AT_ONCE = 32
RESIDUAL = 1e-5
"""The most that a letter may be off, as a share of the state, in the weights' own dtype."""
WORDS, LENGTH = 64, 4096
"""Words of the mixture that are tried, and their length."""
EVERY = 2**12


@dataclass(frozen=True, eq=False)
class Polish:
    """What `polish` made of a model; `str()` of it is a line.

    Attributes:
        model: the repaired copy, or None if it was rejected. The model itself is never touched.
        why: why it was rejected; empty if it was not.
        residual: the largest error of a letter as a share of ‖H‖, before and after.
        margin: the least margin over all states and letters, before and after.
        changed: ‖ΔW‖ / ‖W‖ of all weights together.
        words: how many words the repaired model was tried on.
    """

    model: Tagger | None
    why: str
    residual: tuple[float, float]
    margin: tuple[float, float]
    changed: float
    words: int

    @property
    def accepted(self) -> bool:
        return self.model is not None

    def __str__(self) -> str:
        before, after = self.residual
        told = (
            f"a letter was off by {before:.2g} of the state, now {after:.2g}; least margin "
            f"{self.margin[0]:.3g}, now {self.margin[1]:.3g}; weights changed by {self.changed:.1%}"
        )
        if self.model is None:
            return f"rejected, and the model is as it was: {self.why} ({told})"
        return f"accepted after {self.words} words: {told}"


@torch.no_grad()
def polish(
    model: Model,
    machine: Machine,
    task: Task | str | None = None,
    *,
    alphabet: Alphabet | None = None,
    before: Sequence[int] = (),
    seed: int = 0,
) -> Polish:
    """A copy of a trained model that follows the machine exactly, if one is found nearby.

    Args:
        model: a tagger of one delta-rule layer without a convolution, or a run of one.
        machine: what it has learnt, as `extract` finds it.
        task, alphabet, before: as in `extract`. A tagger alone is taken as one for
            `tasks.from_machine(machine)`.
        seed: of the words it is tried on.
    """
    found = one_layer(model, machine, task, alphabet=alphabet, before=before)
    original = tagger_of(model)
    whole, apart = Graph(machine.delta, np.arange(machine.num_states)), Graph.of(machine)
    was = _state_of_things(found, apart)
    best: Polish | None = None
    for graph, by_letter in ((whole, True), (apart, True), (apart, False)):
        repaired = _repaired(found, original, graph, by_letter)
        if repaired is None:
            continue
        tried = _judged(repaired, original, found, graph, was, seed)
        if tried.accepted:
            return tried
        if best is None or tried.residual[1] < best.residual[1]:
            best = tried
    if best is None:
        return Polish(None, "no step could be taken", (was[0],) * 2, (was[1],) * 2, 0.0, 0)
    return best


def _state_of_things(model: OneLayer, graph: Graph) -> tuple[float, float]:
    """The residual and the least margin."""
    factors = model.factors()
    states = follow(factors, model.reading, graph)
    residual, margins = _closure(model, factors, states, graph)
    size = states.flatten(1).norm(dim=1).max()
    return float(residual.flatten(1).norm(dim=1).max() / size), float(margins.min())


def _closure(
    model: OneLayer, factors: Factors, states: Tensor, graph: Graph
) -> tuple[Float[Tensor, "edges heads key value"], Float[Tensor, "edges"]]:
    """By how much every letter misses its target, and the margin of the answer there."""
    source, letter, target = graph.edges
    place = letter + model.reading.num_before
    residual = factors.step(place, states[source]) - states[target]
    classes = torch.from_numpy(model.reading.classes[graph.state])[target]
    scores = model.scores(place, states[target], factors.q)
    right = scores.gather(1, classes[:, None])
    others = scores.scatter(1, classes[:, None], -torch.inf)
    return residual, (right - others.amax(dim=1, keepdim=True))[:, 0]


# -- finding the factors --------------------------------------------------------------------------


class _Variables:
    """Pre-activations of keys, values and β of every token, as one vector; some β are fixed."""

    def __init__(self, model: OneLayer, graph: Graph, by_letter: bool) -> None:
        layer = model.layer
        self.model = model
        _, x = model.inputs()
        micro, heads = layer.num_householders, layer.num_value_heads
        keys, values = layer.num_heads * layer.head_dim, heads * layer.value_dim
        _, self.k, self.v = layer.qkv_proj(x).split((keys, micro * keys, micro * values), dim=-1)
        self.beta = layer.beta_proj(x).clone()
        size = layer.eigen_range.width * torch.sigmoid(self.beta)
        goal = torch.full_like(size, torch.nan)
        goal[size < NEAR_END] = 0.0
        goal[size > 2 - NEAR_END] = 2.0
        for letter, column in enumerate(graph.delta.T if by_letter else ()):
            beta, every = size[model.reading.num_before + letter], np.arange(len(column))
            if (column == every).all():  # it changes nothing
                told = torch.zeros_like(beta)
            elif (column[column] == column).all():  # and nothing more the second time
                told = (beta > 0.5) * 1.0
            elif len(np.unique(column)) >= len(set(graph.state.tolist())):  # it permutes
                told = (beta > 1.0) * 2.0
            else:
                continue
            goal[model.reading.num_before + letter] = told.to(goal.dtype)
        if layer.eigen_range.width < 2:
            goal[goal == 2] = torch.nan
        self.free = goal.isnan()
        share = goal[~self.free] / layer.eigen_range.width
        self.beta[~self.free] = torch.logit(share).clamp(-FAR, FAR)
        self.gate: Tensor | None = None
        if layer.decay_proj is not None and layer.dt_bias is not None:
            self.gate = layer.decay_proj(x).clone()
            kept = model.factors().decay > 1 - GATE
            self.gate[kept] = (-FAR - layer.dt_bias).expand_as(self.gate)[kept]

    def vector(self) -> Float[Tensor, "unknowns"]:
        return torch.cat([self.k.flatten(), self.v.flatten(), self.beta[self.free]])

    def parts(self, vector: Float[Tensor, "unknowns"]) -> tuple[Tensor, Tensor, Tensor]:
        """k, v and β, as the projections give them `[tokens, channels]`."""
        sizes = self.k.numel(), self.v.numel(), int(self.free.sum())
        k, v, free = vector.split(sizes)
        place = (self.free.flatten().cumsum(0) - 1).clamp(min=0).view_as(self.free)
        beta = torch.where(self.free, free[place], self.beta) if len(free) else self.beta
        return k.view_as(self.k), v.view_as(self.v), beta

    def factors(self, vector: Float[Tensor, "unknowns"], q: Tensor) -> Factors:
        """As the layer would compute them."""
        layer = self.model.layer
        micro, heads = layer.num_householders, layer.num_value_heads
        k, v, beta = self.parts(vector)
        k = silu(k) if layer.qk_silu else k
        keys = layer._by_value_head(k.unflatten(-1, (micro, layer.num_heads, layer.head_dim)))
        unit = torch.sigmoid(beta).unflatten(-1, (micro, heads))
        decay = torch.ones_like(unit[:, 0])
        if self.gate is not None and layer.A_log is not None and layer.dt_bias is not None:
            decay = torch.exp(-layer.A_log.exp() * softplus(self.gate + layer.dt_bias))
        return Factors(
            q=q,
            k=keys if layer.qk_eps else ops.unit_vector(keys),
            v=silu(v).unflatten(-1, (micro, heads, layer.value_dim)),
            beta=layer.eigen_range.beta(unit, range_share(layer.range_gate)),
            decay=decay,
        )


def _repaired(model: OneLayer, original: Tagger, graph: Graph, by_letter: bool) -> Tagger | None:
    """A copy of the original with other factors; None if none was found."""
    variables = _Variables(model, graph, by_letter)
    q = model.factors().q
    factors = model.factors()
    states = follow(factors, model.reading, graph)
    size = states.flatten(1).norm(dim=1).max()
    wanted = _closure(model, factors, states, graph)[1].median().clamp(min=1e-3) / 2

    def lacks(vector: Tensor) -> Tensor:
        """What is not yet as it should be: all letters, and margins below what is wanted."""
        factors = variables.factors(vector, q)
        states = follow(factors, model.reading, graph)
        residual, margins = _closure(model, factors, states, graph)
        missing = ((wanted - margins) / wanted).clamp(min=0)
        return torch.cat([residual.flatten() / size, MARGINS * missing])

    vector = variables.vector()
    equations = len(lacks(vector))
    if equations * len(vector) > MAX_JACOBIAN:
        raise ValueError(
            f"too large to polish: {equations} equations for {len(vector)} unknowns; extract its "
            "machine and compile that instead"
        )
    found = _levenberg_marquardt(lacks, vector)
    return None if found is None else _written(model, original, variables, found)


def _jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Float[Tensor, "values unknowns"]:
    """By forward derivatives, a few unknowns at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, inside of torch
        columns = [
            vmap(lambda tangent: jvp(function, (at,), (tangent,))[1])(part)
            for part in torch.eye(len(at), dtype=at.dtype).split(AT_ONCE)
        ]
    return torch.cat(columns).mT


def _levenberg_marquardt(lacks: Callable[[Tensor], Tensor], vector: Tensor) -> Tensor | None:
    """Where Σ lacks² is least, near `vector`; None if it is not finite."""
    now = lacks(vector)
    damping = 1e-3
    losses: list[float] = []
    for _ in range(STEPS):
        loss = float(now.square().sum())
        if not np.isfinite(loss):
            return None
        losses.append(loss)
        stuck = len(losses) > PATIENCE and loss > losses[-1 - PATIENCE] / 2
        if loss < ENOUGH or stuck:
            break
        jacobian = _jacobian(lacks, vector)
        normal, slope = jacobian.mT @ jacobian, jacobian.mT @ now
        scale = torch.diag(normal).mean() * torch.eye(len(vector), dtype=vector.dtype)
        while damping < 1e8:
            step = torch.linalg.solve(normal + damping * scale, slope)
            then = lacks(vector - step)
            better = float(then.square().sum()) < loss
            damping = max(damping / 5, 1e-14) if better else damping * 4
            if better:
                vector, now = vector - step, then
                break
        else:
            break
    return vector


@torch.no_grad()
def _written(model: OneLayer, original: Tagger, variables: _Variables, vector: Tensor) -> Tagger:
    """The original with projections that give these pre-activations, and the smallest change."""
    layer = model.layer
    _, x = model.inputs()
    back = torch.linalg.pinv(x)  # [d_model, tokens]
    keys = layer.num_heads * layer.head_dim
    tagger = copy.deepcopy(original)
    block = tagger.backbone.blocks[0]
    target = block.mixer
    k, v, beta = variables.parts(vector)
    wanted = torch.cat([k, v], dim=1)
    change = (wanted - layer.qkv_proj(x)[:, keys:]).mT @ back.mT
    weight = layer.qkv_proj.weight.clone()
    weight[keys:] += change
    target.qkv_proj.weight.copy_(weight)  # type: ignore[union-attr, operator]
    change = (beta - layer.beta_proj(x)).mT @ back.mT
    target.beta_proj.weight.copy_(layer.beta_proj.weight + change)  # type: ignore[union-attr, operator]
    if variables.gate is not None and layer.decay_proj is not None:
        change = (variables.gate - layer.decay_proj(x)).mT @ back.mT
        target.decay_proj.weight.copy_(layer.decay_proj.weight + change)  # type: ignore[union-attr, operator]
    return tagger


# -- judging -----------------------------------------------------------------------------------


@torch.no_grad()
def _judged(
    repaired: Tagger,
    original: Tagger,
    model: OneLayer,
    graph: Graph,
    was: tuple[float, float],
    seed: int,
) -> Polish:
    copied = copy.deepcopy(repaired).double().eval()
    block = copied.backbone.blocks[0]
    now = OneLayer(copied, block, block.mixer, model.reading)  # type: ignore[arg-type]
    residual, margin = _state_of_things(now, graph)
    why, tried = "", 0
    if not residual <= RESIDUAL:
        why = f"a letter is still off by {residual:.2g} of the state, more than {RESIDUAL:g}"
    elif not margin > 0:
        why = f"a state is read wrongly: the least margin is {margin:.3g}"
    else:
        wrong, tried = _wrong(repaired, model, seed)
        if wrong is not None:
            why = f"it is wrong after {wrong} letters of a word it was tried on"
    pairs = zip(repaired.parameters(), original.parameters(), strict=True)
    squares = [((a - b).double().square().sum(), b.double().square().sum()) for a, b in pairs]
    changed = float((sum(a for a, _ in squares) / sum(b for _, b in squares)) ** 0.5)
    return Polish(
        model=None if why else repaired,
        why=why,
        residual=(was[0], residual),
        margin=(was[1], margin),
        changed=changed,
        words=tried,
    )


def _wrong(tagger: Tagger, model: OneLayer, seed: int) -> tuple[int | None, int]:
    """The first wrong letter of some long words and all short ones, or None; and how many words."""
    reading = model.reading
    machine = reading.machine
    access: list[tuple[int, ...]] = [()] * machine.num_states
    for state in range(machine.num_states):
        for letter, target in enumerate(machine.delta[state].tolist()):
            if target and not access[target]:
                access[target] = (*access[state], letter)
    hypothesis = Hypothesis(machine.delta, machine.outputs, tuple(access))
    long, _ = mixture(hypothesis, WORDS, LENGTH, np.random.default_rng(seed))
    short = every_word(machine.num_letters, 12, EVERY)
    front, tokens = reading.tokens[: reading.num_before], reading.tokens[reading.num_before :]
    first: int | None = None
    for words in (short, long):
        letters = torch.from_numpy(np.array(tokens)[words])
        begin = torch.tensor(front, dtype=torch.long).expand(len(words), -1)
        scores, _ = tagger(torch.cat([begin, letters], dim=1))
        says = scores[:, reading.num_before :].argmax(-1).numpy()
        wrong = (says != reading.classes[machine.run(words)]).any(axis=0)
        if wrong.any():
            at = int(wrong.argmax()) + 1
            first = at if first is None else min(first, at)
    return first, len(short) + len(long)
