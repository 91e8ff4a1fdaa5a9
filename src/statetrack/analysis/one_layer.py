"""A tagger of one delta-rule layer as what it is: for every token one affine map of the state.

Without a convolution what the layer does at a token depends on the token alone:

    H ← A(a) H + B(a),      scores = read(a, H)

So a machine can be followed state by state, in float64, and no word is ever run. `polish` and
`certify` rest on this.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.analysis.black_box import Alphabet, Model, black_box
from statetrack.automata import Machine
from statetrack.automata.machine import IntArray
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.parts import merge_heads
from statetrack.models import Tagger
from statetrack.models.backbone import Block
from statetrack.runs.folder import run_at
from statetrack.runs.stored import StoredRun
from statetrack.tasks import Task

__all__ = [
    "Factors",
    "Graph",
    "OneLayer",
    "factors_as_run",
    "Reading",
    "first_state",
    "follow",
    "one_layer",
    "tagger_of",
    "unfold",
]


class Factors(NamedTuple):
    """What the layer computes from each token, in float64; keys and queries have unit norm."""

    q: Float[Tensor, "tokens heads key"]
    k: Float[Tensor, "tokens micro heads key"]
    v: Float[Tensor, "tokens micro heads value"]
    beta: Float[Tensor, "tokens micro heads"]
    decay: Float[Tensor, "tokens heads"]

    def step(
        self, place: Int[Tensor, "n"], h: Float[Tensor, "n heads key value"]
    ) -> Float[Tensor, "n heads key value"]:
        """A(a) H + B(a), for tokens given by their place."""
        h = self.decay[place][:, :, None, None] * h
        for j in range(self.k.shape[1]):
            k, v = self.k[place, j], self.v[place, j]
            error = v - torch.einsum("nhkv,nhk->nhv", h, k)
            h = h + torch.einsum("nh,nhk,nhv->nhkv", self.beta[place, j], k, error)
        return h


@dataclass(frozen=True, eq=False)
class Reading:
    """Which tokens a machine's letters are, and which class each of its states should be answered.

    Attributes:
        machine: the machine.
        tokens: the tokens before every word, then those of the letters.
        num_before: how many stand before.
        classes: the class of every state.
    """

    machine: Machine
    tokens: tuple[int, ...]
    num_before: int
    classes: IntArray


@dataclass(frozen=True, eq=False)
class OneLayer:
    """A tagger, copied to float64, and its parts.

    Attributes:
        tagger: the copy.
        block, layer: its only block, and the layer in it.
        reading: which tokens and classes are looked at.
    """

    tagger: Tagger
    block: Block
    layer: DeltaFamily
    reading: Reading

    @property
    def tokens(self) -> Int[Tensor, "tokens"]:
        return torch.tensor(self.reading.tokens)

    def inputs(self) -> tuple[Float[Tensor, "tokens d_model"], Float[Tensor, "tokens d_model"]]:
        """What the residual stream has of each token, and what the layer gets."""
        x: Tensor = self.tagger.embedding(self.tokens[None])
        return x[0], self.block.mixer_norm(x)[0]

    def factors(self) -> Factors:
        _, x = self.inputs()
        return found_factors(self.layer, x[None])

    def features(
        self, place: Int[Tensor, "n"], h: Float[Tensor, "n heads key value"], q: Tensor
    ) -> Float[Tensor, "n d_model"]:
        """What the head gets where the last token and the layer's state are these."""
        x, given = (part[place][:, None] for part in self.inputs())
        y = torch.einsum("nhkv,nhk->nhv", h, q[place]) / math.sqrt(self.layer.head_dim)
        y = merge_heads(self.layer.norm(y[:, None]))
        if self.layer.gate_proj is not None:
            y = y * silu(self.layer.gate_proj(given))
        mixed = self.layer.out_proj(y)
        x = x + mixed if self.block.residual else mixed
        if self.block.mlp is not None and self.block.mlp_norm is not None:
            change = self.block.mlp(self.block.mlp_norm(x))
            x = x + change if self.block.residual else change
        if self.tagger.backbone.norm is not None:
            x = self.tagger.backbone.norm(x)
        return x[:, 0]


