"""Pass: a one-layer program -> an ordinary `Tagger`, with finite logits, that trains further.

Machines without such a program become taggers of several layers in `cascade_to_tagger`.

A `CompiledRNN` reads its labels with tables and an argmax, and its gates are saturated: nothing in
it has a gradient. Here every number is one that training could have found.

- **No BOS.** H' = H - H_start obeys the same recurrence, with v - H_startᵀk in place of v, and
  begins at zero. So the tokens are those of `tasks.from_machine`: the letters, then padding.
- **β is nearly 0 and 2.** 2σ(z) = 2(1 - η) with an η that is small enough for `max_length` letters,
  so σ has a gradient.
- **Scores are linear.** Queries read all rows that tell the answers apart. A layer norm with a
  large `norm_eps` keeps the size of what was read. The head is a least-squares fit on all states of
  the layer, which are finitely many, scaled to a margin of `MARGIN`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from statetrack.automata import Machine, Project, Swap
from statetrack.automata.limits import too_large
from statetrack.compiler.cascade_to_tagger import cascade_to_tagger
from statetrack.compiler.codes import ONE
from statetrack.compiler.driver import chosen
from statetrack.compiler.profile import Profile
from statetrack.compiler.program import DeltaLayer, FloatArray, IntArray, Program, Write
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

__all__ = ["to_tagger"]

LEAST_MARGIN = 0.02
"""A fit of the answers (0 and 1) whose margin is below is none."""
MAX_LAYER_STATES = 2**13


def to_tagger(machine: Machine, max_length: int) -> Tagger:
    """A tagger for `tasks.from_machine(machine)` that is right on words of up to `max_length`.

    It has one layer, DeltaNet or DeltaProduct, where a form with one layer is known, else one for
    each level of its cascade. Weights are float32: `CompiledRNN.to_tagger`.

    >>> from statetrack.automata import groups
    >>> tagger = to_tagger(groups.cyclic(3), 100)
    >>> scores, _ = tagger(torch.tensor([[1, 1, 2, 1]]))
    >>> scores.argmax(-1)
    tensor([[1, 2, 1, 2]])
    """
    if max_length < 1:
        raise ValueError(f"max_length={max_length} must be at least 1")
    classes = np.unique(machine.outputs, return_inverse=True)[1].reshape(-1)
    if not classes.any():
        raise ValueError("the machine says the same after every word: there is nothing to tag")
    refused = []
    for program in _programs(machine):
        try:
            return _tagger(_form(program), machine, classes, max_length)
        except ValueError as error:
            refused.append(f"with one layer: {error}")
    try:
        return cascade_to_tagger(machine, classes, max_length)
    except ValueError as error:
        refused.append(f"as a cascade: {error}")
    raise ValueError(
        f"no tagger is made of {machine!r}: {'; '.join(refused)}. Keep the compiled network as it "
        "is, which has no gradient, or train a tagger on tasks.from_machine(machine)"
    )


def _programs(machine: Machine) -> list[Program]:
    """Every known form with one layer of Householders, cheapest first; there may be none."""
    profile = Profile(machine)
    try:
        _, _, table = chosen(profile, "group" if profile.is_group else "one-layer", "latency")
    except ValueError:
        return []
    return [candidate.program for candidate in table if candidate.program is not None]


def _form(program: Program) -> Form:
    """The program's layer without its constant, in coordinates in which the start is zero."""
    (stage,) = program.stages
    layer = stage.layer
    assert stage.symbol.tolist() == list(range(program.machine.num_letters))
    assert isinstance(layer, DeltaLayer) and layer.rows[-1] == layer.columns[-1] == ONE
    rows, columns = len(layer.rows) - 1, len(layer.columns) - 1
    start = layer.initial_state()[:rows, :columns]

    def written(row: int, value: FloatArray) -> Factor:
        return Factor(np.eye(rows)[row], value - start[row], 1.0)

    gates, factors = [], []
    for symbol in layer.symbols:
        assert symbol.gate in (0.0, 1.0)
        found: list[Factor] = []
        if symbol.gate == 0:  # what is not written is zero, which is -start here
            kept = {step.row for step in symbol.steps if isinstance(step, Write)}
            assert all(isinstance(step, Write) for step in symbol.steps)
            emptied = [row for row in range(rows) if row not in kept and start[row].any()]
            found += [written(row, np.zeros(columns)) for row in emptied]
        for step in symbol.steps:
            if isinstance(step, Swap):
                k = (np.eye(rows)[step.i] - np.eye(rows)[step.j]) / math.sqrt(2)
                found.append(Factor(k, -start.T @ k, 2.0))
            elif isinstance(step, Project):
                found.append(written(step.i, np.zeros(columns)))
            else:
                assert isinstance(step, Write)
                if step.row < rows:
                    found.append(written(step.row, np.array(step.value[:columns])))
        gates.append(symbol.gate)
        factors.append(tuple(found))
    lowest = min((float(f.v.min()) for letter in factors for f in letter), default=0.0)
    scale = min(1.0, LOWEST / lowest) if lowest < 0 else 1.0
    scaled = tuple(tuple(Factor(f.k, scale * f.v, f.beta) for f in found) for found in factors)
    return Form(scale * start, tuple(gates), scaled)


