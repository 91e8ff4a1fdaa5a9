"""audit.json, beside a run's records: what its transitions do, and how far it carries.

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

The classes below have the same names. A file that does not fit them is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from statetrack.analysis.audit import Finding
from statetrack.analysis.spectra import Dot
from statetrack.config import Config
from statetrack.runs import Run, StoredRun
from statetrack.runs.files import write_atomically
from statetrack.runs.folder import AUDIT

__all__ = [
    "ALMOST_ALL",
    "MAX_HEADS",
    "NEAR_MINUS_ONE",
    "Accuracy",
    "Extent",
    "Horizon",
    "LayerSpectrum",
    "LowHead",
    "Lowest",
    "RunAudit",
    "read_audit",
    "write_audit",
]

LOW, NEAR_MINUS_ONE = -0.9, -0.99
"""The keys of `heads_below`."""

ALMOST_ALL, ALL = 0.99, 1.0
"""The keys of `exact_to`."""

MAX_HEADS = 8
MAX_REASON = 300


class Lowest(NamedTuple):
    """The lowest real part of any eigenvalue, and the head that has it."""

    lowest: float
    head: int


class Extent(NamedTuple):
    """The range of a head's lowest eigenvalue over the times a token was read."""

    least: float
    greatest: float


class Accuracy(NamedTuple):
    """The share of sequences of one length that are answered rightly."""

    length: int
    share: float


@dataclass(frozen=True, kw_only=True)
class LowHead(Config):
    """A head with an eigenvalue below -0.9, token by token."""

    head: int
    by_token: Mapping[str, Extent]


@dataclass(frozen=True, kw_only=True)
class LayerSpectrum(Config):
    """The eigenvalues of one layer's A(x_t) over all tokens looked at.

    Attributes:
        name: where the layer sits in the model.
        kind: its class.
        heads, keys: how many heads it has, and how many eigenvalues each of them.
        lowest, highest: real parts.
        largest_modulus: |λ|.
        not_real: the share of eigenvalues that are not real.
        lowest_by_head: real parts.
        heads_below: for -0.9 and -0.99, the heads that have a lower real part.
        lowest_by_token: by the token's name.
        low_heads: of the heads below -0.9 the `MAX_HEADS` that reach lowest.
    """

    name: str
    kind: str
    heads: int
    keys: int
    lowest: float
    highest: float
    largest_modulus: float
    not_real: float
    lowest_by_head: tuple[float, ...]
    heads_below: Mapping[float, tuple[int, ...]]
    lowest_by_token: Mapping[str, Lowest]
    low_heads: tuple[LowHead, ...]

    def _check(self) -> None:
        _check_keys("heads_below", self.heads_below, (LOW, NEAR_MINUS_ONE))


@dataclass(frozen=True, kw_only=True)
class Horizon(Config):
    """How far what the run learnt carries.

    Attributes:
        task: whose sequences it was asked.
        sequences: how many of each length.
        precision, device: where and how they were computed.
        accuracy: one for each length, shortest first.
        exact_to: for 0.99 and 1, the greatest length up to which that share is reached at every
            length; `None` if it is reached at none.
        note: why nothing was measured, or `None`.
    """

    task: str
    sequences: int
    precision: str
    device: str
    accuracy: tuple[Accuracy, ...]
    exact_to: Mapping[float, int | None]
    note: str | None

    def _check(self) -> None:
        _check_keys("exact_to", self.exact_to, (ALMOST_ALL, ALL) if self.note is None else ())


@dataclass(frozen=True, kw_only=True)
class RunAudit(Config):
    """What `audit_run` found; `str()` of it is a few lines of text.

    Attributes:
        tokens: how many were looked at.
        layers: first layer first.
        spectrum: the eigenvalues of all layers, gathered for a picture.
        theorem1, theorem2: the conditions in their corrected form; see `audit`.
        note: why there are no eigenvalues (and no findings), or `None`.
        horizon: how far the run carries.
    """

    tokens: int
    layers: tuple[LayerSpectrum, ...]
    spectrum: tuple[Dot, ...]
    theorem1: Finding | None
    theorem2: Finding | None
    note: str | None
    horizon: Horizon

    @property
    def lowest(self) -> float | None:
        """The lowest real part of any eigenvalue; `None` without layers."""
        return min((layer.lowest for layer in self.layers), default=None)

    def text(self) -> str:
        """The audit in lines."""
        lines = [self.note] if self.note else []
        if self.layers:
            lines.append(
                f"on a sample of {self.tokens} tokens; what is not seen on them is not ruled out"
            )
        for layer in self.layers:
            lines.append(
                f"{layer.name} ({layer.kind}): real parts {layer.lowest:.4f} to "
                f"{layer.highest:.4f}, largest modulus {layer.largest_modulus:.4f}"
            )
            for low, heads in layer.heads_below.items():
                shown = ", ".join(map(str, heads[:MAX_HEADS]))
                shown += ", ..." * (len(heads) > MAX_HEADS)
                of = f"{len(heads)} of {layer.heads}"
                lines.append(f"  heads below {low:g}: {of}" + (f" ({shown})" if heads else ""))
        for number, finding in enumerate((self.theorem1, self.theorem2), 1):
            if finding is not None:
                lines.append(f"theorem {number}: {finding}")
        return "\n".join([*lines, *_horizon_lines(self.horizon)])

    __str__ = text


def _horizon_lines(horizon: Horizon) -> list[str]:
    lines = [horizon.note] if horizon.note else []
    for length, share in horizon.accuracy:
        lines.append(f"length {length:>6}: {share:.4f} right")
    for least, reached in horizon.exact_to.items():
        how_many = "all" if least == 1 else f"at least {least:.0%}"
        where = "at none of these lengths" if reached is None else f"up to length {reached}"
        lines.append(f"{how_many} of {horizon.sequences} right {where}")
    return lines


def _check_keys(name: str, found: Mapping[float, object], wanted: tuple[float, ...]) -> None:
    if set(found) != set(wanted):
        shown = " and ".join(f"{key:g}" for key in wanted) or "none"
        raise ValueError(f"{name} has the keys {list(found)}, but must have {shown}")


def write_audit(run: Run, found: RunAudit) -> Path:
    """Writes audit.json into the run's folder."""
    path = run.folder / AUDIT
    text = json.dumps(found.to_dict(), allow_nan=False) + "\n"
    write_atomically(path, text.encode())
    return path


def read_audit(run: StoredRun) -> RunAudit | None:
    """What `audit_run` found in the run; `None` if it never looked at it."""
    try:
        found = run.audit
        if found is None:
            return None
        if not isinstance(found, dict):
            raise ValueError(f"it must be an object, not {found!r}")
        return RunAudit.from_dict(found)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{run.place} is broken: {AUDIT} cannot be read ({_short(str(error))}); "
            "`statetrack audit` writes it anew"
        ) from error


def _short(reason: str) -> str:
    """Both ends of a long text: a list of numbers may stand in the middle.

    >>> len(_short("x" * 10_000))
    303
    """
    half = MAX_REASON // 2
    return reason if len(reason) <= MAX_REASON else f"{reason[:half]}...{reason[-half:]}"
