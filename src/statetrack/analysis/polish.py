"""`polish`: a trained one-layer network, repaired so that it follows its machine exactly.

A trained network drifts because its reflections are not quite reflections and do not quite fit
together. Setting β to 2 alone does not help: H ↦ H - 2k(kᵀH - vᵀ) are affine maps that must also
meet the same states. So keys, values and β of every token are moved until they do:

    minimise Σ ‖A(a) H_q + B(a) - H_{δ(q, a)}‖² and what is missing to keep the H_q apart,

with H_q along the machine's shortest words (Levenberg-Marquardt, float64). The second term matters:
without it all H_q would become one. Then queries and head are moved until every answer has its
margin, because states that have moved are read anew. The result is written back into the
projections, with the smallest change that gives it. What comes out is an ordinary tagger of the
same config. It is accepted only if the residual, the margins and words say so.
"""

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn.functional import silu, softplus

from statetrack import ops
from statetrack._typing import Float, Int
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
from statetrack.compiler.profile import Profile
from statetrack.layers._delta import DeltaFamily
from statetrack.layers._gates import range_share
from statetrack.models import Tagger
from statetrack.tasks import Task

__all__ = ["Polish", "polish"]

NEAR_END = 0.1
"""β within so much of 0 and 2 is set to that."""
GATE = 0.01
"""A gate within so much of 1 is set to 1."""
FAR = 24.0
"""A logit at which a sigmoid is 0 or 1, far below the rounding of float32."""
STEPS = 60
PATIENCE = 8
"""Steps within which the loss must halve."""
ENOUGH = 1e-18
"""Σ of squares at which nothing is left to repair."""
MAX_JACOBIAN = 2**26
AT_ONCE = 2**21
"""Numbers of a Jacobian that are computed between two looks at the clock."""
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
    seconds: float = 300.0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Polish:
    """A copy of a trained model that follows the machine exactly, if one is found nearby.

    Args:
        model: a tagger of one delta-rule layer without a convolution, or a run of one.
        machine: what it has learnt, as `extract` finds it.
        task, alphabet, before: as in `extract`. A tagger alone is taken as one for
            `tasks.from_machine(machine)`.
        seconds: when to stop looking.
        seed: of the words it is tried on.
        progress: is told in words how far it is, before every step.
    """
    if seconds <= 0:
        raise ValueError(f"seconds={seconds} must be positive")
    found = one_layer(model, machine, task, alphabet=alphabet, before=before)
    original = tagger_of(model)
    whole, apart = Graph(machine.delta, np.arange(machine.num_states)), Graph.of(machine)
    was = _state_of_things(found, apart)
    impossible = _impossible(machine, found.layer)
    if impossible is not None:
        return _rejected(impossible, was)
    best = _rejected("no step could be taken", was)
    clock = _Clock(seconds, progress)
    for number, (graph, by_letter) in enumerate(((whole, True), (apart, True), (apart, False)), 1):
        clock.attempt = f"attempt {number} of 3"
        try:
            repaired = _repaired(found, original, graph, by_letter, clock)
        except _OutOfTime as late:
            return replace(best, why=f"{late}; {best.why}" if best.changed else str(late))
        if repaired is None:
            continue
        tried = _judged(repaired, original, found, graph, was, seed)
        if tried.accepted:
            return tried
        if not best.changed or tried.residual[1] < best.residual[1]:
            best = tried
    return best


def _rejected(why: str, was: tuple[float, float]) -> Polish:
    """Before anything was changed."""
    return Polish(None, why, (was[0],) * 2, (was[1],) * 2, 0.0, 0)


class _OutOfTime(Exception):
    pass


class _Clock:
    """Ends the work when its time is over, and says how far it is."""

    def __init__(self, seconds: float, progress: Callable[[str], None]) -> None:
        self.seconds, self.progress = seconds, progress
        self.begun = time.monotonic()
        self.attempt = ""

    def tick(self) -> None:
        if time.monotonic() - self.begun > self.seconds:
            raise _OutOfTime(f"the {self.seconds:g} seconds are over in {self.attempt}")

    def tell(self, what: str, step: int, loss: float) -> None:
        spent = time.monotonic() - self.begun
        self.progress(
            f"{self.attempt}, {what}: step {step} of at most {STEPS}, {loss**0.5:.1e} is missing, "
            f"{spent:.0f} of {self.seconds:g} s"
        )


