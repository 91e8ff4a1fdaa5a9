"""The 2x2x2 cube: turn faces, and say the colour of a sticker.

    U R' F2 ?s5 U ?s17

Nine moves, U, R and F by one, two or three quarter turns, all of which leave the corner down, left
and at the back in its place; the other seven corners have 21 stickers. The cube starts solved.
After a move a sticker is asked for with probability 1/2, after the last one always; the answer is
never shown. Length counts moves.
"""

import functools
from collections.abc import Iterator
from itertools import product

import torch

from statetrack.tasks._sampling import DeviceTable
from statetrack.tasks._task import LengthRange, Task
from statetrack.tasks.applied._puzzle import num_tokens, sample
from statetrack.tasks.applied._text import composed, depths_by

__all__ = ["cube"]

FACES, TURNS = "URF", ("", "2", "'")
MOVES = tuple(face + turn for face in FACES for turn in TURNS)
COLOURS = "URFDLB"
AXES = {"U": (2, 1), "D": (2, -1), "R": (0, 1), "L": (0, -1), "F": (1, -1), "B": (1, 1)}
"""The axis of a face's normal and its direction: x to the right, y to the back, z up."""
FIXED = (-1, 1, -1)
TRAIN, EVALUATE = LengthRange(1, 16), LengthRange(256, 256)

Sticker = tuple[tuple[int, int, int], str]
"""The corner it is on, and the face it shows on."""
STICKERS: tuple[Sticker, ...] = tuple(
    (corner, face)
    for corner in product((-1, 1), (-1, 1), (-1, 1))
    if corner != FIXED
    for face in COLOURS
    if corner[AXES[face][0]] == AXES[face][1]
)
TOKENS = ("[PAD]", *MOVES, *(f"?s{i}" for i in range(len(STICKERS))))


def turned(face: str, sticker: Sticker) -> Sticker:
    """Where a sticker is after a clockwise quarter turn of a face, by rotating corner and normal.

    >>> turned("U", ((1, -1, 1), "F"))
    ((-1, -1, 1), 'L')
    """
    corner, shows = sticker
    axis, side = AXES[face]
    if corner[axis] != side:
        return sticker
    # The other two axes in the order that makes the turn right-handed around the outward normal.
    first, second = (axis + 1) % 3, (axis + 2) % 3

    def rotated(vector: tuple[int, ...]) -> tuple[int, int, int]:
        turned = list(vector)  # clockwise seen from outside: against the right hand
        turned[first], turned[second] = side * vector[second], -side * vector[first]
        return (turned[0], turned[1], turned[2])

    normal = [0, 0, 0]
    normal[AXES[shows][0]] = AXES[shows][1]
    after = rotated(tuple(normal))
    shown = next(name for name, (place, way) in AXES.items() if after[place] == way)
    return rotated(corner), shown


def moves() -> list[list[int]]:
    """For every move and sticker place, the place its sticker comes from."""
    place = {sticker: i for i, sticker in enumerate(STICKERS)}
    table = []
    for face in FACES:
        quarter = [0] * len(STICKERS)
        for sticker, i in place.items():
            quarter[place[turned(face, sticker)]] = i
        turn = list(range(len(STICKERS)))
        for _ in TURNS:
            turn = [turn[i] for i in quarter]
            table.append(turn)
    return table


MAPS = moves()
COLOUR = [COLOURS.index(face) for _, face in STICKERS]


def cube() -> Task:
    """The 2x2x2 cube.

    >>> cube().vocab_size, cube().num_classes
    (31, 6)
    """
    return Task(
        name="cube",
        summary="the colour of a sticker of a 2x2x2 cube after turns of its faces",
        token_names=TOKENS,
        class_names=tuple(COLOURS),
        pad_id=0,
        dense=True,
        judged_by="scaled_accuracy",
        chance=4 / 21,
        length_means="moves",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=1,
        num_tokens=num_tokens,
        sampler=functools.partial(
            sample, num_moves=len(MOVES), num_cells=len(STICKERS), states=_colours
        ),
        depths=depths_by(_track, TOKENS),
        most_answers=int,
    )


_MAPS, _COLOUR = DeviceTable(MAPS), DeviceTable(COLOUR)


def _colours(drawn: torch.Tensor) -> torch.Tensor:
    """The colour at every place after every move."""
    return _COLOUR.on(drawn.device)[composed(_MAPS.on(drawn.device)[drawn])]


def _track(words: list[str]) -> Iterator[tuple[int, int]]:
    """Moves of the sticker that is asked for since the start, and moves since."""
    moved, read = [0] * len(STICKERS), 0
    for word in words:
        if word.startswith("?"):
            yield moved[int(word[2:])], read
        else:
            read += 1
            came_from = MAPS[MOVES.index(word)]
            moved = [moved[i] + (i != place) for place, i in enumerate(came_from)]
