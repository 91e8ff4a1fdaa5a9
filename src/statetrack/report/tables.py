"""From runs to tables: groups of runs that differ in seed and rate alone, and their numbers."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statetrack import tasks
from statetrack.analysis.audit_file import ALMOST_ALL, read_audit
from statetrack.lm import PretrainConfig
from statetrack.report.paper import best_in_paper
from statetrack.runs import Record, StoredRun
from statetrack.runs.errors import reason_of
from statetrack.runs.labels import eigen_range, model_label
from statetrack.runs.selection import CELL, best_rate, cell, values_of
from statetrack.training import RunConfig

__all__ = [
    "Absent",
    "Curve",
    "Group",
    "Point",
    "Row",
    "absent",
    "accuracy_by_place",
    "by_length",
    "by_operations",
    "by_step",
    "exact_length",
    "group_of",
    "group_runs",
    "in_training",
    "labels",
    "order",
    "places",
    "range_label",
    "row",
    "thinned",
    "trained_tokens",
    "unique",
    "variant_of",
]

MAX_BINS = 32
"""Points of a curve over lengths; lengths beyond that are averaged with their neighbours."""

MAX_STEPS = 60
"""Points of a learning curve; beyond that, evenly chosen ones and the last."""


DEPTH = "model.backbone.num_layers"
SHARED = {*CELL, "log_every", "checkpoint_every", "evaluation.batch"}
"""What tells no cells apart."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one config but for seed and learning rate.

    Attributes:
        task: what they learn.
        label: the model, with whatever tells it from the other models of that task.
        metric: what they are judged by; see `RunConfig.metric`.
        rate: the learning rate whose median over seeds is the greatest; `None` without a value.
        chosen: the finished runs of that rate that have a value, by seed.
        runs: all of them.
    """

    task: str
    label: str
    metric: str
    rate: float | None
    chosen: tuple[StoredRun, ...]
    runs: tuple[StoredRun, ...]

    @property
    def config(self) -> RunConfig:
        """Any config of the group."""
        return (self.chosen or self.runs)[0].config

    @property
    def model(self) -> str:
        """The model without its range: what its colour goes by."""
        return model_label(self.config, with_range=False)

    @property
    def between(self) -> str | None:
        """Its range in words, if it has one: what its line style goes by."""
        return range_label(self.config)

    @property
    def variant(self) -> str:
        """What its label has beside model and range, as in `5 layers`."""
        return variant_of(self.label, self.config)

    @property
    def ranked(self) -> list[StoredRun]:
        """The chosen runs, best first, equal ones by seed."""
        return sorted(
            self.chosen, key=lambda run: (-(run.last(self.metric) or 0.0), run.config.seed)
        )


@dataclass(frozen=True)
class Row:
    """One line of the table; a number that is not there is `None`.

    Attributes:
        task, model, metric, rate: as in `Group`.
        lengths: the lengths it is judged on.
        learnt: the median over seeds of `in_training`.
        best, median: over the seeds of that rate, on `lengths`.
        spread: highest minus lowest; one seed has none.
        seeds, missing: runs with a value at that rate, and runs of any rate without one.
        paper: the paper's best.
        exact: see `exact_length`, of the best run.
        behind: the runs behind best, median and spread: the best one, the one in the middle and the
            worst. Empty without a number.
    """

    task: str
    model: str
    metric: str
    rate: float | None
    lengths: tuple[int, int]
    learnt: float | None
    best: float | None
    median: float | None
    spread: float | None
    seeds: int
    missing: int
    paper: float | None
    exact: int | None
    behind: tuple[StoredRun, ...]


@dataclass(frozen=True)
class Point:
    """A place on a curve, in words `where`: the median over seeds, the least and the greatest."""

    x: float
    where: str
    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A line with a band over seeds.

    Attributes:
        label: what it is called.
        points, seeds: its places, and how many runs are behind them.
        model, between, variant: the model, its range, and what else tells it from others: they
            decide its colour, its dashes and its marker. All are empty for what is no model.
    """

    label: str
    points: tuple[Point, ...]
    seeds: int
    model: str = ""
    between: str | None = None
    variant: str = ""


