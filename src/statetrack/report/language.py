"""Language models: what a study measured, model by model, and pairs that differ in the range alone.

Numbers come from results/language: runs.jsonl as for every experiment, and what each model was
asked (loss, heads, probes), one file a model, named by its fingerprint.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statetrack.experiments.summary import LANGUAGE
from statetrack.lm.evaluation import CONFIDENCE
from statetrack.runs import StoredRun
from statetrack.runs.labels import eigen_range, model_label
from statetrack.runs.selection import best_rate, cell

__all__ = ["Asked", "Difference", "Family", "differences", "families", "read_study"]

KIND = "lm"
QUESTIONS = ("loss", "heads", "probes")
USUAL, EXTENDED = (0.0, 1.0), (-1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Asked:
    """One trained model.

    Attributes:
        run: its records.
        answers: question -> what it was asked, as the study wrote it.
        files: question -> the file that says so.
    """

    run: StoredRun
    answers: Mapping[str, Any]
    files: Mapping[str, Path]

    @property
    def seed(self) -> int:
        seed: int = self.run.config.seed
        return seed

    @property
    def trained(self) -> int:
        """The training length."""
        length: int = self.run.config.length
        return length

    @property
    def domains(self) -> list[str]:
        return list(self.answers["loss"]["domains"]) if "loss" in self.answers else []

    def windows(self, domain: str, end: int) -> list[float]:
        """The loss of every window at the positions up to the training length, or beyond it
        between half of `end` and `end`.
        """
        which = "short" if end == self.trained else "long"
        found = self.answers["loss"]["domains"].get(domain, {}).get(which, {})
        values: list[float] = found.get("windows", {}).get(str(end), [])
        return values

    def loss(self, domain: str, end: int) -> float | None:
        """The mean over the windows."""
        values = self.windows(domain, end)
        return sum(values) / len(values) if values else None

    def ends(self, domain: str) -> list[int]:
        """The training length, and its doublings up to the longest windows."""
        long = self.answers["loss"]["domains"].get(domain, {}).get("long", {})
        ends = [int(end) for end in long.get("windows", {})]
        return sorted({self.trained, *ends})


@dataclass(frozen=True, eq=False)
class Family:
    """Models that differ in the seed alone, at the rate with the best median.

    Attributes:
        layer: the model without its range.
        between: its range, if it has one.
        members: by seed.
    """

    layer: str
    between: tuple[float, float] | None
    members: tuple[Asked, ...]

    @property
    def label(self) -> str:
        return model_label(self.members[0].run.config)

    @property
    def config(self) -> Any:
        return self.members[0].run.config

    def losses(self, domain: str, end: int) -> list[float]:
        """Of the seeds that have one."""
        found = [one.loss(domain, end) for one in self.members if "loss" in one.answers]
        return [value for value in found if value is not None]

    def best(self, domain: str, end: int) -> Asked | None:
        """The seed with the least loss."""
        known = [one for one in self.members if "loss" in one.answers and one.windows(domain, end)]
        return min(known, key=lambda one: one.loss(domain, end) or math.inf, default=None)


@dataclass(frozen=True)
class Difference:
    """The loss of [-1, 1] less that of [0, 1] on the same windows, from the same seeds.

    Attributes:
        mean, low, high: over the windows, each the mean of its seeds, with 95 % confidence. It
            speaks of other text, not of other seeds.
        seeds: the mean of every seed by itself.
        windows: how many there are.
    """

    layer: str
    domain: str
    end: int
    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]
    windows: int

    @property
    def verdict(self) -> str:
        """What interval and seeds agree on."""
        if self.high < 0 and all(one < 0 for one in self.seeds):
            return "lower"
        if self.low > 0 and all(one > 0 for one in self.seeds):
            return "higher"
        return "no difference beyond chance"


def read_study(root: Path, runs: Iterable[StoredRun]) -> list[Asked]:
    """The finished language models among `runs`, with what `root`/language says of them."""
    found = []
    for run in runs:
        if run.config.KIND != KIND or not run.finished:
            continue
        files = {
            name: path
            for name in QUESTIONS
            if (path := root / LANGUAGE / name / f"{run.config.fingerprint}.json").exists()
        }
        answers = {name: _read(path) for name, path in files.items()}
        found.append(Asked(run, answers, files))
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def families(asked: Sequence[Asked]) -> list[Family]:
    """By layer, [0, 1] before [-1, 1]."""
    by_cell: dict[str, list[Asked]] = {}
    for one in asked:
        by_cell.setdefault(cell(one.run.config), []).append(one)
    found = []
    for members in by_cell.values():
        _, chosen = best_rate([one.run for one in members], "loss")
        kept = [one for one in members if one.run in chosen]
        if kept:
            config = kept[0].run.config
            layer = model_label(config, with_range=False)
            ordered = tuple(sorted(kept, key=lambda one: one.seed))
            found.append(Family(layer, eigen_range(config), ordered))
    return sorted(found, key=lambda one: (one.layer, -(one.between or USUAL)[0], _size(one)))


def _size(family: Family) -> tuple[int, int]:
    return family.config.model.backbone.d_model, family.config.steps


def differences(found: Sequence[Family]) -> list[Difference]:
    """Every pair of ranges of one layer, trained alike, by domain and position."""
    told = []
    for family in found:
        if family.between != EXTENDED:
            continue
        usual = next((one for one in found if _is_pair(one, family)), None)
        if usual is None:
            continue
        pairs = [
            (before, after)
            for before in usual.members
            for after in family.members
            if before.seed == after.seed and {"loss"} <= before.answers.keys() & after.answers
        ]
        if not pairs:
            continue
        for domain in pairs[0][1].domains:
            for end in pairs[0][1].ends(domain):
                one = _difference(family.layer, domain, end, pairs)
                told += [one] if one is not None else []
    return told


def _is_pair(usual: Family, extended: Family) -> bool:
    """Whether two families differ in the range alone."""
    mine, other = extended.config, usual.config
    alike = ("length", "batch", "steps", "data_sha256")
    return (
        usual.between == USUAL
        and usual.layer == extended.layer
        and mine.model.backbone.d_model == other.model.backbone.d_model
        and all(getattr(mine, name) == getattr(other, name) for name in alike)
    )


def _difference(
    layer: str, domain: str, end: int, pairs: Sequence[tuple[Asked, Asked]]
) -> Difference | None:
    by_seed = []
    for before, after in pairs:
        first, second = before.windows(domain, end), after.windows(domain, end)
        if not first or len(first) != len(second):
            return None
        by_seed.append([b - a for a, b in zip(first, second, strict=True)])
    each = [sum(values) / len(values) for values in zip(*by_seed, strict=True)]
    mean = sum(each) / len(each)
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    return Difference(
        layer,
        domain,
        end,
        mean,
        mean - CONFIDENCE * error,
        mean + CONFIDENCE * error,
        tuple(sum(values) / len(values) for values in by_seed),
        len(each),
    )
