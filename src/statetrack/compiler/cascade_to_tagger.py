"""Pass: a cascade -> an ordinary `Tagger` of several layers, with finite logits.

Block i is level i of the cascade: a DeltaProduct that holds the level's label, and an MLP that
leads from context and label to the next context. The residual stream has a coordinate for each
letter, one that is 1, and for each level its labels and its contexts, each 0 or 1.

- **Labels.** Row j of H is 1 for the label j. A permutation swaps rows. A reset to r fades every
  other row to ε of itself and writes 1 into row r, so that the label before is the row that is ε
  now; in a cascade the next level needs it. As in `to_tagger`, H begins at zero.
- **Contexts.** A pair of SwiGLU units for each (context, label) is the context times a step of the
  label's score from 0 to 1, with a flat top and a flat bottom, so that small errors do not travel
  on. It is flat up to e^(-3S/8): the steeper, the more exact, and the smaller the gradients of what
  the layers before hold. In other contexts the gate is closed, too.
- **Norms.** A large `norm_eps`, undone by the norm's weight, makes them almost linear.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from statetrack.automata import Level, Machine, Swap, factors, holonomy
from statetrack.automata.limits import too_large
from statetrack.compiler.from_cascade import program_of_cascade
from statetrack.compiler.program import FloatArray, IntArray, Stage
from statetrack.compiler.tagger_form import (
    DRIFT,
    LOWEST,
    MARGIN,
    MAX_PARAMETERS,
    Factor,
    Form,
    tables,
)
from statetrack.models import BackboneConfig, Tagger, TaggerConfig

__all__ = ["cascade_to_tagger"]

FADE = 1 / 8
"""ε: what a reset leaves of the label before."""
NORM_EPS = 1e6
"""Of the norms of the blocks; their weights are its root."""
READ_EPS = 1.0
"""Of the norm of a head, relative to the largest square that is read."""
WORDS, LENGTH = 16, 512
"""Words that a tagger is tried on before it is given away, and their length at most."""


def cascade_to_tagger(machine: Machine, classes: IntArray, max_length: int) -> Tagger:
    """A tagger with a block for each level of the machine's holonomy cascade."""
    cascade = holonomy(machine)
    stages = program_of_cascade(cascade).stages
    levels = [_Labels(level, cascade.start[i]) for i, level in enumerate(cascade.levels)]
    if not levels:
        raise ValueError(f"{machine!r} has one state: there is nothing to tag")
    tagger = _filled(_Layout(machine, stages, levels, classes), max_length)
    _try(tagger, machine, classes, max_length)
    return tagger


class _Labels:
    """How a layer holds the labels of a level, and how they are read."""

    def __init__(self, level: Level, start: int) -> None:
        self.size = level.size
        self.resets = [*level.resets.tolist(), -1]  # the last one does nothing
        self.scale = -LOWEST  # rows are this much times 0 or 1
        begin = np.zeros((level.size, 1))
        begin[start] = self.scale
        found: list[tuple[Factor, ...]] = []
        for row, reset in zip(level.actions.tolist(), level.resets.tolist(), strict=True):
            if reset < 0:
                swaps = [step for step in factors(row) if isinstance(step, Swap)]
                found.append(tuple(self._swap(begin, step) for step in swaps))
            else:
                found.append(tuple(self._written(begin, j, reset) for j in range(level.size)))
        self.form = Form(begin, (1.0,) * len(self.resets), (*found, ()))
        # y of a head, over the root of `head_dim`, is divided by its size with `norm_eps`
        self.norm_eps = READ_EPS * self.scale**2 / level.size

    def _swap(self, begin: FloatArray, step: Swap) -> Factor:
        unit = np.eye(self.size)
        k = (unit[step.i] - unit[step.j]) / math.sqrt(2)
        return Factor(k, -begin.T @ k, 2.0)

    def _written(self, begin: FloatArray, row: int, reset: int) -> Factor:
        value = np.array([self.scale if row == reset else 0.0])
        return Factor(np.eye(self.size)[row], value - begin[row], 1.0 if row == reset else 1 - FADE)

    def shown(self, row: int, value: float) -> float:
        """What the head of a row gives where the row is `value` times its scale."""
        y = (self.scale * value - float(self.form.start[row, 0])) / math.sqrt(self.size)
        return y / math.sqrt(y * y + self.norm_eps)

    def scores(self, symbol: int) -> tuple[FloatArray, FloatArray]:
        """Weight `[labels + 1, rows]` and bias: 1 for the label that is shown, 0 for others.

        After a reset that is the label before; the last one is "the same" as it resets to.
        """
        m, reset = self.size, self.resets[symbol]
        weight, bias = np.zeros((m + 1, m)), np.zeros(m + 1)
        for row in range(m):
            if row == reset:
                continue
            zero, full = self.shown(row, 0.0), self.shown(row, 1.0 if reset < 0 else FADE)
            weight[row, row] = 1 / (full - zero)
            bias[row] = -zero / (full - zero)
        if reset >= 0:
            weight[m], bias[m] = -weight[:m].sum(axis=0), 1 - bias[:m].sum()
            bias[reset] = -1.0  # never
        else:
            bias[m] = -1.0
        return weight, bias

    def highest(self) -> float:
        """No score is larger, whatever the rows hold; so a gate can be closed."""
        ends = np.array([[self.shown(j, value) for j in range(self.size)] for value in (0.0, 1.0)])
        found = [1.0]
        for symbol in range(len(self.resets)):
            weight, bias = self.scores(symbol)
            most = np.maximum(weight * ends[0], weight * ends[1]).sum(axis=1) + bias
            found.append(float(most.max()))
        return max(found)


