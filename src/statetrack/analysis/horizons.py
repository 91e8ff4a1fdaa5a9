"""How far what a model learnt carries: accuracy on sequences of one length, far beyond training.

Sequences are read in pieces, the state handed from one to the next, so that memory does not grow
with the length.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from statetrack import tasks
from statetrack._typing import Bool
from statetrack.layers import Attention
from statetrack.models import Tagger
from statetrack.tasks import Batch, Task
from statetrack.training.evaluation import label_hits
from statetrack.training.precision import autocast

__all__ = ["LENGTHS", "SEQUENCES", "exact_to", "horizon", "why_no_horizon"]

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = 256
TOKENS_AT_ONCE = 2**17
"""In one piece, all sequences together: as many as an evaluation while training has."""


@torch.no_grad()
def horizon(
    model: Tagger,
    task: Task | str,
    lengths: Iterable[int] = LENGTHS,
    *,
    sequences: int = SEQUENCES,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
) -> dict[int, float]:
    """For every length the share of sequences of exactly that length that are answered rightly.

    That is the last answer where the task asks for one, and every answer where it asks after every
    token. Lengths are counted as the task counts them. The sequences are the same for every model
    and device, and come from seeds that no training stream can have. The model is moved to
    `device` and stays there.

    >>> from statetrack.models import Tagger, paper_config
    >>> model = Tagger(paper_config("DeltaNet", vocab_size=3, d_model=8, num_heads=2))
    >>> list(horizon(model, "parity", (16, 4), sequences=2))
    [4, 16]
    """
    reason = why_no_horizon(model)
    if reason is not None:
        raise ValueError(reason)
    task = tasks.get(task) if isinstance(task, str) else task
    chosen = sorted(set(lengths))
    for length in chosen:
        task.lengths(length, length)  # refuses one that does not exist, before any work
    device = torch.device(device)
    model.to(device)
    found = {}
    for length in chosen:
        # The test set of a run has seed 0 unless its config says otherwise: these are other words.
        stream = tasks.generator(task, "test", seed + length)
        batch = task.sample(sequences, length, min_length=length, generator=stream)
        right = _faultless(model, batch, device, precision, task)
        found[length] = int(right.sum()) / sequences
    return found


def why_no_horizon(model: nn.Module) -> str | None:
    """Why `horizon` refuses a model, or `None`."""
    if any(isinstance(part, Attention) for part in model.modules()):
        return (
            "Attention keeps every token it has read, so its memory grows with the length: there "
            "is no state to hand from piece to piece"
        )
    return None


def exact_to(accuracy: Mapping[int, float], least: float = 1.0) -> int | None:
    """The greatest length up to which every length of `accuracy` has at least `least`.

    >>> exact_to({256: 1.0, 512: 1.0, 1024: 0.99, 2048: 1.0})
    512
    """
    longest = None
    for length in sorted(accuracy):
        if accuracy[length] < least:
            break
        longest = length
    return longest


def _faultless(
    model: Tagger, batch: Batch, device: torch.device, precision: str, task: Task
) -> Bool[Tensor, "batch"]:
    """Which sequences have every answer right (the last one alone unless the task is dense)."""
    rows, width = batch.tokens.shape
    piece = max(1, TOKENS_AT_ONCE // rows)
    ends = batch.num_tokens[:, None] - 1
    right = torch.ones(rows, dtype=torch.bool, device=device)
    state = None
    for start in range(0, width, piece):
        part = slice(start, min(start + piece, width))
        tokens, targets, mask = (
            whole[:, part].to(device) for whole in (batch.tokens, batch.targets, batch.mask)
        )
        read_at = None
        if (
            not task.dense
        ):  # one place in each row; where its answer is not in this piece, none counts
            read_at = (ends - start).clamp(0, tokens.shape[1] - 1).to(device)
            targets, mask = targets.gather(1, read_at), mask.gather(1, read_at)
        with autocast(device, precision):
            scores, state = model(tokens, state, read_at=read_at)
        # Scores that are not numbers are no answer, whatever their argmax.
        if task.labels is None:
            hit = (scores.argmax(dim=-1) == targets) & scores.isfinite().all(dim=-1)
        else:
            hit = label_hits(scores, targets, task.labels).all(dim=-1)
        right &= (hit | ~mask).all(dim=1)
    return right
