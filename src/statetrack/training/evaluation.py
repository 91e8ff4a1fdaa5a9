"""Accuracy by length, on fixed sets."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack._typing import Bool, Float, Int
from statetrack.runs.records import Record
from statetrack.tasks import IGNORE, Batch, Depths, Split, Task
from statetrack.training.config import RunConfig
from statetrack.training.packing import by_length

__all__ = ["Counts", "Tally", "held_out", "loss_and_accuracy", "records_of", "score", "tally"]

BINS = 8
"""Ranges of lengths reported while a run trains; at its end every length has a row of its own."""
MOST_LENGTHS, LONG_BINS = 1024, 256
"""Beyond so many lengths there are that many ranges of them instead, at the end of a run too."""
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
    """

    right: Int[Tensor, "time"]
    asked: Int[Tensor, "time"]
    alive: Int[Tensor, "time"]
    sequences: int
    loss: float
    deep: Int[Tensor, "three edges"] | None = None

    @property
    def accuracy(self) -> float:
        """The share of all answers that were right."""
        return int(self.right.sum()) / int(self.asked.sum())

    @property
    def sequence_accuracy(self) -> float:
        """The share of sequences without a mistake anywhere."""
        return int(self.alive[-1]) / self.sequences


def held_out(config: RunConfig, split: Split, device: torch.device) -> list[Batch]:
    """The validation or test set of a run, shortest sequences first, cut into narrow batches."""
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
    batches = by_length(whole, settings.batch)
    depths = config.judge.depths
    if split == "test" and depths is not None:
        batches = [dataclasses.replace(batch, depths=depths(batch)) for batch in batches]
    return [batch.to(device) for batch in batches]


def loss_and_accuracy(
    scores: Float[Tensor, "*asked classes"], targets: Int[Tensor, "*asked"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean cross entropy and share of right answers, where something is asked."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    loss = cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORE)
    hits = scores.detach().argmax(dim=-1) == targets
    return loss, hits.sum() / (targets != IGNORE).sum()


@dataclass(frozen=True, eq=False)
class Tally:
    """`Counts` of several models at once, still on the device."""

    right: Int[Tensor, "runs time"]
    asked: Int[Tensor, "time"]
    alive: Int[Tensor, "runs time"]
    sequences: int
    loss: Float[Tensor, "runs"]
    deep: Int[Tensor, "runs three edges"] | None = None

    def counts(self) -> list[Counts]:
        """One for each model; here the host waits for the device."""
        right, asked, alive, loss = (
            part.cpu() for part in (self.right, self.asked, self.alive, self.loss)
        )
        total = int(asked.sum())
        deep = [None] * len(right) if self.deep is None else self.deep.cpu()
        return [
            Counts(right[r], asked, alive[r], self.sequences, float(loss[r]) / total, deep[r])
            for r in range(len(right))
        ]


Predict = Callable[[Tensor, Tensor | None], Tensor]
"""(tokens, times to read at or None for all) -> scores `[runs, batch, asked, classes]`."""


@torch.no_grad()
def tally(predict: Predict, batches: list[Batch], *, runs: int, dense: bool) -> Tally:
    """Counts what `predict` gets right. Nothing here waits for the device."""
    time = batches[-1].tokens.shape[1]
    zeros = torch.zeros(runs, time, dtype=torch.long, device=batches[0].tokens.device)
    right, alive, asked = zeros, zeros.clone(), zeros[0].clone()
    loss = torch.zeros_like(right[:, 0], dtype=torch.float64)
    deep = None
    for batch in reversed(batches):  # widest first: the memory it leaves has room for the others
        read_at, targets = (None, batch.targets) if dense else batch.last_answer
        scores = predict(batch.tokens, read_at)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32)).movedim(-1, 1)
        every_run = targets.expand(runs, -1, -1)
        losses = cross_entropy(wide, every_run, ignore_index=IGNORE, reduction="none")
        loss += losses.sum(dim=(1, 2), dtype=torch.float64)
        # Scores that are not numbers are no answer, whatever their argmax.
        said = scores.argmax(dim=-1).masked_fill(~scores.isfinite().all(dim=-1), IGNORE - 1)
        hit = said == every_run
        if read_at is not None:
            nowhere = torch.zeros_like(batch.mask).expand(runs, -1, -1)
            hit = nowhere.scatter(2, read_at.expand(runs, -1, -1), hit)
        hit = hit & batch.mask
        width = batch.tokens.shape[1]
        right[:, :width] += hit.sum(dim=1)
        asked[:width] += batch.mask.sum(dim=0)
        faultless = ((batch.mask & ~hit).cumsum(dim=2) == 0).sum(dim=1)
        alive[:, :width] += faultless
        alive[:, width:] += faultless[:, -1:]
        if batch.depths is not None:
            found = _by_depth(batch.depths, hit, batch.mask)
            deep = found if deep is None else deep + found
    sequences = sum(len(batch.tokens) for batch in batches)
    return Tally(right, asked, alive, sequences, loss, deep)


def _by_depth(
    depths: Depths, hit: Bool[Tensor, "runs batch time"], mask: Bool[Tensor, "batch time"]
) -> Int[Tensor, "runs three edges"]:
    """`Counts.deep` of every run."""
    edges = torch.tensor(EDGES, device=mask.device)
    operations, ages = (torch.bucketize(part, edges) for part in depths)
    runs = len(hit)
    found = torch.zeros(runs, 3, len(EDGES) + 1, dtype=torch.long, device=mask.device)
    parts = ((operations, hit), (operations, mask.expand(runs, -1, -1)))
    parts += ((ages, mask.expand(runs, -1, -1)),)
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
        place = {"length": last + 1, "length_min": None if first == last else first + 1}
        right = int(counts.right[first : last + 1].sum())
        rows.append(Record(step, split, "accuracy", right / count, **place, count=count))
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