def _closure(form: Form, machine: Machine) -> tuple[FloatArray, IntArray]:
    """Every state of the layer `[states, rows, columns]`, and the machine's state beside it.

    The start counts only if a word leads back to it: nobody is asked before the first letter.
    """
    start = np.zeros((form.rows, form.columns))
    seen: dict[tuple[int, bytes], int] = {}
    found: list[tuple[FloatArray, int]] = []
    queue = [(start, 0)]
    for h, state in queue:
        for letter in range(machine.num_letters):
            after, reached = form.step(h, letter), int(machine.delta[state, letter])
            key = reached, np.rint(after * 2**20).astype(np.int64).tobytes()
            if key in seen:
                continue
            seen[key] = len(found)
            found.append((after, reached))
            queue.append((after, reached))
            if len(found) > MAX_LAYER_STATES:
                raise too_large(
                    "states of a layer whose answers are fitted",
                    len(found),
                    MAX_LAYER_STATES,
                    "nothing was built",
                )
    return np.array([h for h, _ in found]), np.array([state for _, state in found])


def _queries(form: Form, states: FloatArray, answers: IntArray) -> FloatArray:
    """Unit vectors `[heads, rows]`.

    Where a layer holds one of its rows at a time, each query asks for the rows of an answer; else
    every row is read.
    """
    held = np.abs(states + form.start) > np.abs(form.start).max() / 2
    if form.columns > 1 or held.sum(axis=1).max() > 1:
        return np.eye(form.rows)
    rows = np.zeros((int(answers.max()) + 1, form.rows))
    for row, answer in zip(held[:, :, 0], answers.tolist(), strict=True):
        rows[answer, row] = 1.0
    if len(rows) == 2:  # one head tells two answers apart
        rows = rows[1:] - rows[:1]
    rows = rows[rows.any(axis=1)]
    found: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def _tagger(form: Form, machine: Machine, classes: IntArray, max_length: int) -> Tagger:
    states, reached = _closure(form, machine)
    answers = classes[reached]
    queries = _queries(form, states, answers)
    heads, micro = len(queries), form.householders
    vocab, features = machine.num_letters + 1, heads * form.columns
    d_model, num_classes = vocab + features, int(classes.max()) + 1
    channels = heads * ((1 + micro) * form.rows + micro * (form.columns + 1))
    if channels * d_model > MAX_PARAMETERS:
        raise too_large("weights of a tagger", channels * d_model, MAX_PARAMETERS, "none was built")
    y = np.einsum("src,hr->shc", states, queries) / math.sqrt(form.rows)
    norm_eps = float((y**2).mean(-1).max())
    normed = y / np.sqrt((y**2).mean(-1, keepdims=True) + norm_eps)
    weight, bias = _readout(normed.reshape(len(y), -1), answers, num_classes)
    options: dict[str, Any] = {
        "num_heads": heads,
        "head_dim": form.rows,
        "value_dim": form.columns,
        "conv_size": 0,
        "qk_silu": False,
        "norm_eps": norm_eps,
    }
    gated = min(form.gates) < 1
    mixer = "DeltaNet"
    if micro > 1 or gated:
        mixer, options = "DeltaProduct", options | {"num_householders": micro, "forget_gate": gated}
    backbone = BackboneConfig(
        mixers=((mixer, options),),  # type: ignore[arg-type]
        d_model=d_model,
        mlp="none",
        final_norm=False,
    )
    config = TaggerConfig(vocab_size=vocab, num_classes=num_classes, backbone=backbone)
    given = tables(form, queries, DRIFT / (max_length * form.householders))
    return _filled(config, given, weight, bias)


def _readout(
    features: FloatArray, answers: IntArray, num_classes: int
) -> tuple[FloatArray, FloatArray]:
    """Scores `weight @ y + bias` with the right one above all others by `MARGIN`."""
    inputs = np.column_stack([features, np.ones(len(features))])
    wanted = np.eye(num_classes)[answers]
    found: FloatArray = np.linalg.lstsq(inputs, wanted, rcond=None)[0].astype(np.float64)
    scores = inputs @ found
    right = scores[np.arange(len(scores)), answers]
    scores[np.arange(len(scores)), answers] = -np.inf
    margin = float((right - scores.max(axis=1)).min())
    if margin < LEAST_MARGIN:
        raise ValueError("its answers are no linear function of what the layer holds")
    found = found * (MARGIN / margin)
    return found[:-1].T, found[-1]


@torch.no_grad()
def _filled(
    config: TaggerConfig, given: dict[str, FloatArray], weight: FloatArray, bias: FloatArray
) -> Tagger:
    """The model with its weights set; what is not named is zero, and norms are one."""
    with torch.device("meta"):
        tagger = Tagger(config)
    tagger = tagger.to_empty(device="cpu")
    backbone, vocab = config.backbone, config.vocab_size
    letters, features = vocab - 1, weight.shape[1]
    length = math.sqrt(1 / (1 / backbone.d_model + backbone.norm_eps))  # of a token after its norm
    named = dict(tagger.named_parameters())
    for name, parameter in named.items():
        parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    named["embedding.weight"][:, :vocab] = torch.eye(vocab)
    block = "backbone.blocks.0.mixer."
    for name, table in given.items():
        if block + name in named:
            named[block + name][:, :letters] = torch.from_numpy(table.T / length)
    # padding, which nobody is asked after, does what letter 0 does
    for name in given:
        if block + name in named:
            named[block + name][:, letters] = named[block + name][:, 0]
    named[block + "out_proj.weight"][vocab:] = torch.eye(features)
    named["head.weight"][:, :vocab] = torch.from_numpy(bias)[:, None]
    named["head.weight"][:, vocab:] = torch.from_numpy(weight)
    return tagger
