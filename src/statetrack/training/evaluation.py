"""Accuracy by length, on fixed sets."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack._typing import Bool, Float, Int
from statetrack.runs.records import Record
from statetrack.tasks import IGNORE, Batch, Depths, Split, Task
from statetrack.training.config import RunConfig
from statetrack.training.packing import by_length

__all__ = [
    "Counts",
    "Tally",
    "held_out",
    "label_hits",
    "loss_and_accuracy",
    "records_of",
    "score",
    "tally",
]

BINS = 8
"""Ranges of lengths reported while a run trains; at its end every length has a row of its own."""
MOST_LENGTHS, LONG_BINS = 1024, 256
"""Beyond so many lengths there are that many ranges of them instead, at the end of a run too."""
MOST_TOKENS, MOST_SCORES = 2**18, 2**26
"""Tokens of one batch, and scores of its classes, in all runs that are evaluated together."""
EDGES = (0, *(2**n for n in range(15)))
"""Upper ends of the ranges in which operations are counted: 0, 1, 2, 3..4, 5..8, ..."""


@dataclass(frozen=True)
class Counts:
    """What a model got right, by the number of tokens it had read (1, 2, ... from index 0).

    Attributes:
        right, asked: answers that were right, and all answers.
        alive: sequences without a mistake so far (one that has ended counts on).
        sequences: how many sequences there are.
        loss: mean cross entropy of all answers.
        deep: by range of operations, answers that were right, all, and all by range of age (see
            `tasks.Depths`); None where the task has no depths.
        parts: answers that were right in each of the task's `parts`; None where it has none.
    """

    right: Int[Tensor, "time"]
    asked: Int[Tensor, "time"]
    alive: Int[Tensor, "time"]
    sequences: int
    loss: float
    deep: Int[Tensor, "three edges"] | None = None
    parts: Int[Tensor, "parts time"] | None = None

    @property
    def accuracy(self) -> float:
        """The share of all answers that were right."""
        return int(self.right.sum()) / int(self.asked.sum())

    @property
    def sequence_accuracy(self) -> float:
        """The share of sequences without a mistake anywhere."""
        return int(self.alive[-1]) / self.sequences


def held_out(
    config: RunConfig, split: Split, device: torch.device, *, runs: int = 1
) -> list[Batch]:
    """The validation or test set of a run, shortest sequences first, cut into narrow batches.

    With more `runs` that read it together a batch has fewer sequences, so that their memory does
    not grow with them.
    """
    settings = config.evaluation
    lengths = settings.lengths if split == "validation" else settings.test_lengths
    assert lengths is not None
    whole = tasks.evaluation_set(
        config.judge,
        settings.size,
        settings.seed,
        lengths=tasks.LengthRange(*lengths),
        split=split,
    )
    width = whole.tokens.shape[1]
    scores = config.judge.num_classes * min(width, whole.most or width)
    room = min(MOST_TOKENS // width, MOST_SCORES // scores) // runs
    batches = by_length(whole, max(1, min(settings.batch, room)))
    depths = config.judge.depths
    if split == "test" and depths is not None:
        batches = [dataclasses.replace(batch, depths=depths(batch)) for batch in batches]
    return [batch.to(device) for batch in batches]


def loss_and_accuracy(
    scores: Float[Tensor, "*asked classes"],
    targets: Int[Tensor, "*asked_and_labels"],
    labels: tuple[int, ...] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean cross entropy and share of right answers, where something is asked.

    With several `labels` the mean is over all of them, and all of an answer must be right.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if labels is not None:
        asked = (targets[..., 0] != IGNORE).sum()
        loss = _label_losses(wide, targets, labels).sum() / asked
        return loss, label_hits(scores.detach(), targets, labels).all(dim=-1).sum() / asked
    loss = cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORE)
    hits = scores.detach().argmax(dim=-1) == targets
    return loss, hits.sum() / (targets != IGNORE).sum()


def _by_label(
    scores: Float[Tensor, "*asked classes"], labels: tuple[int, ...]
) -> Iterator[tuple[slice, Float[Tensor, "*asked some classes_each"]]]:
    """Labels that follow one another and have as many classes each, and their scores."""
    first, begin = 0, 0
    for size, group in itertools.groupby(labels):
        count = len(list(group))
        part = scores[..., begin : begin + count * size].unflatten(-1, (count, size))
        yield slice(first, first + count), part
        first, begin = first + count, begin + count * size


def _label_losses(
    scores: Float[Tensor, "*asked classes"],
    targets: Int[Tensor, "*asked labels"],
    labels: tuple[int, ...],
) -> Float[Tensor, "*asked"]:
    """The cross entropy of every answer, the mean over its labels."""
    total = torch.zeros_like(scores[..., 0])
    for which, part in _by_label(scores, labels):
        wanted = targets[..., which]
        loss = cross_entropy(
            part.flatten(0, -2), wanted.flatten(), ignore_index=IGNORE, reduction="none"
        )
        total = total + loss.view(wanted.shape).sum(dim=-1)
    return total / len(labels)


def label_hits(
    scores: Float[Tensor, "*asked classes"],
    targets: Int[Tensor, "*asked labels"],
    labels: tuple[int, ...],
) -> Bool[Tensor, "*asked labels"]:
    """Which labels are right; scores that are not numbers are no answer."""
    said = torch.cat(
        [
            part.argmax(dim=-1).masked_fill(~part.isfinite().all(dim=-1), IGNORE - 1)
            for _, part in _by_label(scores, labels)
        ],
        dim=-1,
    )
    return said == targets


@dataclass(frozen=True, eq=False)
class Tally:
    """`Counts` of several models at once, still on the device."""

    right: Int[Tensor, "runs time"]
    asked: Int[Tensor, "time"]
    alive: Int[Tensor, "runs time"]
    sequences: int
    loss: Float[Tensor, "runs"]
    deep: Int[Tensor, "runs three edges"] | None = None
    parts: Int[Tensor, "runs parts time"] | None = None

    def counts(self) -> list[Counts]:
        """One for each model; here the host waits for the device."""
        right, asked, alive, loss = (
            part.cpu() for part in (self.right, self.asked, self.alive, self.loss)
        )
        total = int(asked.sum())
        deep, parts = (
            [None] * len(right) if more is None else more.cpu() for more in (self.deep, self.parts)
        )
        return [
            Counts(
                right[r],
                asked,
                alive[r],
                self.sequences,
                float(loss[r]) / total,
                deep[r],
                parts[r],
            )
            for r in range(len(right))
        ]


Predict = Callable[[Tensor, Tensor | None], Tensor]
"""(tokens, times to read at or None for all) -> scores `[runs, batch, asked, classes]`."""


@torch.no_grad()
def tally(predict: Predict, batches: list[Batch], *, runs: int, task: Task) -> Tally:
    """Counts what `predict` gets right. Nothing here waits for the device."""
    time = batches[-1].tokens.shape[1]
    zeros = torch.zeros(runs, time, dtype=torch.long, device=batches[0].tokens.device)
    right, alive, asked = zeros, zeros.clone(), zeros[0].clone()
    loss = torch.zeros_like(right[:, 0], dtype=torch.float64)
    deep = None
    parts = zeros.new_zeros(runs, len(task.parts), time) if task.parts else None
    for batch in reversed(batches):  # widest first: the memory it leaves has room for the others
        read_at, targets = batch.answers
        scores = predict(batch.tokens, read_at)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        every_run = targets.expand(runs, *targets.shape)
        if task.labels is None:
            losses = cross_entropy(
                wide.movedim(-1, 1), every_run, ignore_index=IGNORE, reduction="none"
            )
            # Scores that are not numbers are no answer, whatever their argmax.
            said = scores.argmax(dim=-1).masked_fill(~scores.isfinite().all(dim=-1), IGNORE - 1)
            hit = said == every_run
        else:
            losses = _label_losses(wide, every_run, task.labels)
            hits = label_hits(scores, every_run, task.labels)
            hit = hits.all(dim=-1)
        loss += losses.sum(dim=(1, 2), dtype=torch.float64)
        hit = _in_place(hit, read_at, batch.mask)
        width = batch.tokens.shape[1]
        if parts is not None:
            for number, (first, end) in enumerate(task.parts.values()):
                whole = _in_place(hits[..., first:end].all(dim=-1), read_at, batch.mask)
                parts[:, number, :width] += whole.sum(dim=1)
        right[:, :width] += hit.sum(dim=1)
        asked[:width] += batch.mask.sum(dim=0)
        faultless = ((batch.mask & ~hit).cumsum(dim=2) == 0).sum(dim=1)
        alive[:, :width] += faultless
        alive[:, width:] += faultless[:, -1:]
        if batch.depths is not None:
            found = _by_depth(batch.depths, hit, batch.mask)
            deep = found if deep is None else deep + found
    sequences = sum(len(batch.tokens) for batch in batches)
    return Tally(right, asked, alive, sequences, loss, deep, parts)


def _in_place(
    hit: Bool[Tensor, "runs batch asked"],
    read_at: Int[Tensor, "batch asked"] | None,
    mask: Bool[Tensor, "batch time"],
) -> Bool[Tensor, "runs batch time"]:
    """Which answers are right, at their times; False wherever nothing is asked."""
    if read_at is not None:
        runs = len(hit)
        nowhere = torch.zeros_like(mask).expand(runs, -1, -1)
        hit = nowhere.scatter(2, read_at.expand(runs, -1, -1), hit)
    return hit & mask


def _by_depth(
    depths: Depths, hit: Bool[Tensor, "runs batch time"], mask: Bool[Tensor, "batch time"]
) -> Int[Tensor, "runs three edges"]:
    """`Counts.deep` of every run."""
    edges = torch.tensor(EDGES, device=mask.device)
    operations, ages = (torch.bucketize(part, edges) for part in depths)
    runs = len(hit)
    found = torch.zeros(runs, 3, len(EDGES) + 1, dtype=torch.long, device=mask.device)
    all_asked = mask.expand(runs, -1, -1)
    parts = ((operations, hit), (operations, all_asked), (ages, all_asked))
    for which, (ranges, counted) in enumerate(parts):
        places = ranges.flatten().expand(runs, -1)
        found[:, which].scatter_add_(1, places, counted.flatten(1).long())
    return found[..., :-1]


def score(task: Task, counts: Counts) -> float:
    """The one number a run is judged by.

    See `Task.metric`.
    """
    if task.metric == "sequence_accuracy":
        return counts.sequence_accuracy
    return task.scaled_accuracy(counts.accuracy)


def records_of(
    task: Task, counts: Counts, *, step: int, split: str, every_length: bool
) -> list[Record]:
    """Rows for all lengths together, then by length: in `BINS` ranges, or one by one.

    Where answers have depths, then also by operations, and what an oracle would get that knows
    only the last 0, 1, 2, 4, ... operations and else guesses: `window_accuracy`.
    """
    asked = counts.asked.tolist()
    total = sum(asked)
    scaled = task.scaled_accuracy(counts.accuracy)
    rows = [Record(step, split, "loss", counts.loss)] if math.isfinite(counts.loss) else []
    rows += [
        Record(step, split, "accuracy", counts.accuracy, count=total),
        Record(step, split, "scaled_accuracy", scaled, count=total),
    ]
    if task.dense:
        whole = counts.sequence_accuracy
        rows.append(Record(step, split, "sequence_accuracy", whole, count=counts.sequences))
    more = [] if counts.parts is None else list(zip(task.parts, counts.parts, strict=True))
    for name, part in more:
        share = int(part.sum()) / total
        rows.append(Record(step, split, f"{name}_accuracy", share, count=total))
    present = [t for t, count in enumerate(asked) if count]
    low, high = present[0], present[-1]
    bins = BINS
    if every_length:
        bins = LONG_BINS if high + 1 - low > MOST_LENGTHS else MOST_LENGTHS
    width = max(1, -(-(high + 1 - low) // bins))
    for first in range(low, high + 1, width):
        last = min(first + width - 1, high)
        count = sum(asked[first : last + 1])
        if not count:
            continue
        place: dict[str, Any] = {
            "length": last + 1,
            "length_min": None if first == last else first + 1,
        }
        right = int(counts.right[first : last + 1].sum())
        rows.append(Record(step, split, "accuracy", right / count, **place, count=count))
        for name, part in more:
            share = int(part[first : last + 1].sum()) / count
            rows.append(Record(step, split, f"{name}_accuracy", share, **place, count=count))
        if task.dense:
            share = int(counts.alive[last]) / counts.sequences
            rows.append(
                Record(step, split, "sequence_accuracy", share, last + 1, count=counts.sequences)
            )
    if counts.deep is not None:
        rows += _depth_rows(task, counts.deep.tolist(), step=step, split=split)
    return rows


def _depth_rows(task: Task, deep: list[list[int]], *, step: int, split: str) -> list[Record]:
    rows = []
    total, within = sum(deep[2]), 0
    for edge, right, asked, aged in zip(EDGES, *deep, strict=True):
        if asked:
            share = right / asked
            rows.append(Record(step, split, "accuracy", share, operations=edge, count=asked))
        known, within = within < total, within + aged
        if known:
            oracle = (within + task.chance * (total - within)) / total
            rows.append(
                Record(step, split, "window_accuracy", oracle, operations=edge, count=total)
            )
    return rows