def tagger_of(model: Model) -> Tagger:
    """The tagger itself, or that of a run or of its folder."""
    if isinstance(model, str | Path):
        model = run_at(model)
    if isinstance(model, StoredRun):
        model = model.model()
    if not isinstance(model, Tagger):
        raise ValueError(
            f"this needs a Tagger with one layer, or a run of one, and got {type(model).__name__}"
        )
    return model


def one_layer(
    model: Model,
    machine: Machine,
    task: Task | str | None = None,
    *,
    alphabet: Alphabet | None = None,
    before: Sequence[int] = (),
) -> OneLayer:
    """The model, if it is of the kind this is about; else a `ValueError` says what is in the way.

    Letters and classes are found as in `extract`, whose machine this may be. A tagger alone,
    without a task and an alphabet, is taken as one for `tasks.from_machine(machine)`.
    """
    if isinstance(model, Tagger) and task is None and alphabet is None:
        tokens, front = tuple(range(machine.num_letters)), tuple(before)
        classes = np.unique(machine.outputs, return_inverse=True)[1].reshape(-1)
        expected = machine.num_letters + 1, int(classes.max()) + 1
        if (model.config.vocab_size, model.config.num_classes) != expected:
            raise ValueError(
                f"the model knows {model.config.vocab_size} tokens and "
                f"{model.config.num_classes} classes, not the {expected[0]} and {expected[1]} of "
                "tasks.from_machine(machine): give its task, or an alphabet"
            )
    else:
        box = black_box(model, task, alphabet=alphabet, before=before)
        if machine.alphabet != box.alphabet:
            raise ValueError(
                f"the machine reads {' '.join(map(str, machine.alphabet[:16]))}, and the model "
                f"{' '.join(map(str, box.alphabet[:16]))}: they must have the same letters"
            )
        tokens, front = box.tokens, box.before
        num_classes = tagger_of(model).config.num_classes
        says = {box.outputs([c]).tolist()[0]: c for c in range(num_classes)}
        unknown = sorted(set(machine.outputs.tolist()) - says.keys())
        if unknown:
            raise ValueError(f"the machine says {unknown[0]}, which is no class of the model")
        classes = np.array([says[output] for output in machine.outputs.tolist()])
    tagger = copy.deepcopy(tagger_of(model)).double().eval()
    blocks = list(tagger.backbone.blocks)
    if len(blocks) != 1:
        raise ValueError(
            f"the model has {len(blocks)} layers, and this is about models of one; its machine can "
            "be extracted and compiled instead"
        )
    (block,) = blocks
    assert isinstance(block, Block)
    layer = block.mixer
    if not isinstance(layer, DeltaFamily):
        raise ValueError(
            f"the layer is {type(layer).__name__}; this is about DeltaNet, GatedDeltaNet and "
            "DeltaProduct, whose transitions have norm at most 1"
        )
    if layer.conv is not None:
        raise ValueError("the layer has a convolution, so a token alone does not decide its step")
    for option in ("beta_stretch", "beta_start"):
        if getattr(layer, option):
            raise ValueError(f"the layer has {option}; this is about β that is a sigmoid alone")
    if block.norm_after:
        raise ValueError("the block has its norm after the layer; this is about norm='before'")
    if tagger.backbone.first_norm is not None:
        raise ValueError("the model has a norm before its block; this is about first_norm=False")
    reading = Reading(machine, (*front, *tokens), len(front), classes)
    return OneLayer(tagger, block, layer, reading)


