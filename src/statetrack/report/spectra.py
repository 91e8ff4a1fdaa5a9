"""Eigenvalues of the trained layers, on words of the evaluation set."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from statetrack import tasks
from statetrack._typing import Int
from statetrack.layers import Layer
from statetrack.models import Tagger
from statetrack.report.tables import Group
from statetrack.training import Run

__all__ = ["Dot", "Spectrum", "eigenvalues", "spectrum"]

WORDS = 8
MAX_TOKENS = 64
MAX_DOTS = 300


@dataclass(frozen=True)
class Dot:
    """Eigenvalues of one layer that are (nearly) alike: their place and their share of all."""

    layer: int
    real: float
    imag: float
    share: float


@dataclass(frozen=True)
class Spectrum:
    """What A(x_t) of a trained model looks like; without dots, `reason` says why.

    Attributes:
        label: the model.
        seed: of the run it is taken from, the best of its group.
        dots: at most `MAX_DOTS`, by layer and place.
        lowest: the least real part.
    """

    label: str
    seed: int
    dots: tuple[Dot, ...] = ()
    lowest: float | None = None
    reason: str | None = None


def spectrum(group: Group) -> Spectrum | None:
    """The spectrum of the group's best run; `None` if no run of it has finished."""
    if not group.chosen:
        return None
    best = max(group.chosen, key=lambda run: run.last(group.metric) or float("-inf"))
    seed = best.config.seed
    try:
        model = best.model()
    except Exception as error:  # whatever is wrong with the weights, the rest of the page stands
        reason = f"{best.folder.name}/model.safetensors cannot be read: {_first_line(error)}"
        return Spectrum(group.label, seed, reason=reason)
    try:
        layers = eigenvalues(model, _words(best))
    except ValueError as error:  # a layer that is not linear in its state
        return Spectrum(group.label, seed, reason=_first_line(error))
    everything = torch.cat(layers)
    if not everything.isfinite().all():
        return Spectrum(group.label, seed, reason="some eigenvalues are not finite")
    return Spectrum(group.label, seed, _dots(layers), float(everything.real.min()))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _words(run: Run) -> list[Int[Tensor, "_"]]:
    """The first words of the run's validation set, cut to `MAX_TOKENS`, without padding."""
    judged = run.config.evaluation
    assert judged.task is not None and judged.lengths is not None
    batch = tasks.evaluation_set(
        judged.task, WORDS, judged.seed, lengths=tasks.LengthRange(*judged.lengths)
    )
    ends = batch.num_tokens.clamp(max=MAX_TOKENS).tolist()
    return [tokens[:end] for tokens, end in zip(batch.tokens, ends, strict=True)]


@torch.no_grad()
def eigenvalues(model: Tagger, words: list[Int[Tensor, "_"]]) -> list[Tensor]:
    """For every layer the eigenvalues of A(x_t) over all tokens of `words`, complex, flat."""
    found: list[list[Tensor]] = [[] for _ in model.backbone.blocks]
    inputs: list[tuple[Layer, Tensor]] = []

    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(module, Layer)
        inputs.append((module, arguments[0]))

    mixers = [module for module in model.modules() if isinstance(module, Layer)]
    hooks = [mixer.register_forward_pre_hook(keep) for mixer in mixers]
    try:
        for word in words:
            inputs.clear()
            model(word[None])
            for values, (mixer, x) in zip(found, inputs, strict=True):
                flat = mixer.transitions(x).eigenvalues().flatten()
                values.append(flat.to(torch.complex128))
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(values) for values in found]


def _dots(layers: list[Tensor]) -> tuple[Dot, ...]:
    """Eigenvalues gathered on a grid, the finest of a few that leaves at most `MAX_DOTS`.

    If even the coarsest leaves more (a great many layers), the rarest are left out.
    """
    total = sum(len(values) for values in layers)
    dots: list[Dot] = []
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        dots = [dot for index, values in enumerate(layers, 1) for dot in _grid(index, values, step)]
        if len(dots) <= MAX_DOTS:
            break
    kept = sorted(dots, key=lambda dot: -dot.share)[:MAX_DOTS]
    ordered = sorted(kept, key=lambda dot: (dot.layer, dot.real, dot.imag))
    return tuple(replace(dot, share=dot.share / total) for dot in ordered)


def _grid(layer: int, values: Tensor, step: float) -> list[Dot]:
    """A dot for every place of the grid that has values; its share is their number."""
    places, counts = torch.unique(
        torch.view_as_real(values).div(step).round(), dim=0, return_counts=True
    )
    return [
        Dot(layer, round(real * step, 6) + 0.0, round(imag * step, 6) + 0.0, float(count))
        for (real, imag), count in zip(places.tolist(), counts.tolist(), strict=True)
    ]