class _Layout:
    """Where things are in the residual stream."""

    def __init__(
        self, machine: Machine, stages: tuple[Stage, ...], levels: list[_Labels], classes: IntArray
    ) -> None:
        self.stages, self.levels = stages, levels
        self.letters, self.classes = machine.num_letters, classes
        self.num_classes = int(classes.max()) + 1
        place = machine.num_letters
        self.one = place
        place += 1
        self.labels, self.contexts = [], [0]  # the contexts of the first level are the letters
        for i, level in enumerate(levels):
            self.labels.append(place)
            place += level.size
            self.contexts.append(place)
            last = i + 1 == len(levels)
            place += self.num_classes if last else len(stages[i + 1].symbol)
        self.d_model = place
        self.units = [int((stage.after >= 0).sum()) for stage in stages]

    def config(self) -> TaggerConfig:
        mixers: list[Any] = []
        for level in self.levels:
            options = {
                "num_heads": level.size,
                "head_dim": level.size,
                "value_dim": 1,
                "conv_size": 0,
                "qk_silu": False,
                "norm_eps": level.norm_eps,
                "num_householders": level.form.householders,
            }
            mixers.append(("DeltaProduct", options))
        width = 2 * max(self.units)
        size = len(self.levels) * 3 * width * self.d_model
        if size > MAX_PARAMETERS:
            raise too_large("weights of a tagger", size, MAX_PARAMETERS, "none was built")
        backbone = BackboneConfig(
            mixers=tuple(mixers),
            d_model=self.d_model,
            mlp_dim=width,
            norm_eps=NORM_EPS,
            final_norm=False,
        )
        return TaggerConfig(
            vocab_size=self.letters + 1, num_classes=self.num_classes, backbone=backbone
        )


@torch.no_grad()
def _filled(layout: _Layout, max_length: int) -> Tagger:
    """The model with its weights set; what is not named is zero."""
    config = layout.config()
    with torch.device("meta"):
        tagger = Tagger(config)
    tagger = tagger.to_empty(device="cpu")
    named = dict(tagger.named_parameters())
    for name, parameter in named.items():
        block = name.endswith(("mixer_norm.weight", "mlp_norm.weight"))
        parameter.fill_(math.sqrt(NORM_EPS) if block else 1.0 * name.endswith("norm.weight"))
    embedding = named["embedding.weight"]
    embedding[: layout.letters, : layout.letters] = torch.eye(layout.letters)
    embedding[layout.letters, 0] = 1.0  # padding, which nobody is asked after, is letter 0
    embedding[:, layout.one] = 1.0
    for i, (stage, level) in enumerate(zip(layout.stages, layout.levels, strict=True)):
        front = f"backbone.blocks.{i}."
        micro = level.form.householders
        eta = FADE * DRIFT / (max_length * micro)
        given = tables(level.form, np.eye(level.size), eta)
        here = layout.contexts[i]
        contexts = slice(here, here + len(stage.symbol))
        for name in ("qkv_proj.weight", "beta_proj.weight"):
            weight = torch.from_numpy(given[name][stage.symbol].T)
            named[f"{front}mixer.{name}"][:, contexts] = weight
        rows = slice(layout.labels[i], layout.labels[i] + level.size)
        named[f"{front}mixer.out_proj.weight"][rows] = torch.eye(level.size)
        up, down = _steps(layout, i, max_length)
        named[f"{front}mlp.up_proj.weight"][:] = torch.from_numpy(up)
        named[f"{front}mlp.down_proj.weight"][:] = torch.from_numpy(down)
    answers = slice(layout.contexts[-1], layout.contexts[-1] + layout.num_classes)
    named["head.weight"][:, answers] = MARGIN * torch.eye(layout.num_classes)
    return tagger


def _steps(layout: _Layout, i: int, max_length: int) -> tuple[FloatArray, FloatArray]:
    """The MLP of block i: up_proj `[2 mlp_dim, d_model]` (gates first) and down_proj."""
    stage, level = layout.stages[i], layout.levels[i]
    width, one = 2 * max(layout.units), layout.one
    steep = 8 / 3 * math.log(16 * max_length * max(layout.units) / DRIFT)
    beyond = level.highest()
    gate, up = np.zeros((width, layout.d_model)), np.zeros((width, layout.d_model))
    down = np.zeros((layout.d_model, width))
    labels = slice(layout.labels[i], layout.labels[i] + level.size)
    last = i + 1 == len(layout.levels)
    for unit, (context, label) in enumerate(np.argwhere(stage.after >= 0).tolist()):
        weight, bias = level.scores(int(stage.symbol[context]))
        after = int(stage.after[context, label])
        target = layout.contexts[i + 1] + (int(layout.classes[after]) if last else after)
        for row, shift in ((2 * unit, 1 / 8), (2 * unit + 1, -1 / 8)):
            gate[row, labels] = steep * weight[label]
            gate[row, layout.contexts[i] + context] = steep * beyond
            gate[row, one] = steep * (bias[label] - 0.5 - beyond + shift)
            up[row, layout.contexts[i] + context] = 1.0
            down[target, row] = math.copysign(4 / steep, shift)
    return np.concatenate([gate, up]), down


@torch.no_grad()
def _try(tagger: Tagger, machine: Machine, classes: IntArray, max_length: int) -> None:
    """Refuses what is wrong on words it should be right on."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, machine.num_letters, (WORDS, min(LENGTH, max_length)))
    says = tagger(torch.from_numpy(words))[0].argmax(-1).numpy()
    wrong = (says != classes[machine.run(words)]).any(axis=0)
    if wrong.any():
        raise ValueError(
            f"it is wrong after {int(wrong.argmax()) + 1} letters of a word it was tried on"
        )
