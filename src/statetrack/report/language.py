"""Language models: what a study measured, model by model, and pairs that differ in one thing alone.

Numbers come from results/language: runs.jsonl as for every experiment, and what each model was
asked (loss, clamped, heads, probes), one file a model, named by its fingerprint.
"""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from statetrack.experiments.language import ANSWERS, EXTENDED, USUAL
from statetrack.experiments.summary import LANGUAGE
from statetrack.lm.evaluation import CONFIDENCE
from statetrack.lm.recipes import RECIPES
from statetrack.models.presets import WIDTHS
from statetrack.runs import StoredRun
from statetrack.runs.labels import eigen_range, model_label
from statetrack.runs.selection import best_rate, cell

__all__ = [
    "CONTROLS",
    "LEARNT",
    "LEAST",
    "STARTED",
    "Asked",
    "Cause",
    "Difference",
    "Family",
    "Range",
    "differences",
    "families",
    "read_study",
    "said_of",
    "variant_of",
]

KIND = "lm"
Range = tuple[float, float]
CONTROLS: dict[str, tuple[str, Range, str]] = {
    "CappedDeltaNet": ("DeltaNet", USUAL, "2σ(x) capped"),
    "CappedGatedDeltaNet": ("GatedDeltaNet", USUAL, "2σ(x) capped"),
    "CappedGLA": ("GLA", USUAL, "2s - 1 capped"),
}
"""Layer of a control -> the model it is a control of, its range, and what is special about it."""
LEARNT, STARTED = "range learnt", "β from"
"""What is special about models whose heads learn how far the range goes down, from 0 on, and about
those with a `beta_start`, which stands behind it."""

Cause = Literal["range", "speed", "sign", "clamp", "learnt", "started"]
"""What two models differ in. `range` is that of [-1, 1] and [0, 1], and the sum of the next two:
`speed`, of the capped control and [0, 1], and `sign`, of [-1, 1] and the control. `clamp` is that
of one trained model with its eigenvalues kept from going below 0 and as it is, `learnt` that of a
learnt range and [0, 1], `started` that of [-1, 1] whose β begins elsewhere and [0, 1]."""
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""How many standard errors of the mean of so many seeds are 95 % of them; of more not fewer."""
LEAST = 0.01
"""Nats a token; a difference below it is told as none."""


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

    def windows(self, domain: str, end: int, question: str = "loss") -> list[float]:
        """The loss of every window at the positions up to the training length, or beyond it
        between half of `end` and `end`.
        """
        which = "short" if end == self.trained else "long"
        found = self.answers[question]["domains"].get(domain, {}).get(which, {})
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
        layer: the model without its range; with warm-up and first weights if not the recipe's.
        between: its range, if it has one.
        members: by seed.
        variant: what is special about a control.
    """

    layer: str
    between: Range | None
    members: tuple[Asked, ...]
    variant: str = ""

    @property
    def label(self) -> str:
        return said_of(self.layer, self.between, self.variant)

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
    """The loss of one model minus that of another on the same windows, from the same seeds.

    Attributes:
        cause: what they differ in; the first of [-1, 1] and [0, 1] is [-1, 1].
        mean, low, high: over the windows, each the mean of its seeds, with 95 % confidence. It
            speaks of other text, not of other seeds.
        seeds: the mean of every seed by itself.
        windows: how many there are.
    """

    cause: Cause
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
        """`lower` or `higher` where neither other text nor other seeds would turn it.

        `alike` is a difference that is below `LEAST` for any text and seed; `open` is whatever text
        or seeds are too far apart for, and `one seed` says nothing of others. Of a clamp one model
        is enough: it is compared with itself.
        """
        if len(self.seeds) == 1 and self.cause != "clamp":
            return "one seed"
        seeds = self.over_seeds or 0.0
        if max(-self.low, self.high, abs(self.mean) + seeds) < LEAST:
            return "alike"
        shown = self.low > 0 or self.high < 0
        if shown and abs(self.mean) > seeds:
            return "lower" if self.mean < 0 else "higher"
        return "open"

    @property
    def over_seeds(self) -> float | None:
        """Half of the 95 % interval of the mean over seeds; None of one seed."""
        count = len(self.seeds)
        if count < 2:
            return None
        errors = STUDENT.get(count, STUDENT[max(STUDENT)])
        return errors * statistics.stdev(self.seeds) / math.sqrt(count)


