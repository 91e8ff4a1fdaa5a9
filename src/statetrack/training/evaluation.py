"""Accuracy by length, on fixed sets."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack._typing import Int
from statetrack.models import Tagger
from statetrack.tasks import IGNORE, Batch, Task
from statetrack.tasks._evaluation import Split
from statetrack.training.config import RunConfig
from statetrack.training.precision import autocast
from statetrack.training.records import Record

__all__ = ["Counts", "evaluate", "held_out", "records_of", "score"]

BINS = 8
"""Ranges of lengths reported while a run trains; at its end every length has a row of its own."""


@dataclass(frozen=True)
class Counts:
    """What a model got right, by the number of tokens it had read (1, 2, ... from index 0).

    Attributes:
        right, asked: answers that were right, and all answers.
        alive: sequences without a mistake so far (one that has ended counts on).
        sequences: how many sequences there are.
        loss: mean cross entropy of all answers.
    """

    right: Int[Tensor, "time"]
    asked: Int[Tensor, "time"]
    alive: Int[Tensor, "time"]
    sequences: int
    loss: float

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
    assert settings.task is not None and lengths is not None
    whole = tasks.evaluation_set(
        settings.task,
        settings.size,
        settings.seed,
        lengths=tasks.LengthRange(*lengths),
        split=split,
    )
    order = whole.num_tokens.argsort(stable=True)
    batches = []
    for rows in order.split(settings.batch):
        width = int(whole.num_tokens[rows].max())
        parts = (
            part[rows, :width].to(device) for part in (whole.tokens, whole.targets, whole.mask)
        )
        batches.append(Batch(*parts))
    return batches


@torch.no_grad()
def evaluate(model: Tagger, batches: list[Batch], precision: str = "fp32") -> Counts:
    """Runs `model` over `batches` (as `held_out` makes them: widths never shrink)."""
    device = batches[0].tokens.device
    time = batches[-1].tokens.shape[1]
    right, asked, alive = torch.zeros(3, time, dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for batch in batches:
        with autocast(device, precision):
            scores, _ = model(batch.tokens)
        flat = scores.flatten(0, 1).float()
        loss += cross_entropy(flat, batch.targets.flatten(), ignore_index=IGNORE, reduction="sum")
        # Scores that are not numbers are no answer, whatever their argmax.
        said = scores.argmax(dim=-1).masked_fill(~scores.isfinite().all(dim=-1), IGNORE - 1)
        hit = batch.mask & (said == batch.targets)
        width = batch.tokens.shape[1]
        right[:width] += hit.sum(dim=0)
        asked[:width] += batch.mask.sum(dim=0)
        faultless = ((batch.mask & ~hit).cumsum(dim=1) == 0).sum(dim=0)
        alive[:width] += faultless
        alive[width:] += faultless[-1]
    return Counts(
        right=right.cpu(),
        asked=asked.cpu(),
        alive=alive.cpu(),
        sequences=sum(len(batch.tokens) for batch in batches),
        loss=float(loss) / int(asked.sum()),
    )


def score(task: Task, counts: Counts) -> float:
    """The one number a run is judged by.

    Scaled accuracy where one answer per sequence is asked, the share of faultless sequences where
    all are.
    """
    return counts.sequence_accuracy if task.dense else task.scaled_accuracy(counts.accuracy)


def records_of(
    task: Task, counts: Counts, *, step: int, split: str, every_length: bool
) -> list[Record]:
    """Rows for all lengths together, then by length: in `BINS` ranges, or one by one."""
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
    width = 1 if every_length else max(1, -(-(high + 1 - low) // BINS))
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
    return rows
