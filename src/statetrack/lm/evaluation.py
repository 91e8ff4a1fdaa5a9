"""How well a language model predicts text, by position, to any length in constant memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.models import CausalLM
from statetrack.models._tokens import evaluating

__all__ = ["CONFIDENCE", "Evaluation", "Losses", "evaluate", "read_losses"]

CONFIDENCE = 1.96
"""Standard errors on either side of a mean that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Evaluation:
    """Losses of a model on sequences, by position, in nats a token.

    Position t is the prediction of token t from the tokens before it; t begins at 1. Positions go
    in bins (ends[i-1], ends[i]]. The sequence is the unit of chance: a standard error is that of
    the mean over sequences.

    Attributes:
        sequences: how many sequences have a token in the bin.
        loss: the mean over sequences of each one's mean loss in the bin.
        loss_error: its standard error; None where there is one sequence.
        running: the mean over sequences of each one's mean loss up to the end of the bin. Its
            exponential is what the field plots as perplexity at a length.
        running_error: its standard error.
        tokens, bytes: predicted in all; bytes is None if it was not told.
        total: the sum of all losses.
    """

    ends: tuple[int, ...]
    sequences: tuple[int, ...]
    loss: tuple[float, ...]
    loss_error: tuple[float | None, ...]
    running: tuple[float, ...]
    running_error: tuple[float | None, ...]
    tokens: int
    bytes: int | None
    total: float

    @property
    def perplexity(self) -> float:
        """exp of the mean loss of all tokens."""
        return math.exp(self.total / self.tokens)

    @property
    def bits_per_byte(self) -> float | None:
        """Comparable across tokenizers."""
        return None if self.bytes is None else self.total / math.log(2) / self.bytes

    def interval(self, index: int) -> tuple[float, float] | None:
        """The loss in a bin with a confidence of 95 %."""
        error = self.loss_error[index]
        if error is None:
            return None
        middle = self.loss[index]
        return middle - CONFIDENCE * error, middle + CONFIDENCE * error

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads them back."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**fields)


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of every sequence in every bin of `bin_size` positions: sums and counts.

    Attributes:
        longest: tokens predicted of the longest sequence.
    """

    sums: Float[Tensor, "sequences bins"]
    counts: Float[Tensor, "sequences bins"]
    bin_size: int
    longest: int

    def means(self, first: int, last: int) -> list[float | None]:
        """The mean loss of each sequence at the positions first < t <= last, whole bins of them.

        None for a sequence that ends before.
        """
        assert first % self.bin_size == 0, "bins are not cut"
        bins = slice(first // self.bin_size, -(-last // self.bin_size))
        sums, counts = self.sums[:, bins].sum(1), self.counts[:, bins].sum(1)
        pairs = zip(sums.tolist(), counts.tolist(), strict=True)
        return [total / count if count else None for total, count in pairs]

    def summary(self, num_bytes: int | None = None) -> Evaluation:
        """Means over the sequences, with their standard errors; `num_bytes` is of their text."""
        return _summary(self.sums, self.counts, self.bin_size, self.longest, num_bytes)


def evaluate(
    model: CausalLM,
    sequences: Sequence[Tensor | Sequence[int]],
    *,
    length: int | None = None,
    bin_size: int = 128,
    chunk: int = 1024,
    batch: int = 8,
    num_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """The mean of `read_losses` over the sequences.

    Args:
        length: how many tokens of each sequence are predicted at most.
        bin_size: positions that are averaged into one number.
        chunk, batch: tokens and sequences that are read at a time.
        num_bytes: of the text that is predicted, for bits per byte.
        progress: is told how many sequences are done, and of how many.
    """
    found = read_losses(
        model,
        sequences,
        length=length,
        bin_size=bin_size,
        chunk=chunk,
        batch=batch,
        progress=progress,
    )
    return found.summary(num_bytes)


def read_losses(
    model: CausalLM,
    sequences: Sequence[Tensor | Sequence[int]],
    *,
    length: int | None = None,
    bin_size: int = 128,
    chunk: int = 1024,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Losses:
    """The loss of every sequence's tokens, each from those before it, from an empty state.

    Sequences may differ in length; `length` is how many tokens of each are predicted at most. They
    are read `batch` at a time and `chunk` tokens at a time with the state carried over, so memory
    does not grow with their length, unless a layer of the model keeps a cache that does.

    Args:
        bin_size: positions that are averaged into one number.
        progress: is told how many sequences are done, and of how many.
    """
    rows = [torch.as_tensor(one).long().flatten() for one in sequences]
    short = next((i for i, row in enumerate(rows) if len(row) < 2), None)
    if not rows or short is not None:
        which = "there is no sequence" if short is None else f"sequence {short} has no second token"
        raise ValueError(f"{which}: nothing to predict")
    if min(bin_size, chunk, batch) < 1 or (length is not None and length < 1):
        raise ValueError("length, bin_size, chunk and batch must be at least 1")
    rows = [row if length is None else row[: length + 1] for row in rows]
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    bins = -(-(len(rows[order[0]]) - 1) // bin_size)
    sums = torch.zeros(len(rows), bins, dtype=torch.float64)
    counts = torch.zeros(len(rows), bins, dtype=torch.float64)
    with evaluating(model):
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            _read(model, [rows[i] for i in chosen], chosen, chunk, bin_size, sums, counts)
            if progress is not None:
                progress(min(first + batch, len(order)), len(order))
    return Losses(sums, counts, bin_size, max(map(len, rows)) - 1)


@torch.no_grad()
def _read(
    model: CausalLM,
    rows: list[Tensor],
    places: list[int],
    chunk: int,
    bin_size: int,
    sums: Float[Tensor, "sequences bins"],
    counts: Float[Tensor, "sequences bins"],
) -> None:
    """Adds the losses of `rows`, longest first, to those of their places."""
    device = model.embedding.weight.device
    state = None
    for start in range(0, len(rows[0]) - 1, chunk):
        alive = sum(len(row) - 1 > start for row in rows)
        if alive < len(rows):
            rows, places = rows[:alive], places[:alive]
            state = _first(state, alive)
        here = [row[start : start + chunk + 1] for row in rows]
        width = max(map(len, here)) - 1
        tokens = torch.zeros(alive, width + 1, dtype=torch.long)
        mask = torch.zeros(alive, width, dtype=torch.bool)
        for i, part in enumerate(here):
            tokens[i, : len(part)] = part
            mask[i, : len(part) - 1] = True
        tokens, on_device = tokens.to(device), mask.to(device)
        losses, state = model.losses(
            tokens[:, :-1], tokens[:, 1:], state, mask=None if bool(mask.all()) else on_device
        )
        places_of = (torch.arange(start, start + width) // bin_size).expand(alive, -1)
        found = (losses.double() * on_device).cpu()
        index = torch.tensor(places)
        sums[index] = sums[index].scatter_add(1, places_of, found)
        counts[index] = counts[index].scatter_add(1, places_of, mask.double())


def _first(state: Any, alive: int) -> Any:
    return state and tuple({key: part[:alive] for key, part in one.items()} for one in state)


def _summary(
    sums: Float[Tensor, "sequences bins"],
    counts: Float[Tensor, "sequences bins"],
    bin_size: int,
    longest: int,
    num_bytes: int | None,
) -> Evaluation:
    there = counts > 0
    loss, loss_error = _means(sums / counts, there)
    running, running_error = _means(sums.cumsum(1) / counts.cumsum(1), there)
    ends = [min((i + 1) * bin_size, longest) for i in range(sums.shape[1])]
    return Evaluation(
        ends=tuple(ends),
        sequences=tuple(there.sum(0).tolist()),
        loss=loss,
        loss_error=loss_error,
        running=running,
        running_error=running_error,
        tokens=int(counts.sum()),
        bytes=num_bytes,
        total=sums.sum().item(),
    )


def _means(
    values: Float[Tensor, "sequences bins"], there: Tensor
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """The mean of each column where there is something, and its standard error."""
    means, errors = [], []
    for column, known in zip(values.T, there.T, strict=True):
        found = column[known]
        means.append(found.mean().item())
        many = len(found) > 1
        errors.append(found.std().item() / math.sqrt(len(found)) if many else None)
    return tuple(means), tuple(errors)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