def read_study(root: Path, runs: Iterable[StoredRun]) -> list[Asked]:
    """The finished language models among `runs`, with what `root`/language says of them."""
    found = []
    for run in runs:
        if run.config.KIND != KIND or not run.finished:
            continue
        files = {
            name: path
            for name in ANSWERS
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


def said_of(layer: str, between: Range | None, variant: str = "") -> str:
    """What tables and pictures call a model.

    >>> said_of("DeltaNet", (0.0, 1.0), "2σ(x) capped")
    'DeltaNet [0, 1], 2σ(x) capped'
    """
    ends = "" if between is None else f" [{between[0]:g}, {between[1]:g}]"
    return f"{layer}{ends}" + (f", {variant}" if variant else "")


def variant_of(options: Mapping[str, Any]) -> tuple[str, str]:
    """What is special about a layer with such options: as its label has it, and as pages say it.

    >>> variant_of({"beta_start": 0.5})
    (' start=0.5', 'β from 0.5')
    """
    start = options.get("beta_start")
    if options.get("learn_range"):
        return " learnt", LEARNT
    return ("", "") if start is None else (f" start={start:g}", f"{STARTED} {start:g}")


def families(asked: Sequence[Asked]) -> list[Family]:
    """By layer, [0, 1] before [-1, 1], controls behind them; then other recipes, and last what has
    no range.
    """
    by_cell: dict[str, list[Asked]] = {}
    for one in asked:
        by_cell.setdefault(cell(one.run.config), []).append(one)
    found = []
    for members in by_cell.values():
        _, chosen = best_rate([one.run for one in members], "loss")
        kept = [one for one in members if one.run in chosen]
        if kept:
            config = kept[0].run.config
            layer, between, variant = model_label(config, with_range=False), eigen_range(config), ""
            if layer in CONTROLS:
                layer, between, variant = CONTROLS[layer]
            else:
                word, variant = variant_of(config.model.backbone.mixers[0].options)
                layer = layer.replace(word, "")
            layer = ", ".join([layer, *_unlike_its_recipe(config)])
            ordered = tuple(sorted(kept, key=lambda one: one.seed))
            found.append(Family(layer, between, ordered, variant))
    return sorted(
        found,
        key=lambda one: (
            one.between is None,
            ", " in one.layer,
            one.layer,
            one.variant,
            -(one.between or USUAL)[0],
            _size(one),
        ),
    )


def _unlike_its_recipe(config: Any) -> Iterator[str]:
    """How a model of a named size began otherwise than the recipe has it."""
    sizes = {width: size for size, (width, _) in WIDTHS.items()}
    size = sizes.get(config.model.backbone.d_model)
    if size is None:
        return
    if config.schedule.warmup != RECIPES[size]["warmup"]:
        yield f"warm-up {100 * config.schedule.warmup:g} %"
    if config.model.projection_std not in (None, RECIPES[size]["std"]):
        yield f"first weights {config.model.projection_std:g}"


def _size(family: Family) -> tuple[int, int]:
    return family.config.model.backbone.d_model, family.config.steps


def differences(found: Sequence[Family], cause: Cause = "range") -> list[Difference]:
    """Of every two models that differ in `cause` alone, by domain and position."""
    told = []
    for layer, pairs in _sides(found, cause):
        for domain in pairs[0][1].model.domains:
            for end in pairs[0][1].model.ends(domain):
                one = _difference(cause, layer, domain, end, pairs)
                told += [one] if one is not None else []
    return told


@dataclass(frozen=True)
class _Side:
    """A model, and the question whose losses count."""

    model: Asked
    question: str = "loss"

    @property
    def asked(self) -> bool:
        return {"loss", self.question} <= self.model.answers.keys()


_Pairs = list[tuple[_Side, _Side]]


def _sides(found: Sequence[Family], cause: Cause) -> list[tuple[str, _Pairs]]:
    """Layer by layer the pairs to compare, seed by seed: what it is less, and what."""
    sides: list[tuple[str, _Pairs]] = []
    question = "clamped" if cause == "clamp" else "loss"
    for before, after in _compared(found, cause):
        pairs = [
            (_Side(one), _Side(other, question))
            for one in before.members
            for other in after.members
            if one.seed == other.seed
        ]
        pairs = [pair for pair in pairs if all(side.asked for side in pair)]
        if pairs:
            # A clamp is told of every model, whatever is special about it.
            special = f", {after.variant}" if cause == "clamp" and after.variant else ""
            sides.append((after.layer + special, pairs))
    return sides


def _compared(found: Sequence[Family], cause: Cause) -> list[tuple[Family, Family]]:
    """What is compared with what: models that differ in their range and variant alone."""
    usual = [one for one in found if one.between == USUAL and not one.variant]
    controls = [one for one in found if one.between == USUAL and one.variant]
    extended = [one for one in found if one.between == EXTENDED]
    plain = [one for one in extended if not one.variant]
    if cause == "clamp":
        return [(one, one) for one in extended]
    before, after = {
        "range": (usual, plain),
        "speed": (usual, controls),
        "sign": (controls, plain),
        "learnt": (usual, [one for one in extended if one.variant == LEARNT]),
        "started": (usual, [one for one in extended if one.variant.startswith(STARTED)]),
    }[cause]
    return [(a, b) for b in after for a in before if _differ_in_the_range(a, b)]


def _differ_in_the_range(one: Family, other: Family) -> bool:
    """Whether two models differ in no more than their range and what is special about it."""
    mine, its = one.config, other.config
    alike = ("length", "batch", "steps", "data_sha256")
    return (
        one.layer == other.layer
        and mine.model.backbone.d_model == its.model.backbone.d_model
        and all(getattr(mine, name) == getattr(its, name) for name in alike)
    )


def _difference(
    cause: Cause, layer: str, domain: str, end: int, pairs: _Pairs
) -> Difference | None:
    by_seed = []
    for before, after in pairs:
        first, second = (side.model.windows(domain, end, side.question) for side in (before, after))
        if not first or len(first) != len(second):
            return None
        by_seed.append([b - a for a, b in zip(first, second, strict=True)])
    each = [sum(values) / len(values) for values in zip(*by_seed, strict=True)]
    mean = sum(each) / len(each)
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    return Difference(
        cause,
        layer,
        domain,
        end,
        mean,
        mean - CONFIDENCE * error,
        mean + CONFIDENCE * error,
        tuple(sum(values) / len(values) for values in by_seed),
        len(each),
    )
