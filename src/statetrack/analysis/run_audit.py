"""Audits of trained runs: which of them to audit, on which words, and what is found."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from statetrack import tasks
from statetrack._typing import Bool, Inexact, Int
from statetrack.analysis.audit import audit
from statetrack.analysis.audit_file import (
    ALL,
    ALMOST_ALL,
    LOW,
    MAX_HEADS,
    NEAR_MINUS_ONE,
    Accuracy,
    Extent,
    Horizon,
    LayerSpectrum,
    Lowest,
    LowHead,
    RunAudit,
    write_audit,
)
from statetrack.analysis.horizons import LENGTHS, SEQUENCES, exact_to, horizon, why_no_horizon
from statetrack.analysis.spectra import dots, eigenvalues_on
from statetrack.models import Tagger
from statetrack.runs.folder import Run, run_folders
from statetrack.runs.selection import best_run, cell
from statetrack.runs.stored import StoredRun

__all__ = ["audit_run", "layer_spectrum", "look_at", "to_audit", "words_of"]

WORDS = 8
MAX_TOKENS = 64
DIGITS = 5

Word = Int[Tensor, "_"]


def to_audit(path: Path | str) -> list[Run]:
    """The run in `path`; or of the runs below it the best of every cell, if it has its weights.

    Where no run of a cell has a number to be the best by, it is the first.
    """
    runs = run_folders(path)
    if [run.folder for run in runs] == [Path(path)]:
        return runs
    cells: dict[str, list[Run]] = {}
    for run in runs:
        cells.setdefault(cell(run.config), []).append(run)
    found = [
        best_run(members, members[0].config.metric) or members[0] for members in cells.values()
    ]
    return [run for run in found if run.has_weights]


def audit_run(
    run: Run,
    *,
    lengths: Iterable[int] = LENGTHS,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
) -> RunAudit:
    """Looks at a trained run's eigenvalues and horizon, and writes audit.json into its folder."""
    found = look_at(run, lengths=lengths, sequences=sequences, device=device)
    write_audit(run, found)
    return found


def look_at(
    run: StoredRun,
    *,
    lengths: Iterable[int] = LENGTHS,
    sequences: int = SEQUENCES,
    device: torch.device | str = "cpu",
) -> RunAudit:
    """The same, and nothing is written.

    The eigenvalues are those of A(x) in fp32 on the CPU; the horizon is measured on `device` in the
    precision the run was trained in.
    """
    model = run.model().eval()
    words = words_of(run)
    read, names = torch.cat(words), run.config.learns.token_names
    values, note = _eigenvalues(model, words)
    checked = audit(model, words_of(run, 1, 256)[0]) if note is None else None
    return RunAudit(
        tokens=len(read),
        layers=tuple(
            layer_spectrum(name, type(model.get_submodule(name)).__name__, found, read, names)
            for name, found in values.items()
        ),
        spectrum=dots([found.flatten() for found in values.values()]),
        theorem1=None if checked is None else checked.theorem1,
        theorem2=None if checked is None else checked.theorem2,
        note=note,
        horizon=_horizon(run, model, lengths, sequences, torch.device(device)),
    )


def words_of(run: StoredRun, count: int = WORDS, longest: int = MAX_TOKENS) -> list[Word]:
    """The first words of the run's validation set, cut to `longest` tokens, without padding."""
    judged = run.config.evaluation
    assert judged.lengths is not None
    batch = tasks.evaluation_set(
        run.config.judge, count, judged.seed, lengths=tasks.LengthRange(*judged.lengths)
    )
    ends = batch.num_tokens.clamp(max=longest).tolist()
    return [tokens[:end] for tokens, end in zip(batch.tokens, ends, strict=True)]


def _eigenvalues(
    model: Tagger, words: list[Word]
) -> tuple[dict[str, Inexact[Tensor, "tokens _ _"]], str | None]:
    """Those of each layer; or none, and why."""
    try:
        found = eigenvalues_on(model, words)
    except ValueError as error:  # a layer that is not linear in its state
        return {}, str(error)
    if not all(values.isfinite().all() for values in found.values()):
        return {}, "some eigenvalues are not finite"
    return found, None


def layer_spectrum(
    name: str,
    kind: str,
    values: Inexact[Tensor, "tokens heads keys"],
    read: Word,
    names: tuple[str, ...],
) -> LayerSpectrum:
    """A layer's eigenvalues in numbers; `read` are the tokens, `names` what tokens are called."""
    real = values.real
    lowest = real.amin(dim=2)  # [tokens, heads]
    by_head = lowest.amin(dim=0)
    below = {
        low: tuple((by_head < low).nonzero().flatten().tolist()) for low in (LOW, NEAR_MINUS_ONE)
    }
    low_heads = sorted(below[LOW], key=lambda head: float(by_head[head]))[:MAX_HEADS]
    times = {names[token]: read == token for token in sorted(set(read.tolist()))}
    return LayerSpectrum(
        name=name,
        kind=kind,
        heads=values.shape[1],
        keys=values.shape[2],
        lowest=_round(real.min()),
        highest=_round(real.max()),
        largest_modulus=_round(values.abs().max()),
        not_real=_round((values.imag.abs() > 1e-3).double().mean()),
        lowest_by_head=tuple(_round(value) for value in by_head),
        heads_below=below,
        lowest_by_token={
            token: Lowest(_round(lowest[here].min()), int(lowest[here].amin(dim=0).argmin()))
            for token, here in times.items()
        },
        low_heads=tuple(_low_head(head, lowest[:, head], times) for head in sorted(low_heads)),
    )


def _low_head(
    head: int,
    lowest: Inexact[Tensor, "tokens"],
    times: Mapping[str, Bool[Tensor, "tokens"]],
) -> LowHead:
    by_token = {
        token: Extent(_round(lowest[here].min()), _round(lowest[here].max()))
        for token, here in times.items()
    }
    return LowHead(head=head, by_token=by_token)


def _round(value: Tensor) -> float:
    return round(float(value), DIGITS) + 0.0


def _horizon(
    run: StoredRun, model: Tagger, lengths: Iterable[int], sequences: int, device: torch.device
) -> Horizon:
    task = run.config.judge
    precision = run.config.precision
    note = why_no_horizon(model)
    accuracy: dict[int, float] = {}
    if note is None:
        accuracy = horizon(
            model, task, lengths, sequences=sequences, device=device, precision=precision
        )
    shares = (ALMOST_ALL, ALL) if note is None else ()
    return Horizon(
        task=task.name,
        sequences=sequences,
        precision=precision,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        accuracy=tuple(Accuracy(length, share) for length, share in accuracy.items()),
        exact_to={share: exact_to(accuracy, share) for share in shares},
        note=note,
    )