@dataclass(frozen=True)
class Absent:
    """Something that should be on the page and is not."""

    run: str
    label: str
    reason: str


def range_label(config: RunConfig | PretrainConfig) -> str | None:
    """`[-1, 1]`, or `None` for a model without a range, or with several."""
    found = eigen_range(config)
    return None if found is None else f"[{found[0]:g}, {found[1]:g}]"


def variant_of(label: str, config: RunConfig | PretrainConfig) -> str:
    """What a label of `labels` has beside model and range."""
    return label.removeprefix(model_label(config)).strip(" ()")


def _judge(config: RunConfig) -> tasks.Task:
    return config.judge


def _faultless(config: RunConfig) -> bool:
    return config.metric == "sequence_accuracy"


def trained_tokens(config: RunConfig) -> int:
    """The longest word trained on, counted in tokens as the records count."""
    return config.learns.num_tokens(config.train_lengths[1])


def group_runs(runs: Iterable[StoredRun]) -> list[Group]:
    """The runs in groups, by task, then model, then range; a run given twice counts once."""
    found: dict[str, list[StoredRun]] = {}
    for run in sorted(unique(runs), key=lambda run: (run.config.seed, run.config.fingerprint)):
        found.setdefault(cell(run.config), []).append(run)
    groups = sorted(found.values(), key=lambda members: order(members[0].config))
    names = labels([members[0].config for members in groups])
    return [group_of(label, members) for label, members in zip(names, groups, strict=True)]


