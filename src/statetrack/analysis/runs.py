"""What a trained run's transitions do, and how far it carries: audit.json beside its records.

    {"tokens": 512,                        looked at: words of the validation set
     "layers": [{"name", "kind", "heads", "keys",
                 "lowest", "highest",      real parts of the eigenvalues of A(x_t)
                 "largest_modulus", "not_real",
                 "lowest_by_head": [...],
                 "heads_below": {"-0.9": [heads], "-0.99": [heads]},
                 "lowest_by_token": {token: [lowest, head]},
                 "low_heads": [{"head", "by_token": {token: [least, greatest]}}]}],
     "spectrum": [[layer, real, imag, share], ...],
     "theorem1": {"weak", "strong", "where"}, "theorem2": ...,
     "note": why there are no layers, or null,
     "horizon": {"task", "sequences", "precision", "device",
                 "accuracy": [[length, share]], "exact_to": {"0.99": length, "1": length},
                 "note": why it was not measured, or null}}

`low_heads` are the `MAX_HEADS` heads with the lowest eigenvalues among those below -0.9; for each
token the least and the greatest of the head's lowest eigenvalue over the times it was read.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from statetrack import tasks
from statetrack._typing import Inexact, Int
from statetrack.analysis.audit import Finding, audit
from statetrack.analysis.horizons import LENGTHS, SEQUENCES, exact_to, horizon, why_none
from statetrack.layers import Layer
from statetrack.models import Tagger
from statetrack.runs.files import write_atomically
from statetrack.runs.folder import MODEL, Run, find_runs
from statetrack.runs.selection import best_run, cell

__all__ = [
    "AUDIT",
    "audit_run",
    "describe",
    "eigenvalues",
    "look_at",
    "read_audit",
    "to_audit",
    "words_of",
]

AUDIT = "audit.json"
WORDS = 8
MAX_TOKENS = 64
MAX_DOTS = 300
MAX_HEADS = 8
LOW = (-0.9, -0.99)
EXACT = (0.99, 1.0)
DIGITS = 5

Word = Int[Tensor, "_"]


def to_audit(path: Path | str) -> list[Run]:
    """The run in `path`; or of the runs below it the best of every cell, if it has its weights."""
    runs = find_runs(path)
    if [run.folder for run in runs] == [Path(path)]:
        return runs
    cells: dict[str, list[Run]] = {}
    for run in runs:
        cells.setdefault(cell(run.config), []).append(run)
    found = [best_run(members, members[0].config.metric) for members in cells.values()]
    return [run for run in found if run is not None and (run.folder / MODEL).exists()]


def read_audit(run: Run) -> dict[str, Any] | None:
    """What `audit_run` left in the run's folder; `None` if it never looked at it."""
    path = run.folder / AUDIT
    return json.loads(path.read_bytes()) if path.exists() else None


def audit_run(
    run: Run,
    *,
    lengths: Iterable[int] = LENGTHS,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Looks at a trained run's eigenvalues and horizon, and writes audit.json into its folder.

    The eigenvalues are those of A(x) in fp32 on the CPU; the horizon is measured on `device` in the
    precision the run was trained in.
    """
    model = run.model()
    found = look_at(run, model)
    found["horizon"] = _horizon(run, model, lengths, sequences, torch.device(device))
    text = json.dumps(found, allow_nan=False) + "\n"
    write_atomically(run.folder / AUDIT, text.encode())
    return found


def words_of(run: Run, count: int = WORDS, longest: int = MAX_TOKENS) -> list[Word]:
    """The first words of the run's validation set, cut to `longest` tokens, without padding."""
    judged = run.config.evaluation
    assert judged.task is not None and judged.lengths is not None
    batch = tasks.evaluation_set(
        judged.task, count, judged.seed, lengths=tasks.LengthRange(*judged.lengths)
    )
    ends = batch.num_tokens.clamp(max=longest).tolist()
    return [tokens[:end] for tokens, end in zip(batch.tokens, ends, strict=True)]


@torch.no_grad()
def eigenvalues(model: Tagger, words: list[Word]) -> list[Inexact[Tensor, "tokens heads keys"]]:
    """For every layer the eigenvalues of A(x_t) over all tokens of `words`, one after the other."""
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
                values.append(mixer.transitions(x).eigenvalues()[0].to(torch.complex128))
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(values) for values in found]


def look_at(run: Run, model: Tagger | None = None) -> dict[str, Any]:
    """The part of the audit that is about A(x)."""
    model = run.model() if model is None else model
    words = words_of(run)
    empty = {"tokens": sum(map(len, words)), "layers": [], "spectrum": []}
    empty |= {"theorem1": None, "theorem2": None}
    try:
        layers = eigenvalues(model, words)
    except ValueError as error:  # a layer that is not linear in its state
        return empty | {"note": str(error)}
    if not all(values.isfinite().all() for values in layers):
        return empty | {"note": "some eigenvalues are not finite"}
    checked = audit(model, words_of(run, 1, 256)[0])
    read = torch.cat(words)
    names = run.config.learns.token_names
    mixers = [(n, m) for n, m in model.named_modules() if isinstance(m, Layer)]
    return empty | {
        "layers": [
            {"name": name, "kind": type(mixer).__name__} | _layer(values, read, names)
            for (name, mixer), values in zip(mixers, layers, strict=True)
        ],
        "spectrum": [list(dot) for dot in dots([values.flatten() for values in layers])],
        "theorem1": _finding(checked.theorem1),
        "theorem2": _finding(checked.theorem2),
        "note": None,
    }


