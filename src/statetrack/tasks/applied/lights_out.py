"""Lights Out: a press switches a light and its neighbours; is a light on?

    press4 press0 ?4

All lights are off at the start. After a press a light is asked for with probability 1/2, after the
last one always; the answer is never shown. Length counts presses. Presses commute and are their own
inverses, so that a diagonal layer with eigenvalue -1 can do it.
"""

import functools
from collections.abc import Iterator

from torch import Tensor

from statetrack.tasks._sampling import DeviceTable
from statetrack.tasks._task import LengthRange, Task
from statetrack.tasks.applied._puzzle import num_tokens, sample
from statetrack.tasks.applied._text import depths_by

__all__ = ["lights_out"]

TRAIN, EVALUATE = LengthRange(1, 16), LengthRange(256, 256)


def lights_out(side: int = 3) -> Task:
    """The game on a square of `side` times `side` lights.

    >>> lights_out().vocab_size, lights_out(5).vocab_size
    (19, 51)
    """
    cells = side * side
    tokens = ("[PAD]", *(f"press{i}" for i in range(cells)), *(f"?{i}" for i in range(cells)))
    table = switches(side)
    return Task(
        name="lights_out" if side == 3 else f"lights_out_{side}x{side}",
        summary=f"is a light on, {side}x{side}, when a press switches it and its neighbours",
        token_names=tokens,
        class_names=("off", "on"),
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=0.5,
        length_means="presses",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=1,
        num_tokens=num_tokens,
        sampler=functools.partial(
            sample,
            num_moves=cells,
            num_cells=cells,
            states=functools.partial(_lights, table=DeviceTable(table)),
        ),
        depths=depths_by(functools.partial(_track, table=table), tokens),
        most_answers=int,
    )


def switches(side: int) -> list[list[int]]:
    """For every press and light, whether the press switches the light.

    >>> switches(2)[0]
    [1, 1, 1, 0]
    """
    places = [(row, column) for row in range(side) for column in range(side)]
    return [[int(abs(r - i) + abs(c - j) <= 1) for i, j in places] for r, c in places]


def _lights(presses: Tensor, *, table: DeviceTable) -> Tensor:
    switched: Tensor = table.on(presses.device)[presses]
    return switched.cumsum(dim=1) & 1


def _track(words: list[str], *, table: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Switches of the light that is asked for, and presses, since the start."""
    count, read = [0] * len(table), 0
    for word in words:
        if word.startswith("?"):
            yield count[int(word[1:])], read
        else:
            read += 1
            row = table[int(word.removeprefix("press"))]
            count = [a + b for a, b in zip(count, row, strict=True)]