def _impossible(machine: Machine, layer: DeltaFamily) -> str | None:
    """Why no weights of this layer follow the machine for ever; None if no reason is known.

    Let a letter lead round m states that must be told apart, and d be the difference of the layer's
    states of two neighbours. Then A^m d = d and Ad is not d, so A has an eigenvalue e^(2πip/m), not
    1. Products of Householders with eigenvalues above -1 have none of modulus 1 besides 1 itself,
    and those of one Householder are real.
    """
    small = machine.minimal()
    low = layer.eigen_range.low
    for letter, lengths in zip(small.alphabet, Profile(small).letter_cycles, strict=True):
        longest = max(lengths)
        name = f"letter {letter!r} leads round {longest} states"
        if longest > 1 and low > -1:
            return (
                f"{name}, which takes an eigenvalue of modulus 1 that is not 1, and those of this "
                f"layer are 1 or smaller, because its range is [{low:g}, 1]"
            )
        if longest > 2 and layer.num_householders == 1:
            return (
                f"{name}, which takes an eigenvalue that is not real, and one Householder has none"
            )
    return None


def _state_of_things(model: OneLayer, graph: Graph) -> tuple[float, float]:
    """The residual and the least margin."""
    factors = model.factors()
    states = follow(factors, model.reading, graph)
    residual = _residual(model, factors, states, graph).flatten(1).norm(dim=1).max()
    margins = _margins(model, states, graph, factors.q, model.tagger.head.weight)
    return float(residual / states.flatten(1).norm(dim=1).max()), float(margins.min())


def _residual(
    model: OneLayer, factors: Factors, states: Tensor, graph: Graph
) -> Float[Tensor, "edges heads key value"]:
    """By how much every letter misses its target."""
    source, letter, target = graph.edges
    return factors.step(letter + model.reading.num_before, states[source]) - states[target]


def _margins(
    model: OneLayer, states: Tensor, graph: Graph, q: Tensor, head: Tensor
) -> Float[Tensor, "edges"]:
    """By how much the right answer is above all others, after every letter in every state."""
    _, letter, target = graph.edges
    classes = torch.from_numpy(model.reading.classes[graph.state])[target][:, None]
    scores = model.features(letter + model.reading.num_before, states[target], q) @ head.mT
    others = scores.scatter(1, classes, -torch.inf)
    return (scores.gather(1, classes) - others.amax(dim=1, keepdim=True))[:, 0]


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


class _Reading:
    """Pre-activations of the queries of every token, and the head, as one vector."""

    def __init__(self, model: OneLayer) -> None:
        layer = model.layer
        self.model = model
        _, x = model.inputs()
        self.q = layer.qkv_proj(x)[:, : layer.num_heads * layer.head_dim]
        self.head = model.tagger.head.weight

    def vector(self) -> Float[Tensor, "unknowns"]:
        return torch.cat([self.q.flatten(), self.head.flatten()])

    def parts(self, vector: Float[Tensor, "unknowns"]) -> tuple[Tensor, Tensor]:
        """q as the projection gives it `[tokens, channels]`, and the weights of the head."""
        q, head = vector.split((self.q.numel(), self.head.numel()))
        return q.view_as(self.q), head.view_as(self.head)

    def margins(
        self, vector: Float[Tensor, "unknowns"], states: Tensor, graph: Graph
    ) -> Float[Tensor, "edges"]:
        layer = self.model.layer
        q, head = self.parts(vector)
        q = silu(q) if layer.qk_silu else q
        q = layer._by_value_head(q.unflatten(-1, (layer.num_heads, layer.head_dim)))
        q = q if layer.qk_eps else ops.unit_vector(q)
        return _margins(self.model, states, graph, q, head)


