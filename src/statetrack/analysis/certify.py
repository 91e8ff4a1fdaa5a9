"""`certify`: the length up to which every word, not a sample, is answered rightly.

Let H*_q be a state of the layer for each state q of the machine, and D_n = H_n - H*_q after a word
of n letters that leads to q. With E(q, a) = A(a) H*_q + B(a) - H*_{δ(q, a)} it obeys

    D_{n+1} = A(a) D_n + E(q, a) + rounding.

No transition of the delta rule makes anything larger: ‖A‖ ≤ 1 for β in [0, 2] and a gate in [0, 1].
So D grows by at most ‖E‖ and the rounding of one letter, and every answer is right while D is
smaller than what the margin of the read-out allows. Two bounds are computed, and the better one
holds:

- **linear**: the H*_q lie on shortest words; D is bounded state by state, along the worst word;
- **cover**: all states that words of n letters reach are covered by balls, which are followed
  letter by letter and merged when they get too many. It is better for models that drift.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statetrack._typing import Bool, Float, Int
from statetrack.analysis.black_box import Alphabet, Model
from statetrack.analysis.one_layer import (
    Factors,
    Graph,
    OneLayer,
    factors_as_run,
    follow,
    one_layer,
    tagger_of,
    unfold,
)
from statetrack.analysis.rounding import (
    Rounding,
    gamma,
    product_error,
    rounding_of,
    unit_roundoff,
)
from statetrack.automata import Machine
from statetrack.ops.delta.torch import CHUNK_ROWS
from statetrack.tasks import Task

__all__ = ["LONGEST", "Certificate", "certify"]

LONGEST = 2**40
"""Lengths are not followed beyond this."""
KINDS = ("exact", "stepwise", "chunked")
OWN = 2.0**-40
"""Added to every E, relative to the largest state: the rounding of what is computed here."""
LEAST = 2.0**-13
"""A head whose states are smaller than this share of the largest of all is counted as so large: one
that holds almost nothing may drift by more than it holds and still be read as nothing."""
BALLS = 2**10
"""Of a cover."""
COVERED = 48
"""Letters to which a cover is followed."""
NEAR = 0.02
"""States of the layer at most so far apart, relative to the largest, may be one node."""


@dataclass(frozen=True)
class Certificate:
    """The lengths up to which every word is answered rightly; `str()` of it is a few lines.

    Attributes:
        exact: with the stored weights and no rounding in the run.
        stepwise: run letter by letter in the dtype of the weights, rounding included. A token gives
            the same factors every time, and keys are normalised in float64, as all backends but
            the reference do.
        chunked: run in chunks of matrix products, as the backend `torch` does.
        residual: the largest ‖E(q, a)‖ of all states, letters and heads, as a share of ‖H‖.
        margin: the least difference between the right score and another, at the H*_q and before a
            last norm.
        rounding: bounds on the rounding of one letter, as shares of ‖H‖: of the factors, of a step
            of the recurrence, and of a chunk.
        dtype: of the weights.
        method: which bound gave `exact`: linear or cover.
    """

    exact: int
    stepwise: int
    chunked: int
    residual: float
    margin: float
    rounding: tuple[float, float, float]
    dtype: str
    method: str

    def __str__(self) -> str:
        factors, step, chunk = self.rounding
        lengths = [_told(length) for length in (self.exact, self.stepwise, self.chunked)]
        return "\n".join(
            [
                "every word is answered rightly up to",
                f"  {lengths[0]:>15} letters with exact arithmetic (bound: {self.method})",
                f"  {lengths[1]:>15} letters run one by one in {self.dtype}",
                f"  {lengths[2]:>15} letters run in chunks in {self.dtype}",
                f"a letter is off by at most {self.residual:.2g} of the state; rounding adds "
                f"{factors:.2g} by its factors, {step:.2g} by its step, and {chunk:.2g} by a chunk",
                f"the least margin is {self.margin:.3g}",
            ]
        )


def certify(
    model: Model,
    machine: Machine,
    task: Task | str | None = None,
    *,
    alphabet: Alphabet | None = None,
    before: Sequence[int] = (),
) -> Certificate:
    """The length up to which the model agrees with the machine after every letter of every word.

    Args:
        model: a tagger of one delta-rule layer without a convolution and an MLP, or a run of one.
        machine: what it should say; that of `extract`, or of a task.
        task, alphabet, before: as in `extract`. A tagger alone is taken as one for
            `tasks.from_machine(machine)`.

    >>> from statetrack.automata import groups
    >>> from statetrack.compiler import compile
    >>> machine = groups.cyclic(3)
    >>> certify(compile(machine).to_tagger(max_length=1000), machine).stepwise > 1000
    True
    """
    found = one_layer(model, machine, task, alphabet=alphabet, before=before)
    if found.block.mlp is not None:
        raise ValueError("the model has an MLP, whose answers are not bounded here: use mlp='none'")
    if found.tagger.config.backbone.norm != "rms":
        raise ValueError("the model has layer norms, which are not bounded here: use norm='rms'")
    dtype = tagger_of(model).head.weight.dtype
    with torch.no_grad():
        return _certificate(found, factors_as_run(model, found), dtype)


def _certificate(model: OneLayer, as_run: Factors, dtype: torch.dtype) -> Certificate:
    u = unit_roundoff(dtype)
    factors, reading = model.factors(), model.reading
    readout = _Readout.of(model, factors, u)
    split = unfold(factors, reading, NEAR, 64 + 8 * reading.machine.num_states)
    found = []
    for graph in (split, Graph.of(reading.machine)):
        if graph is not None:
            setting = _Setting.of(model, factors, graph, u)
            lengths = _linear(setting, readout)
            lengths[1] = max(
                lengths[1], _linear(_Setting.of(model, as_run, graph, u, as_run=True), readout)[1]
            )
            found.append((setting, lengths))
    setting, lengths = max(found, key=lambda pair: pair[1])
    method = "linear"
    if lengths[0] < COVERED:
        covered = _cover(setting, readout)
        method = "cover" if covered[0] > lengths[0] else method
        lengths = [max(pair) for pair in zip(lengths, covered, strict=True)]
    _, place, target = setting.edges
    size, rounding = float(setting.largest.max()), setting.rounding
    scored = readout.scored(place, setting.states[target], setting.classes[target])
    return Certificate(
        exact=lengths[0],
        stepwise=lengths[1],
        chunked=lengths[2],
        residual=float(setting.residual.max()) / size,
        margin=float(scored.margins.min()),
        rounding=(
            float(rounding.inputs.max()) / size,
            float(rounding.step.max()) / size,
            float(rounding.chunk(CHUNK_ROWS).max()) / size,
        ),
        dtype=str(dtype).removeprefix("torch."),
        method=method,
    )


@dataclass(frozen=True, eq=False)
class _Setting:
    """What both bounds rest on.

    Attributes:
        factors: of the tokens.
        delta, classes: of the nodes of a graph, and the class that each should be answered.
        first: the place of the first letter among the tokens.
        states: H* of every node.
        largest: the largest of them in every head, at least a share `LEAST` of that of all heads; D
            may be as large again.
        residual: ‖E‖ of every edge `[edges, heads]`.
        rounding: bounds for states of up to twice `largest`.
        start: how far off the first state may be by rounding `[kinds, heads]`.
        as_run: whether the factors are those that the model computes itself, rounding included.
    """

    factors: Factors
    delta: Int[Tensor, "nodes letters"]
    classes: Int[Tensor, "nodes"]
    first: int
    states: Float[Tensor, "nodes heads key value"]
    largest: Float[Tensor, "heads"]
    residual: Float[Tensor, "edges heads"]
    rounding: Rounding
    start: Float[Tensor, "kinds heads"]
    as_run: bool

    @classmethod
    def of(
        cls, model: OneLayer, factors: Factors, graph: Graph, u: float, *, as_run: bool = False
    ) -> "_Setting":
        reading = model.reading
        states = follow(factors, reading, graph)
        source, letter, target = graph.edges
        after = factors.step(letter + reading.num_before, states[source])
        largest = states.flatten(2).norm(dim=2).amax(dim=0)
        largest = torch.maximum(largest, LEAST * largest.max()).clamp(min=1e-30)
        rounding = rounding_of(model, factors, 2 * largest, u)
        front = slice(0, reading.num_before)
        inputs, step = rounding.inputs[front].sum(dim=0), rounding.step[front].sum(dim=0)
        own = torch.zeros_like(inputs) if as_run else inputs
        return cls(
            factors=factors,
            delta=torch.tensor(graph.delta),
            classes=torch.from_numpy(reading.classes[graph.state]),
            first=reading.num_before,
            states=states,
            largest=largest,
            residual=(after - states[target]).flatten(2).norm(dim=2),
            rounding=rounding,
            start=torch.stack([torch.zeros_like(inputs), step + own, inputs]),
            as_run=as_run,
        )

    @property
    def edges(self) -> tuple[Int[Tensor, "edges"], Int[Tensor, "edges"], Int[Tensor, "edges"]]:
        """The source, the place of the token and the target of every edge."""
        nodes, letters = self.delta.shape
        source = torch.arange(nodes).repeat_interleave(letters)
        return source, torch.arange(letters).repeat(nodes) + self.first, self.delta.flatten()

    def grows(self, place: Int[Tensor, "n"]) -> Float[Tensor, "kinds n heads"]:
        """What rounding adds to D at each token, for each kind of arithmetic; not that of chunks.

        The rounding of what is computed here comes on top.
        """
        inputs, step = self.rounding.inputs[place], self.rounding.step[place]
        own = torch.zeros_like(inputs) if self.as_run else inputs
        kinds = torch.stack([torch.zeros_like(step), step + own, inputs])
        return kinds + OWN * self.largest

    def in_chunks(self, kind: int, length: int) -> Float[Tensor, "heads"]:
        """What chunks add until a letter of a word of this length is read."""
        if KINDS[kind] != "chunked":
            return torch.zeros_like(self.largest)
        return self.rounding.in_chunks(length)

    def read(self, kind: int, place: Int[Tensor, "n"]) -> Float[Tensor, "n heads"]:
        """How far off y may be by its own rounding."""
        return self.rounding.read[place] * (KINDS[kind] != "exact")


# -- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scored:
    """Margins of some states, each after some token, and what a deviation of y takes off.

    Attributes:
        margins: by how much the right score is above every other `[n, classes]`, rounding of the
            scores taken off; infinite at the right one.
        slopes: what moving the normalised y of a head by 1 can take off `[n, classes, heads]`.
        sizes: ‖y‖ of each head, with what `norm_eps` adds `[n, heads]`.
        gain: how much of a deviation of H reaches y `[n, heads]`.
    """

    margins: Float[Tensor, "n classes"]
    slopes: Float[Tensor, "n classes heads"]
    sizes: Float[Tensor, "n heads"]
    gain: Float[Tensor, "n heads"]

    def right(
        self, off: Float[Tensor, "n heads"], read: Float[Tensor, "n heads"]
    ) -> Bool[Tensor, "n"]:
        """Whether the answer is right whatever H is at most `off` away, and y another `read`.

        A unit vector moves by at most 2 sin(½ asin(d/‖y‖)) when y moves by d.
        """
        share = (self.gain * off + read) / self.sizes
        chord = torch.where(share < 1, 2 * torch.sin(share.clamp(max=1.0).asin() / 2), 2.0)
        lost = torch.einsum("nch,nh->nc", self.slopes, chord)
        return (self.margins > lost).all(dim=1)


@dataclass(frozen=True)
class _Readout:
    """Scores as a linear map of the normalised y, for every token; a last norm only scales them.

    Attributes:
        weight: `[tokens, classes, heads, value]`.
        bias: `[tokens, classes]`.
        rounding: of every score `[tokens, classes]`.
        queries: `[tokens, heads, key]`, with the scale of y.
        value_dim, norm_eps: of the norm of a head.
    """

    weight: Float[Tensor, "tokens classes heads value"]
    bias: Float[Tensor, "tokens classes"]
    rounding: Float[Tensor, "tokens classes"]
    queries: Float[Tensor, "tokens heads key"]
    value_dim: int
    norm_eps: float

    @classmethod
    def of(cls, model: OneLayer, factors: Factors, u: float) -> "_Readout":
        layer, tagger = model.layer, model.tagger
        x, given = model.inputs()
        head = tagger.head.weight
        if tagger.backbone.norm is not None:
            head = head * tagger.backbone.norm.weight
        gains = layer.norm.weight.repeat(layer.num_value_heads).expand(len(x), -1)
        if layer.gate_proj is not None:
            gains = gains * torch.nn.functional.silu(layer.gate_proj(given))
        out = layer.out_proj.weight[None] * gains[:, None]  # [tokens, d_model, inner]
        weight = torch.einsum("cd,tdi->tci", head, out)
        stream = x if model.block.residual else torch.zeros_like(x)
        # rounding: |normalised y| <= sqrt(value), and sums in any order
        inner, d_model = out.shape[2], x.shape[1]
        most = math.sqrt(layer.value_dim) * out.abs().sum(dim=2)
        off = gamma(inner + layer.value_dim + 24, u) * most
        if layer.gate_proj is not None:
            error = product_error(layer.gate_proj.weight, given, u)
            moved = (
                layer.out_proj.weight.abs()
                * (1.1 * error * layer.norm.weight.abs().repeat(layer.num_value_heads))[:, None]
            )
            off = off + math.sqrt(layer.value_dim) * moved.sum(dim=2)
        total = stream.abs() + most
        rounding = (off + gamma(2 * d_model + 24, u) * total) @ head.abs().mT
        return cls(
            weight=weight.unflatten(-1, (layer.num_value_heads, layer.value_dim)),
            bias=stream @ head.mT,
            rounding=rounding,
            queries=factors.q / math.sqrt(layer.head_dim),
            value_dim=layer.value_dim,
            norm_eps=layer.norm.eps,
        )

    def scored(
        self,
        place: Int[Tensor, "n"],
        states: Float[Tensor, "n heads key value"],
        classes: Int[Tensor, "n"],
    ) -> _Scored:
        """Of states after a token, with the class that should be answered."""
        y = torch.einsum("nhkv,nhk->nhv", states, self.queries[place])
        sizes = (y.square().sum(dim=-1) + self.value_dim * self.norm_eps).sqrt()
        normed = math.sqrt(self.value_dim) * y / sizes[..., None]
        scores = self.bias[place] + torch.einsum("nchv,nhv->nc", self.weight[place], normed)
        right = scores.gather(1, classes[:, None])
        slack = self.rounding[place]
        margins = right - scores - slack - slack.gather(1, classes[:, None])
        margins.scatter_(1, classes[:, None], torch.inf)
        apart = self.weight[place, classes][:, None] - self.weight[place]
        slopes = math.sqrt(self.value_dim) * apart.norm(dim=-1)
        return _Scored(margins, slopes, sizes, self.queries.norm(dim=-1)[place])


# -- the linear bound ---------------------------------------------------------------------------


def _linear(setting: _Setting, readout: _Readout) -> list[int]:
    """For each kind of arithmetic the greatest length at which all edges are read rightly.

    The bounds b of all nodes are followed for a while. They are monotone, and adding g to all of
    them adds at most g to the next ones; so if b has grown by g within p letters, it grows by at
    most g within any p further ones.
    """
    _, place, target = setting.edges
    scored = readout.scored(place, setting.states[target], setting.classes[target])
    return [_linear_length(setting, scored, kind) for kind in range(len(KINDS))]


def _linear_length(setting: _Setting, scored: _Scored, kind: int) -> int:
    source, place, target = setting.edges
    factor, read = setting.factors.decay[place], setting.read(kind, place)
    grows = setting.residual + setting.grows(place)[kind]

    def longer(bound: Tensor) -> Tensor:
        """After words of up to one letter more."""
        before = bound[source]
        after = torch.where(before.isinf(), before, factor * before + grows)  # a gate may be 0
        return bound.scatter_reduce(0, target[:, None].expand_as(after), after, "amax")

    def holds(bound: Tensor, length: int) -> bool:
        off = bound[target] + setting.in_chunks(kind, length)
        unreached = (off == -torch.inf).all(dim=1)
        small = (off <= setting.largest).all(dim=1)  # false where a bound is no number
        return bool((unreached | (small & scored.right(off.clamp(min=0.0), read))).all())

    bound = torch.full((len(setting.delta), len(setting.largest)), -torch.inf, dtype=grows.dtype)
    bound[0] = setting.start[kind]  # no word leads to the others yet
    window, length = max(8, len(bound)), 0
    for _ in range(3):
        earlier = bound
        for _ in range(window):
            bound = longer(bound)
            length += 1
            if not holds(bound, length):
                return length - 1
    gap = (bound - earlier).amax(dim=0)
    assert gap.isfinite().all(), "every node is reached within as many letters as there are nodes"
    least, most = 0, LONGEST // window
    while least < most:
        middle = (least + most + 1) // 2
        fits = holds(bound + middle * gap, length + middle * window)
        least, most = (middle, most) if fits else (least, middle - 1)
    return length + least * window


# -- the cover ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Balls:
    """Balls of states of the layer, each belonging to a node.

    Attributes:
        node: `[n]`.
        centre: `[n, heads, key, value]`.
        radius: in every head, for each kind of arithmetic `[kinds, n, heads]`.
    """

    node: Int[Tensor, "n"]
    centre: Float[Tensor, "n heads key value"]
    radius: Float[Tensor, "kinds n heads"]

    @classmethod
    def join(cls, parts: "Sequence[_Balls]") -> "_Balls":
        return cls(
            torch.cat([one.node for one in parts]),
            torch.cat([one.centre for one in parts]),
            torch.cat([one.radius for one in parts], dim=1),
        )


def _cover(setting: _Setting, readout: _Readout) -> list[int]:
    """For each kind of arithmetic the greatest length at which all balls are read rightly."""
    balls = _Balls(
        torch.zeros(1, dtype=torch.long), setting.states[:1], setting.start[:, None].clone()
    )
    lengths = [0] * len(KINDS)
    for length in range(1, COVERED + 1):
        reached = []
        alive = [found == length - 1 for found in lengths]
        for letter in range(setting.delta.shape[1]):
            place = torch.full_like(balls.node, setting.first + letter)
            node = setting.delta[balls.node, letter]
            centre = setting.factors.step(place, balls.centre)
            radius = setting.factors.decay[place] * balls.radius + setting.grows(place)
            scored = readout.scored(place, centre, setting.classes[node])
            far = centre.flatten(2).norm(dim=2)
            for kind in range(len(KINDS)):
                off = radius[kind] + setting.in_chunks(kind, length)
                fits = (far + off <= 2 * setting.largest).all()
                right = scored.right(off, setting.read(kind, place)).all()
                alive[kind] = alive[kind] and bool(fits and right)
            reached.append(_Balls(node, centre, radius))
        lengths = [length if a else n for a, n in zip(alive, lengths, strict=True)]
        if not any(alive):
            break
        balls = _merged(_Balls.join(reached))
    return lengths


def _merged(balls: _Balls) -> _Balls:
    """At most `BALLS` balls around all of them: the first one swallows those near to it."""
    size = float(balls.centre.flatten(1).norm(dim=1).max())
    near = 1e-12 * size
    while True:
        found: list[_Balls] = []
        for node in balls.node.unique():
            left = (balls.node == node).nonzero().flatten()
            while len(left) and len(found) <= BALLS:
                apart = (balls.centre[left] - balls.centre[left[0]]).flatten(2).norm(dim=2)
                inside = apart.norm(dim=1) <= near
                radius = (balls.radius[:, left[inside]] + apart[inside]).amax(dim=1, keepdim=True)
                found.append(_Balls(node[None], balls.centre[left[:1]], radius))
                left = left[~inside]
        if len(found) <= BALLS:
            return _Balls.join(found)
        near = max(1.5 * near, 1e-3 * size)


def _told(length: int) -> str:
    return f"{length:,}" if length < LONGEST // 2 else "more than 10^11"
