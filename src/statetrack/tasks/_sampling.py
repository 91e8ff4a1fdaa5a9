"""What the samplers share. Nothing here looks at a value on the host, except `longest`."""

from collections.abc import Callable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from statetrack._typing import Bool, Int
from statetrack.tasks._task import IGNORE, Batch, LengthRange, Source


class DeviceTable:
    """A small constant table, copied to each device the first time it is needed there."""

    def __init__(self, values: ArrayLike | Tensor) -> None:
        values = values if isinstance(values, Tensor) else torch.tensor(values)
        self._copies = {torch.device("cpu"): values}

    def on(self, device: torch.device) -> Tensor:
        """The table on `device`."""
        if device not in self._copies:
            self._copies[device] = self._copies[torch.device("cpu")].to(device)
        return self._copies[device]


class Walker:
    """Runs a machine over many words at once and says its output after every letter.

    `delta[q, a]` is the state after letter a in state q, `outputs[q]` what state q says; the start
    is state 0. One addition and one look-up for each letter.
    """

    def __init__(
        self, delta: Int[Tensor, "states letters"], outputs: Int[Tensor, "states"]
    ) -> None:
        # An arrow is the pair (state, letter) in one number, state·k + letter.
        self._next_row = DeviceTable(delta.flatten() * delta.shape[1])
        self._says = DeviceTable(outputs[delta.flatten()])

    def __call__(self, letters: Int[Tensor, "time batch"]) -> Int[Tensor, "time batch"]:
        next_row = self._next_row.on(letters.device)
        arrows = torch.empty_like(letters)
        row = torch.zeros_like(letters[0])
        for letter, arrow in zip(letters, arrows, strict=True):
            torch.add(row, letter, out=arrow)
            row = next_row.index_select(0, arrow)
        return self._says.on(letters.device).index_select(0, arrows.flatten()).view_as(letters)


def uniform(
    low: int,
    high: int,
    shape: tuple[int, ...],
    source: Source,
    device: torch.device,
    *,
    batch_axis: int = -1,
) -> Tensor:
    """Independent integers, uniform on `low .. high`, both included.

    `batch_axis` is the axis of `shape` that several streams share among them.
    """

    def draw(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator, device=device)

    return _from_streams(draw, shape, source, batch_axis)


def unit_uniform(shape: tuple[int, ...], source: Source, device: torch.device) -> Tensor:
    """Independent numbers, uniform on [0, 1); the batch is the last axis."""

    def draw(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    return _from_streams(draw, shape, source, -1)


def _from_streams(
    draw: Callable[[tuple[int, ...], torch.Generator], Tensor],
    shape: tuple[int, ...],
    source: Source,
    batch_axis: int,
) -> Tensor:
    if isinstance(source, torch.Generator):
        return draw(shape, source)
    share = list(shape)
    share[batch_axis] //= len(source)
    return torch.cat([draw(tuple(share), generator) for generator in source], dim=batch_axis)


def lengths_of(
    batch: int, lengths: LengthRange, source: Source, device: torch.device
) -> Int[Tensor, "batch"]:
    """A length for each sequence."""
    return uniform(lengths.min, lengths.max, (batch,), source, device)


def longest(sizes: Int[Tensor, "batch"], possible: int) -> int:
    """The width of a batch: its longest sequence on the CPU, the longest possible elsewhere."""
    return int(sizes.max()) if sizes.device.type == "cpu" else possible


def supervise(
    tokens: Int[Tensor, "batch time"],
    answers: Int[Tensor, "batch time"],
    num_tokens: Int[Tensor, "batch"],
    *,
    pad_id: int,
    defined: Bool[Tensor, "..."] | bool,
) -> Batch:
    """Cuts every sequence after `num_tokens` and keeps the answers that count.

    The answer at a sequence's last token always counts, those before it where `defined` is True.
    """
    position = torch.arange(tokens.shape[1], device=tokens.device)
    end = num_tokens[:, None]
    last = position == end - 1
    mask = last if defined is False else last | (defined & (position < end))
    return Batch(
        tokens.masked_fill(position >= end, pad_id), answers.masked_fill(~mask, IGNORE), mask
    )