def _layer(
    values: Inexact[Tensor, "tokens heads keys"], read: Word, names: tuple[str, ...]
) -> dict[str, Any]:
    real = values.real
    lowest = real.amin(dim=2)  # [tokens, heads]
    by_head = lowest.amin(dim=0)
    below = {f"{low:g}": (by_head < low).nonzero().flatten().tolist() for low in LOW}
    low_heads = sorted(below[f"{LOW[0]:g}"], key=lambda head: float(by_head[head]))[:MAX_HEADS]
    times = {names[token]: read == token for token in sorted(set(read.tolist()))}
    return {
        "heads": values.shape[1],
        "keys": values.shape[2],
        "lowest": _round(real.min()),
        "highest": _round(real.max()),
        "largest_modulus": _round(values.abs().max()),
        "not_real": _round((values.imag.abs() > 1e-3).double().mean()),
        "lowest_by_head": [_round(value) for value in by_head],
        "heads_below": below,
        "lowest_by_token": {
            token: [_round(lowest[here].min()), int(lowest[here].amin(dim=0).argmin())]
            for token, here in times.items()
        },
        "low_heads": [
            {
                "head": head,
                "by_token": {
                    token: [_round(lowest[here, head].min()), _round(lowest[here, head].max())]
                    for token, here in times.items()
                },
            }
            for head in sorted(low_heads)
        ],
    }


def _finding(found: Finding) -> dict[str, Any]:
    return {"weak": found.weak, "strong": found.strong, "where": found.where}


def _round(value: Tensor) -> float:
    return round(float(value), DIGITS) + 0.0


def _horizon(
    run: Run, model: Tagger, lengths: Iterable[int], sequences: int, device: torch.device
) -> dict[str, Any]:
    """The part of the audit that is about lengths."""
    task = run.config.evaluation.task
    precision = run.config.precision
    assert task is not None
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    settings = {"task": task, "sequences": sequences, "precision": precision, "device": place}
    reason = why_none(model)
    if reason is not None:
        return settings | {"accuracy": [], "exact_to": {}, "note": reason}
    accuracy = horizon(
        model, task, lengths, sequences=sequences, device=device, precision=precision
    )
    exact = {f"{least:g}": exact_to(accuracy, least) for least in EXACT}
    shares = [[length, share] for length, share in accuracy.items()]
    return settings | {"accuracy": shares, "exact_to": exact, "note": None}


def dots(layers: list[Inexact[Tensor, "_"]]) -> list[tuple[int, float, float, float]]:
    """(layer, real, imag, share): eigenvalues that are nearly alike, gathered on a grid.

    The grid is the finest of a few that leaves at most `MAX_DOTS`. If even the coarsest leaves more
    (a great many layers), the rarest are left out.
    """
    total = sum(len(values) for values in layers)
    found: list[tuple[int, float, float, float]] = []
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        found = [
            (layer, real, imag, round(count / total, 7))
            for layer, values in enumerate(layers, 1)
            for real, imag, count in _grid(values, step)
        ]
        if len(found) <= MAX_DOTS:
            break
    return sorted(sorted(found, key=lambda dot: -dot[3])[:MAX_DOTS])


def _grid(values: Inexact[Tensor, "_"], step: float) -> list[tuple[float, float, int]]:
    """Every place of the grid that has values, and how many."""
    places, counts = torch.unique(
        torch.view_as_real(values).div(step).round(), dim=0, return_counts=True
    )
    return [
        (round(real * step, 6) + 0.0, round(imag * step, 6) + 0.0, count)
        for (real, imag), count in zip(places.tolist(), counts.tolist(), strict=True)
    ]


def describe(found: dict[str, Any]) -> list[str]:
    """The audit in lines of text."""
    lines = [found["note"]] if found["note"] else []
    for layer in found["layers"]:
        lines.append(
            f"{layer['name']} ({layer['kind']}): real parts {layer['lowest']:.4f} to "
            f"{layer['highest']:.4f}, largest modulus {layer['largest_modulus']:.4f}"
        )
        for low, heads in layer["heads_below"].items():
            shown = ", ".join(map(str, heads[:MAX_HEADS])) + (", ..." * (len(heads) > MAX_HEADS))
            of = f"{len(heads)} of {layer['heads']}"
            lines.append(f"  heads below {low}: {of}" + (f" ({shown})" if heads else ""))
    for number in (1, 2):
        theorem = found[f"theorem{number}"]
        if theorem is not None:
            finding = Finding(theorem["weak"], theorem["strong"], theorem["where"])
            lines.append(f"theorem {number}: {finding}")
    measured = found["horizon"]
    if measured["note"]:
        lines.append(measured["note"])
    for length, share in measured["accuracy"]:
        lines.append(f"length {length:>6}: {share:.4f} right")
    for least, length in measured["exact_to"].items():
        share = "all" if float(least) == 1 else f"at least {float(least):.0%}"
        reached = "at none of these lengths" if length is None else f"up to length {length}"
        lines.append(f"{share} of {measured['sequences']} right {reached}")
    return lines
