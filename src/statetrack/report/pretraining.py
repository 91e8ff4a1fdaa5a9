"""What language models reported while they were pretrained: curves, and a line for each run."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from statetrack.lm import PretrainConfig
from statetrack.report.tables import Curve, Point, labels, range_label, thinned, variant_of
from statetrack.runs import Record, StoredRun
from statetrack.runs.labels import model_label
from statetrack.runs.selection import cell

__all__ = ["MEASURES", "Measure", "Pretrained", "PretrainedRun", "measures_of", "pretrained"]


@dataclass(frozen=True)
class Measure:
    """A number that is drawn.

    Attributes:
        name: what the page's script calls it.
        split, metric: where the records have it.
        title: what it is, and in which unit.
        by_domain: whether it is told of every kind of text, too, as losses are.
    """

    name: str
    split: str
    metric: str
    title: str
    by_domain: bool = False


MEASURES = (
    Measure("nats", "train", "loss", "training loss", by_domain=True),
    Measure("held", "validation", "loss", "validation loss", by_domain=True),
    Measure("speed", "machine", "tokens_per_s", "tokens a second"),
    Measure("mfu", "machine", "mfu", "MFU"),
    Measure("memory", "machine", "memory_gb", "peak memory, GB"),
    Measure("norm", "train", "grad_norm", "norm of the gradient, before clipping"),
)


@dataclass(frozen=True, eq=False)
class PretrainedRun:
    """A line of the table; a number that is not there is `None`.

    Attributes:
        run: the run.
        step: how far it is.
        loss, held_out: the last training loss, and the last on all validation text.
        domains: the last validation loss by kind of text.
        speed, mfu: in the middle of the rows, which leaves out the first steps that compile.
        memory: the most.
        spikes: losses that stood out.
    """

    run: StoredRun
    step: int
    loss: float | None
    held_out: float | None
    domains: dict[str, float]
    speed: float | None
    mfu: float | None
    memory: float | None
    spikes: int


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Runs that differ in their seeds alone.

    Attributes:
        subject: the text.
        label: the model, with whatever tells it from others on that text.
        model, between, variant: as in `Curve`.
        rate: the learning rate.
        runs: finished or not.
        curves: those with fewer than two points are left out.
    """

    subject: str
    label: str
    model: str
    between: str | None
    variant: str
    rate: float
    runs: tuple[PretrainedRun, ...]
    curves: dict[Measure, Curve]


def _about(measure: Measure, domain: str | None) -> Measure:
    """The same of one kind of text."""
    if domain is None:
        return measure
    name, title = f"{measure.name}:{domain}", f"{measure.title}, {domain}"
    return replace(measure, name=name, title=title)


def measures_of(models: Iterable[Pretrained]) -> list[Measure]:
    """All that some model has a curve of, in the order of `MEASURES`, each with its domains."""
    found = {measure for model in models for measure in model.curves}
    order = [measure.name for measure in MEASURES]
    return sorted(found, key=lambda one: (order.index(one.name.partition(":")[0]), one.name))


def pretrained(runs: Iterable[StoredRun]) -> list[Pretrained]:
    """The runs, which pretrain language models, those of one config and rate together."""
    found: dict[tuple[str, float], list[StoredRun]] = {}
    for run in sorted(runs, key=lambda run: (run.config.seed, run.config.fingerprint)):
        found.setdefault((cell(run.config), run.config.optimizer.lr), []).append(run)
    members = list(found.values())
    configs = [mine[0].config for mine in members]
    texts = _names([run.config for mine in members for run in mine])
    names = labels(configs)
    kin = [(config.data_sha256, name) for config, name in zip(configs, names, strict=True)]
    told = []
    for config, name, mine in zip(configs, names, members, strict=True):
        label = (
            f"{name}, lr {config.optimizer.lr:g}"
            if kin.count((config.data_sha256, name)) > 1
            else name
        )
        told.append(_told(config, texts[config.data_sha256], label, mine))
    return sorted(told, key=lambda one: (one.subject, one.label))


def _names(configs: Iterable[PretrainConfig]) -> dict[str | None, str]:
    """What each text is called: by most runs, as its folder may have had several names."""
    called: dict[str | None, Counter[str]] = {}
    for config in configs:
        called.setdefault(config.data_sha256, Counter())[config.subject] += 1
    return {sha: min(names, key=lambda n: (-names[n], n)) for sha, names in called.items()}


def _told(
    config: PretrainConfig, subject: str, label: str, runs: Sequence[StoredRun]
) -> Pretrained:
    look = (
        model_label(config, with_range=False),
        range_label(config),
        variant_of(label, config).removeprefix(", "),
    )
    curves: dict[Measure, Curve] = {}
    for measure in MEASURES:
        domains: set[str | None] = {None}
        if measure.by_domain:
            domains |= {r.domain for run in runs for r in run.records if _is(r, measure)}
        for domain in sorted(domains, key=lambda name: name or ""):
            curve = _curve(config, runs, measure, domain, label, look)
            if len(curve.points) > 1:  # an archive may keep the last row alone
                curves[_about(measure, domain)] = curve
    return Pretrained(subject, label, *look, config.optimizer.lr, tuple(map(_line, runs)), curves)


def _curve(
    config: PretrainConfig,
    runs: Sequence[StoredRun],
    measure: Measure,
    domain: str | None,
    label: str,
    look: tuple[str, str | None, str],
) -> Curve:
    """Against millions of tokens read."""
    columns: dict[int, list[float]] = {}
    for run in runs:
        for r in run.records:
            if _is(r, measure) and r.domain == domain:
                columns.setdefault(r.step, []).append(r.value)
    each = config.batch * config.length / 1e6
    points = [
        Point(step * each, f"step {step}", statistics.median(mine), min(mine), max(mine))
        for step in thinned(sorted(columns))
        for mine in [columns[step]]
    ]
    return Curve(label, tuple(points), len(runs), *look)


def _is(record: Record, measure: Measure) -> bool:
    alike = (record.split, record.metric) == (measure.split, measure.metric)
    return alike and record.length is None and record.operations is None


def _line(run: StoredRun) -> PretrainedRun:
    values: dict[str, list[float]] = {}
    domains: dict[str, float] = {}
    for measure in MEASURES:
        for r in run.records:
            if _is(r, measure) and r.domain is None:
                values.setdefault(measure.name, []).append(r.value)
            elif _is(r, measure) and r.domain is not None and measure.name == "held":
                domains[r.domain] = r.value

    def last(name: str) -> float | None:
        return values[name][-1] if name in values else None

    def middle(name: str) -> float | None:
        return statistics.median(values[name]) if name in values else None

    return PretrainedRun(
        run=run,
        step=max((r.step for r in run.records), default=0),
        loss=last("nats"),
        held_out=last("held"),
        domains=domains,
        speed=middle("speed"),
        mfu=middle("mfu"),
        memory=max(values.get("memory", []), default=None),
        spikes=sum((r.split, r.metric) == ("train", "spike") for r in run.records),
    )