def _repaired(
    model: OneLayer, original: Tagger, graph: Graph, by_letter: bool, clock: _Clock
) -> Tagger | None:
    """A copy of the original with other factors and another read-out; None if none was found."""
    variables, reading = _Variables(model, graph, by_letter), _Reading(model)
    factors = model.factors()
    wanted = _wanted_margin(model)
    states = follow(factors, model.reading, graph)
    size = states.flatten(1).norm(dim=1).max()
    one, other = _pairs(graph)
    apart = (states[one] - states[other]).flatten(1).norm(dim=1).median() / 2

    def states_lack(vector: Tensor) -> Tensor:
        """What letters miss, and what states lack to be as far apart as they should be."""
        moved = variables.factors(vector, factors.q)
        held = follow(moved, model.reading, graph)
        between = (held[one] - held[other]).flatten(1).norm(dim=1)
        residual = _residual(model, moved, held, graph)
        return torch.cat([residual.flatten() / size, (1 - between / apart).clamp(min=0)])

    vector = variables.vector()
    equations = len(states_lack(vector))
    if equations * len(vector) > MAX_JACOBIAN:
        raise ValueError(
            f"too large to polish: {equations} equations for {len(vector)} unknowns; extract its "
            "machine and compile that instead"
        )
    found = _levenberg_marquardt(states_lack, vector, clock, "states")
    if found is None:
        return None
    held = follow(variables.factors(found, factors.q), model.reading, graph)

    def margins_lack(vector: Tensor) -> Tensor:
        return (1 - reading.margins(vector, held, graph) / wanted).clamp(min=0)

    read = _levenberg_marquardt(margins_lack, reading.vector(), clock, "answers")
    if read is None:
        return None
    return _written(model, original, variables.parts(found), variables.gate, reading.parts(read))


def _wanted_margin(model: OneLayer) -> Float[Tensor, ""]:
    """Half of what is usual for the model as it is."""
    factors, graph = model.factors(), Graph.of(model.reading.machine)
    states = follow(factors, model.reading, graph)
    margins = _margins(model, states, graph, factors.q, model.tagger.head.weight)
    return margins.median().clamp(min=1e-3) / 2


def _pairs(graph: Graph) -> tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"]]:
    """Nodes that must be told apart: those of different states of the machine."""
    one, other = np.nonzero(np.tril(graph.state[:, None] != graph.state[None]))
    return torch.from_numpy(one), torch.from_numpy(other)


def _jacobian(
    function: Callable[[Tensor], Tensor], at: Tensor, values: int, clock: _Clock
) -> Float[Tensor, "values unknowns"]:
    """By forward derivatives, a few unknowns at a time."""
    columns = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, inside of torch
        for part in torch.eye(len(at), dtype=at.dtype).split(max(1, AT_ONCE // values)):
            clock.tick()
            columns.append(vmap(lambda tangent: jvp(function, (at,), (tangent,))[1])(part))
    return torch.cat(columns).mT


def _levenberg_marquardt(
    lacks: Callable[[Tensor], Tensor], vector: Tensor, clock: _Clock, what: str
) -> Tensor | None:
    """Where Σ lacks² is least, near `vector`; None if it is not finite."""
    now = lacks(vector)
    damping = 1e-3
    losses: list[float] = []
    for step in range(STEPS):
        loss = float(now.square().sum())
        if not np.isfinite(loss):
            return None
        losses.append(loss)
        stuck = len(losses) > PATIENCE and loss > losses[-1 - PATIENCE] / 2
        if loss < ENOUGH or stuck:
            break
        clock.tell(what, step + 1, loss)
        jacobian = _jacobian(lacks, vector, len(now), clock)
        normal, slope = jacobian.mT @ jacobian, jacobian.mT @ now
        scale = torch.diag(normal).mean() * torch.eye(len(vector), dtype=vector.dtype)
        while damping < 1e8:
            clock.tick()
            change = torch.linalg.solve(normal + damping * scale, slope)
            then = lacks(vector - change)
            better = float(then.square().sum()) < loss
            damping = max(damping / 5, 1e-14) if better else damping * 4
            if better:
                vector, now = vector - change, then
                break
        else:
            break
    return vector


@torch.no_grad()
def _written(
    model: OneLayer,
    original: Tagger,
    factors: tuple[Tensor, Tensor, Tensor],
    gate: Tensor | None,
    reading: tuple[Tensor, Tensor],
) -> Tagger:
    """The original with projections that give these pre-activations, and the smallest change."""
    layer = model.layer
    _, x = model.inputs()
    back = torch.linalg.pinv(x)  # [d_model, tokens]
    tagger = copy.deepcopy(original)
    target = tagger.backbone.blocks[0].mixer
    (k, v, beta), (q, head) = factors, reading

    def write(name: str, wanted: Tensor) -> None:
        found: torch.nn.Linear = getattr(layer, name)
        change = (wanted - found(x)).mT @ back.mT
        getattr(target, name).weight.copy_(found.weight + change)

    write("qkv_proj", torch.cat([q, k, v], dim=1))
    write("beta_proj", beta)
    if gate is not None:
        write("decay_proj", gate)
    tagger.head.weight.copy_(head)
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