def unique(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Of runs with one config the first that has finished, or else the first."""
    found: dict[str, StoredRun] = {}
    for run in runs:
        before = found.setdefault(run.config.fingerprint, run)
        if run.finished and not before.finished:
            found[run.config.fingerprint] = run
    return list(found.values())


def order(config: RunConfig) -> tuple[Any, ...]:
    """By task, then model, then range and size."""
    backbone = config.model.backbone
    first = backbone.mixers[0]
    low = (first.options.get("eigen_range") or (0.0, 1.0))[0]
    factors = first.options.get("num_householders", 0)
    place = (config.learns.name, first.layer, factors, -low, backbone.num_layers)
    goes_on = config.parent is not None
    return (*place, backbone.d_model, goes_on, config.steps, config.to_json())


def labels(configs: Sequence[RunConfig] | Sequence[PretrainConfig]) -> list[str]:
    """Model and range, and where that is not enough, a few settings that tell them apart."""
    names = [(config.subject, model_label(config)) for config in configs]
    settings = [_settings(config) for config in configs]
    found = []
    for name, mine in zip(names, settings, strict=True):
        alike = [others for n, others in zip(names, settings, strict=True) if n == name]
        telling = [key for key in _telling(alike) if key in mine]
        shown = ", ".join(_setting(key.split(".")[-1], mine[key]) for key in telling)
        found.append(f"{name[1]} ({shown})" if shown else name[1])
    return found


def _settings(config: RunConfig | PretrainConfig) -> dict[str, Any]:
    """All settings that tell cells apart, the options of equal layers once."""
    fields = config.to_dict()
    if config.parent is not None:  # another one for each seed; the model's label says that it is
        del fields["start"]
    backbone = fields["model"]["backbone"]
    backbone["num_layers"] = len(backbone["mixers"])
    kinds = {json.dumps(mixer): mixer["options"] for mixer in backbone["mixers"]}
    backbone["mixers"] = {str(i): options for i, options in enumerate(kinds.values())}
    told = SHARED | type(config).IDLE
    return {name: value for name, value in _flat(fields).items() if name not in told}


def _telling(alike: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that tell these apart: always next the one that parts the most, depth if it does."""
    keys = [DEPTH, *dict.fromkeys(key for settings in alike for key in settings)]

    def kinds(chosen: Sequence[str]) -> int:
        return len({json.dumps([settings.get(key) for key in chosen]) for settings in alike})

    chosen: list[str] = []
    while kinds(chosen) < kinds(keys):
        chosen.append(max(keys, key=lambda key: kinds([*chosen, key])))
    return chosen


def _setting(name: str, value: Any) -> str:
    if name == DEPTH.split(".")[-1]:
        return f"{value} layer" + "s" * (value != 1)
    return f"{name}={value}"


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def group_of(label: str, runs: Sequence[StoredRun]) -> Group:
    """Runs of one recipe under a name."""
    config = runs[0].config
    metric = config.metric
    rate, chosen = best_rate(runs, metric)
    return Group(config.learns.name, label, metric, rate, tuple(chosen), tuple(runs))


def row(group: Group) -> Row:
    """The group's line of the table: the best seed of the rate with the greatest median."""
    values = values_of(group.chosen, group.metric)
    ranked = group.ranked
    middle = (len(ranked) - 1) // 2
    learnt = [v for run in group.chosen if (v := in_training(run)) is not None]
    lengths = group.config.evaluation.lengths
    assert lengths is not None
    return Row(
        task=group.task,
        model=group.label,
        metric=group.metric,
        rate=group.rate,
        lengths=lengths,
        learnt=statistics.median(learnt) if learnt else None,
        best=max(values, default=None),
        median=statistics.median(values) if values else None,
        spread=max(values) - min(values) if len(values) > 1 else None,
        seeds=len(values),
        missing=sum(not run.finished or run.last(group.metric) is None for run in group.runs),
        paper=best_in_paper(group.config),
        exact=exact_length(ranked[0]) if ranked else None,
        behind=(ranked[0], ranked[middle], ranked[-1]) if ranked else (),
    )


def exact_length(run: StoredRun) -> int | None:
    """The greatest length up to which the run's audit found 99 % right; `None` if there is none."""
    audit = read_audit(run)
    return None if audit is None else audit.horizon.exact_to.get(ALMOST_ALL)


def in_training(run: StoredRun) -> float | None:
    """The scaled accuracy of training itself: the mean of the last tenth of its rows.

    It is of the task that is learnt, and of sequences of the lengths that are trained on.
    """
    rows = [r.value for r in run.records if (r.split, r.metric) == ("train", "accuracy")]
    last = rows[-max(1, len(rows) // 10) :]
    return run.config.learns.scaled_accuracy(statistics.mean(last)) if last else None


def _test_rows(run: StoredRun) -> list[Record]:
    """The last test, one row per length: accuracy, or faultless sequences if they count."""
    metric = "sequence_accuracy" if _faultless(run.config) else "accuracy"
    rows = [r for r in run.records if (r.split, r.metric) == ("test", metric) and r.length]
    last = max((r.step for r in rows), default=0)
    return [r for r in rows if r.step == last]


def _pooled(rows: Iterable[Record]) -> float:
    """The accuracy over all answers of `rows`."""
    weights = [(r.value, r.count or 1) for r in rows]
    return sum(value * count for value, count in weights) / sum(count for _, count in weights)


def accuracy_by_place(run: StoredRun) -> dict[tuple[int | None, int | None], float]:
    """Accuracy of the last test by (length, None) and by (None, operations).

    Lengths are 1, 2, 4, ... times the longest that was trained on, in tokens, each for the answers
    between half of it and all of it. Of a run that goes on from another they are times the longest
    of the task itself, so that both have the same ones.
    """
    rows = [r for r in run.records if (r.split, r.metric, r.overall) == ("test", "accuracy", False)]
    last = max((r.step for r in rows), default=0)
    rows = [r for r in rows if r.step == last]
    longest = max((r.length for r in rows if r.length is not None), default=0)
    found: dict[tuple[int | None, int | None], float] = {}
    task = run.config.learns
    goes_on = run.config.parent is not None
    end = task.num_tokens(task.train_lengths.max) if goes_on else trained_tokens(run.config)
    while end < 2 * longest:
        here = [r for r in rows if r.length is not None and end // 2 < r.length <= end]
        if here:
            found[end, None] = _pooled(here)
        end *= 2
    return found | {(None, r.operations): r.value for r in rows if r.operations is not None}


def places(group: Group) -> dict[tuple[int | None, int | None], list[float]]:
    """`accuracy_by_place` of every chosen run.

    It is empty unless answers within a sequence count one by one (`Task.judged_by`).
    """
    found: dict[tuple[int | None, int | None], list[float]] = {}
    if _judge(group.config).judged_by is None:
        return found
    for run in group.chosen:
        for place, value in accuracy_by_place(run).items():
            found.setdefault(place, []).append(value)
    return found


def by_length(group: Group) -> Curve:
    """The group's metric against the number of tokens read, on the test set.

    Where there are more than `MAX_BINS` lengths, neighbours are pooled: all answers of a bin for
    accuracy, the longest of the bin for faultless sequences, which only fall.
    """
    judge, faultless = _judge(group.config), _faultless(group.config)
    tested = [{r.length or 0: r for r in _test_rows(run)} for run in group.chosen]
    lengths = sorted(set().union(*tested))
    width = -(-len(lengths) // MAX_BINS) or 1
    points = []
    for start in range(0, len(lengths), width):
        part = lengths[start : start + width]
        values = []
        for rows in tested:
            here = [rows[length] for length in part if length in rows]
            if here:
                one = here[-1].value if faultless else judge.scaled_accuracy(_pooled(here))
                values.append(one)
        x = float(part[-1] if faultless else statistics.mean(part))
        alone = faultless or len(part) == 1
        where = f"length {part[-1]}" if alone else f"lengths {part[0]} to {part[-1]}"
        points.append(_point(x, where, values))
    return _curve(group, points)


def by_operations(group: Group) -> Curve:
    """Accuracy of the last test against the operations since an answer was last shown.

    Answers that none has changed stand at a half, one doubling before 1. There are no points where
    the task counts no operations.
    """
    columns = {end: values for (_, end), values in places(group).items() if end is not None}
    if not any(columns):
        return _curve(group, [])
    return _curve(
        group,
        [_point(float(end) or 0.5, _operations(end), columns[end]) for end in sorted(columns)],
    )


def _operations(end: int) -> str:
    """A range of operations by its end: 1, 2, 3..4, 5..8, ...

    >>> _operations(1), _operations(2), _operations(8)
    ('1 operation', '2 operations', '5 to 8 operations')
    """
    if end < 3:
        return f"{end} operation" + "s" * (end != 1)
    return f"{end // 2 + 1} to {end} operations"


def by_step(group: Group, metric: str, split: str) -> Curve:
    """`metric` over all lengths against the optimiser's steps."""
    columns: dict[int, list[float]] = {}
    for run in group.chosen:
        for r in run.records:
            if (r.split, r.metric, r.overall) == (split, metric, True):
                columns.setdefault(r.step, []).append(r.value)
    steps = thinned(sorted(columns))
    return _curve(group, [_point(float(step), f"step {step}", columns[step]) for step in steps])


def _curve(group: Group, points: Sequence[Point]) -> Curve:
    look = (group.model, group.between, group.variant)
    return Curve(group.label, tuple(points), len(group.chosen), *look)


def thinned(steps: list[int]) -> list[int]:
    stride = -(-len(steps) // MAX_STEPS) or 1
    return steps[::-1][::stride][::-1]


def _point(x: float, where: str, values: list[float]) -> Point:
    return Point(x, where, statistics.median(values), min(values), max(values))


def absent(groups: Iterable[Group]) -> list[Absent]:
    """The runs that are not finished or have no number, and why."""
    found = []
    for group in groups:
        for run in group.runs:
            reason = _why_absent(run, group.metric)
            if reason is not None:
                label = f"{group.task}, {group.label}, lr {run.config.optimizer.lr:g}"
                label = f"{label}, seed {run.config.seed}"
                found.append(Absent(run.name, label, reason))
    return found


def _why_absent(run: StoredRun, metric: str) -> str | None:
    if not run.finished:
        error = (run.error or "").strip()
        if error:
            return reason_of(error)
        step = max((r.step for r in run.records), default=0)
        return f"not finished: step {step} of {run.config.steps}"
    if run.last(metric) is None:
        return f"finished, but its records have no {metric.replace('_', ' ')}"
    return None