def factors_as_run(model: Model, found: OneLayer) -> Factors:
    """The factors that the model itself computes, token by token, in its own dtype."""
    tagger = copy.deepcopy(tagger_of(model)).eval().cpu()
    block = tagger.backbone.blocks[0]
    assert isinstance(block, Block) and isinstance(block.mixer, DeltaFamily)
    rows = []
    for token in found.reading.tokens:
        x = tagger.embedding(torch.tensor([[token]]))
        rows.append(found_factors(block.mixer, block.mixer_norm(x)))
    return Factors(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def found_factors(layer: DeltaFamily, x: Float[Tensor, "1 tokens d_model"]) -> Factors:
    """What the layer computes from each token, as float64, in which keys are normalised."""
    inputs = layer._inputs(x, {})
    unit = (lambda z: z) if layer.qk_eps else ops.unit_vector
    q, k, v, beta = (part[0].double() for part in inputs[:4])
    decay = torch.ones_like(beta[:, 0]) if inputs.decay is None else inputs.decay[0].double()
    return Factors(q=unit(q), k=unit(k), v=v, beta=beta, decay=decay)


@dataclass(frozen=True, eq=False)
class Graph:
    """The machine, with a state split where the layer holds it in several ways.

    Attributes:
        delta: `[nodes, letters]`; every node but 0 has an edge from an earlier one.
        state: the machine's state of every node.
    """

    delta: IntArray
    state: IntArray

    @classmethod
    def of(cls, machine: Machine) -> "Graph":
        """Only the start is split: before the first letter the layer may hold anything."""
        states = machine.num_states
        delta = np.concatenate([machine.delta, machine.delta[:1]])
        delta[delta == 0] = states
        back = (machine.delta == 0).any()
        found = cls(delta, np.append(np.arange(states), 0))
        return found if back else cls(machine.delta, np.arange(states))

    @property
    def edges(self) -> tuple[Int[Tensor, "edges"], Int[Tensor, "edges"], Int[Tensor, "edges"]]:
        """Source, letter and target of all."""
        source, letter = np.divmod(np.arange(self.delta.size), self.delta.shape[1])
        target = self.delta.reshape(-1).copy()
        return torch.from_numpy(source), torch.from_numpy(letter), torch.from_numpy(target)


def first_state(factors: Factors, reading: Reading) -> Float[Tensor, "heads key value"]:
    """What the tokens before every word leave."""
    _, _, heads, key = factors.k.shape
    h = factors.k.new_zeros(1, heads, key, factors.v.shape[-1])
    for place in range(reading.num_before):
        h = factors.step(torch.tensor([place]), h)
    return h[0]


def follow(
    factors: Factors, reading: Reading, graph: Graph
) -> Float[Tensor, "nodes heads key value"]:
    """For every node the layer's state after a shortest word to it."""
    found = {0: first_state(factors, reading)}
    fresh = [0]
    while fresh:
        new: dict[int, tuple[int, int]] = {}
        for node in fresh:
            for letter, target in enumerate(graph.delta[node].tolist()):
                if target not in found and target not in new:
                    new[target] = (node, letter)
        if not new:
            break
        sources = torch.stack([found[node] for node, _ in new.values()])
        places = torch.tensor([reading.num_before + letter for _, letter in new.values()])
        for target, after in zip(new, factors.step(places, sources), strict=True):
            found[target] = after
        fresh = list(new)
    return torch.stack([found[node] for node in range(len(found))])


def unfold(factors: Factors, reading: Reading, near: float, most: int) -> Graph | None:
    """The graph of the layer's own states, those of one machine state joined where they are near.

    Near is a share of the largest state seen. None if there are more than `most` nodes.
    """
    machine = reading.machine
    held = [first_state(factors, reading)]
    state: list[int] = [0]
    delta: list[list[int]] = []
    letters = torch.arange(machine.num_letters) + reading.num_before
    size = held[0].norm()
    for node in range(most):
        if node == len(held):
            return Graph(np.array(delta), np.array(state))
        reached = factors.step(letters, held[node].expand(len(letters), *held[node].shape))
        size = torch.maximum(size, reached.flatten(1).norm(dim=1).max())
        row = []
        for target, after in zip(machine.delta[state[node]].tolist(), reached, strict=True):
            same = [other for other in range(len(held)) if state[other] == target]
            apart = [float((held[other] - after).norm()) for other in same]
            if same and min(apart) <= near * float(size):
                row.append(same[int(np.argmin(apart))])
            else:
                row.append(len(held))
                held.append(after)
                state.append(target)
        delta.append(row)
    return None
